"""Blocks: which numbered lists of a model hold them, and which module is one although it has no number.

- A list whose members hold attention is a stack of blocks. Other lists (a convolutional front end, the steps of a
  projector) hold no blocks, unless the whole model is without attention.
- A list that lies within attention, such as one of heads or the steps of an output projection, is no stack.
- Attention outside every such list belongs to an unnumbered block: the innermost module around it that also holds
  a feedforward, if there is one anywhere. A model of a single layer may be that block itself. It is layer 0 of its
  stack. Embeddings, positions and the head are no part of it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from normgrowth.checkpoints.roles import context, role_of, split

INCLUDE_CHOICES = ("blocks", "encoder", "decoder", "all", "encoder,decoder")  # which parameters a norm counts
DEFAULT_INCLUDE = "blocks"  # wherever a norm is reported; lint alone checks every parameter

Place = tuple[
    str | None, int, str
]  # the list that a name lies in (None: in none), its number there, the rest
Words = tuple[str, ...]

# A number after one of these words goes before any other: in "0.auto_model.encoder.layer.3" it is the 3.
# TensorFlow glues it on: block_003, layer-3, h3, and less surely encoder_layer_3.
_LIST = r"[Ll]ayers?|[Bb]locks?|blk|stages?|groups?|layer_with_weights"
_LISTED = re.compile(
    rf"(.*?(?:(?:{_LIST})(?=[./])|(?<!_)(?:{_LIST})|(?<![^./])h))[./_-]?([0-9]{{1,9}})(?:[./](.*))?\Z",
    re.DOTALL,
)
_NUMBERED = re.compile(
    r"(?:(.*?)(?:[./]|(?<=layer|block|stage|group)[_-]))?([0-9]{1,9})(?:[./](.*))?\Z", re.DOTALL
)
_INNER = re.compile(r"(?:albert_layers\.|inner_group_)([0-9]{1,9})")
_CODER = re.compile(r"(?:^|_)((?:en|de)coder)(?:_|s?$)")


# A list of attention heads: to what a name means, its number adds nothing.
_HEADS = re.compile(r"(?:(?<=[./])|^)(?:\w+_)?heads?[./][0-9]{1,9}[./]")


@dataclass(frozen=True, slots=True)
class Stack:
    label: str
    kind: str  # "encoder", "decoder" or "", as its path says
    inner: int = 1  # ALBERT numbers its blocks twice, by group and within: how many there are within
    attends: bool = True  # no: the model has no attention, any list will do, and may hold the embedding too
    recurrent: bool = False  # RWKV calls its recurrence attention
    numbered: bool = True
    prefix: Words = ()  # of an unnumbered block: the module that it is
    whole: bool = False  # an unnumbered block that is the whole model, so that its head lies within

    def within(self, name: str) -> str:
        """The name as an unnumbered block has it."""
        return _HEADS.sub("", ".".join(split(name)[len(self.prefix) :]))

    def holds_outside(self, name: str, role: str) -> bool:
        """Whether a tensor in the module of an unnumbered block is no part of it: a position table, the head."""
        if any(context(word) == "attention" for word in split(name)[len(self.prefix) :]):
            return False
        return role == "position" or (self.whole and role_of(self.within(name), False) == "head")


@dataclass(frozen=True, slots=True)
class Stacks:
    """Every stack of a model: by the path of its list, and unnumbered blocks."""

    lists: Mapping[str | None, Stack]
    unnumbered: Sequence[Stack]

    def __iter__(self) -> Iterator[Stack]:
        yield from self.lists.values()
        yield from self.unnumbered

    def of(self, path: str | None, rest: str) -> Stack | None:
        if path in self.lists or not self.unnumbered:
            return self.lists.get(path)
        words = split(whole_name(path, rest))
        return next((block for block in self.unnumbered if words[: len(block.prefix)] == block.prefix), None)


def locate(names: Iterable[str]) -> list[Place]:
    """For each name the numbered list that it lies in (None: in none), its number there, and the rest."""
    places: list[Place] = []
    path, start = "", "\0"
    for name in names:
        if name.startswith(start):  # in the same list as the name before it: no need to search
            number, _, rest = name[len(start) :].partition(".")
            if number.isdigit() and number.isascii() and len(number) < 10:
                places.append((path, int(number), rest))
                continue
        if found := _LISTED.match(name):
            path, number, rest = found.groups("")
            start = f"{path}."
            places.append((path, int(number), rest))
        elif found := _NUMBERED.match(name):
            places.append((found[1] or "", int(found[2]), found[3] or ""))
        else:
            places.append((None, 0, name))
    return places


def find_stacks(places: Iterable[Place]) -> Stacks:
    """The lists whose members are blocks, and the unnumbered blocks."""
    lists: dict[str, tuple[set[int], set[str]]] = {}
    alone: set[str] = set()
    for path, index, rest in places:
        if path is None:
            alone.add(rest)
            continue
        if path not in lists:
            lists[path] = set(), set()
        indices, rests = lists[path]
        indices.add(index)
        rests.add(rest)
    attending, inert = [], []
    for path, (_, rests) in lists.items():
        roles = {role_of(member(path, rest), True) for rest in rests}
        if any(role.startswith("attention.") for role in roles) and not _within_attention(path):
            attending.append(path)
        elif roles and role_of(f"{path}.0", False) not in ("embedding", "head"):
            inert.append(path)
    outside = alone | {
        whole_name(path, rest) for path in lists.keys() - set(attending) for rest in lists[path][1]
    }
    blocks = _unnumbered(outside, [split(path) for path in attending])
    main = attending
    if not attending and not blocks:
        main = [path for path in inert if _LISTED.match(f"{path}.0")] or inert
    labels = _labels([*main, *(".".join((*block, "block")) for block in blocks)])
    stacks: dict[str | None, Stack] = {}
    for path, label in zip(main, labels[: len(main)], strict=True):
        inner = 1 + max(map(inner_number, lists[path][1]))
        recurrent = any("receptance" in rest for rest in lists[path][1])
        stacks[path] = Stack(label, _kind(path), inner, bool(attending), recurrent)
    # XLM keeps its blocks in parallel lists: attentions.3, layer_norm1.3, ffns.3. If several attend, the first by name.
    beside = {path: (split(path)[:-1], frozenset(lists[path][0])) for path in [*attending, *inert]}
    parallel = {beside[path]: stacks[path] for path in sorted(attending, reverse=True)}
    for path in inert:
        if stack := parallel.get(beside[path]):
            stacks[path] = stack
    unnumbered = [
        Stack(
            label,
            _kind(".".join(block)),
            numbered=False,
            prefix=block,
            whole=not attending and all(split(name)[: len(block)] == block for name in outside),
        )
        for block, label in zip(blocks, labels[len(main) :], strict=True)
    ]
    return Stacks(stacks, unnumbered)


def _within_attention(path: str) -> bool:
    """Whether a list is a part of attention or of a feedforward: of heads, or the steps of a projection."""
    if _LISTED.match(f"{path}.0"):
        return False
    *around, last = split(path)
    is_part = last.endswith(("head", "heads")) or role_of(last, True).startswith("attention.")
    return is_part or any(map(context, around))


def _unnumbered(names: Iterable[str], lists: Sequence[Words]) -> list[Words]:
    """The modules, by their path, that are blocks without a number; `lists` are the stacks of numbered ones."""
    found: dict[Words, set[str]] = {}  # around attention -> its roles there
    others: dict[str, set[Words]] = {"feedforward": set(), "other": set()}
    for name in names:
        words, plain = split(name), _HEADS.sub("", name)
        role = role_of(plain, True)
        if role_of(plain, False) == "head":
            continue
        if role.startswith("attention."):
            found.setdefault(words[: _attention(words)], set()).add(role)
        elif role in others and not any(context(word) == "attention" for word in words):
            others[role].add(words)
    wanted = others["feedforward"] or (set() if lists else others["other"])

    def holds(block: Words) -> bool:
        return any(words[: len(block)] == block for words in wanted)

    while (
        wanted and not lists and not any(map(holds, found)) and any(found)
    ):  # nothing but attention: look around it
        wider: dict[Words, set[str]] = {}
        for block, roles in found.items():
            wider.setdefault(block[:-1], set()).update(roles)
        found = wider
    for block in sorted(found, key=len):  # what lies within another belongs to it
        outer = next((one for one in found if one != block and one == block[: len(one)]), None)
        if outer is not None:
            found[outer] |= found.pop(block)
    if lists:
        apart = [block for block in found if not any(path[: len(block)] == block for path in lists)]
        # Beside numbered blocks it must be the other coder: a projector between two towers may attend, too.
        found = {block: found[block] for block in apart if holds(block) and _kind(".".join(block))}
    return sorted(
        block
        for block, roles in found.items()
        if roles & {"attention.qkv"} or roles >= {"attention.query", "attention.key"}
    )


def _attention(words: Words) -> int:
    """Where attention begins in a name."""
    return next(
        i
        for i, word in enumerate(words)
        if context(word) == "attention"
        or word.isdigit()
        or word.endswith(("head", "heads"))
        or role_of(word, True).startswith("attention.")
    )


def whole_name(path: str | None, rest: str) -> str:
    """The name of a tensor in the first member of its list."""
    return rest if path is None else f"{path}.0.{rest}"


def member(path: str, rest: str) -> str:
    return f"{split(path)[-1]}.{rest}"


def inner_number(rest: str) -> int:
    found = _INNER.match(rest)
    return int(found[1]) if found else 0


def _kind(path: str) -> str:
    return next((found[1] for word in split(path) if (found := _CODER.search(word))), "")


def _labels(paths: list[str]) -> list[str]:
    """Names for stacks, as short as tells them apart: encoder and decoder, text_model and vision_model."""
    if len(paths) == 1:
        return ["layer"]
    kinds = [_kind(path) for path in paths]
    if all(kinds) and len(set(kinds)) == len(kinds):
        return kinds
    parts = [split(path) for path in paths]
    if len({part[:-1] for part in parts}) == len(parts):
        parts = [part[:-1] for part in parts]
    for _ in range(2):  # off with what all begin with; then, turned round, with what all end with
        while all(parts) and len({part[0] for part in parts}) == 1:
            parts = [part[1:] for part in parts]
        parts = [part[::-1] for part in parts]
    return [".".join(part) or "layer" for part in parts]
