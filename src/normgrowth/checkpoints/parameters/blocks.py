"""Blocks: find the numbered lists of blocks in a model, and blocks without a number.

- A list whose members contain attention is a stack of blocks. Other lists (a convolutional front end, the steps of a
  projector) are not, unless the whole model has no attention.
- A list within attention, such as a list of heads or the steps of an output projection, is not a stack.
- Attention outside of these lists belongs to an unnumbered block: the innermost module around it that also contains
  a feedforward, if the model has any. A model with a single layer may itself be that block. The block is layer 0 of
  its stack. Embeddings, positions and the head are not part of it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from normgrowth.checkpoints.parameters.roles import context, role_of, split

INCLUDE_CHOICES = ("blocks", "encoder", "decoder", "all", "encoder,decoder")  # which parameters a norm counts
DEFAULT_INCLUDE = "blocks"  # for every reported norm; only lint checks all parameters

# The path of the numbered list that has the name (or None), the number in it, the rest of the name.
Place = tuple[str | None, int, str]
Words = tuple[str, ...]

# A number after one of these words has precedence over others: in "0.auto_model.encoder.layer.3" it is the 3.
# TensorFlow appends the number: block_003, layer-3, h3, and (with less certainty) encoder_layer_3.
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


# A list of attention heads, whose number does not matter for the meaning of a name.
_HEADS = re.compile(r"(?:(?<=[./])|^)(?:\w+_)?heads?[./][0-9]{1,9}[./]")


@dataclass(frozen=True, slots=True)
class Stack:
    label: str
    kind: str  # "encoder", "decoder" or "", from its path
    inner: int = 1  # blocks per list member: ALBERT numbers groups, and blocks within a group
    # False: the model has no attention; any list is a stack, and may contain the embedding.
    attends: bool = True
    recurrent: bool = False  # RWKV names its recurrence "attention"
    numbered: bool = True
    prefix: Words = ()  # path of an unnumbered block
    whole: bool = False  # an unnumbered block that is the whole model, and so contains the head

    def within(self, name: str) -> str:
        """The name of a tensor relative to an unnumbered block."""
        return _HEADS.sub("", ".".join(split(name)[len(self.prefix) :]))

    def holds_outside(self, name: str, role: str) -> bool:
        """Whether a tensor in an unnumbered block's module is not part of the block: a position table, the head."""
        if any(context(word) == "attention" for word in split(name)[len(self.prefix) :]):
            return False
        return role == "position" or (self.whole and role_of(self.within(name), False) == "head")


@dataclass(frozen=True, slots=True)
class Stacks:
    """All stacks of a model: lists of blocks by path, and unnumbered blocks."""

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
    """For each name: the path of its numbered list (or None), its number there, and the rest of the name."""
    places: list[Place] = []
    path, start = "", "\0"
    for name in names:
        if name.startswith(start):  # in the same list as the previous name: skip the search
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
    # XLM has parallel lists: attentions.3, layer_norm1.3, ffns.3. The first one with attention is used.
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
    """Whether a list is part of attention or of a feedforward: a list of heads, or the steps of a projection."""
    if _LISTED.match(f"{path}.0"):
        return False
    *around, last = split(path)
    is_part = last.endswith(("head", "heads")) or role_of(last, True).startswith("attention.")
    return is_part or any(map(context, around))


def _unnumbered(names: Iterable[str], lists: Sequence[Words]) -> list[Words]:
    """The paths of modules that are blocks without a number. lists: the paths of numbered stacks."""
    found: dict[Words, set[str]] = {}  # module around attention -> roles of its tensors
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

    # The modules contain only attention: widen them.
    while wanted and not lists and not any(map(holds, found)) and any(found):
        wider: dict[Words, set[str]] = {}
        for block, roles in found.items():
            wider.setdefault(block[:-1], set()).update(roles)
        found = wider
    for block in sorted(found, key=len):  # merge nested modules into the outer one
        outer = next((one for one in found if one != block and one == block[: len(one)]), None)
        if outer is not None:
            found[outer] |= found.pop(block)
    if lists:
        apart = [block for block in found if not any(path[: len(block)] == block for path in lists)]
        # Next to numbered blocks it must be an encoder or decoder: a projector between towers may have attention, too.
        found = {block: found[block] for block in apart if holds(block) and _kind(".".join(block))}
    return sorted(
        block
        for block, roles in found.items()
        if roles & {"attention.qkv"} or roles >= {"attention.query", "attention.key"}
    )


def _attention(words: Words) -> int:
    """The index of the first component of a name that belongs to attention."""
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
    """The shortest distinct names for stacks: encoder and decoder, text_model and vision_model."""
    if len(paths) == 1:
        return ["layer"]
    kinds = [_kind(path) for path in paths]
    if all(kinds) and len(set(kinds)) == len(kinds):
        return kinds
    parts = [split(path) for path in paths]
    if len({part[:-1] for part in parts}) == len(parts):
        parts = [part[:-1] for part in parts]
    for _ in range(2):  # remove the common prefix; then, reversed, the common suffix
        while all(parts) and len({part[0] for part in parts}) == 1:
            parts = [part[1:] for part in parts]
        parts = [part[::-1] for part in parts]
    return [".".join(part) or "layer" for part in parts]
