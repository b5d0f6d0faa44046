"""Combine names that differ only in their block number: encoder.layer.0-11.attention."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class ModulePlace(NamedTuple):
    """A module's name, split at its first number."""

    stack: str  # encoder.layer; the whole name if there is no number
    block: int | None
    rest: str  # attention.output

    def label(self, indices: Iterable[int] = ()) -> str:
        if self.block is None:
            return self.stack
        return ".".join(part for part in (self.stack, spans(indices or [self.block]), self.rest) if part)


def place(name: str) -> ModulePlace:
    parts = name.split(".")
    for i, part in enumerate(parts):
        if part.isascii() and part.isdigit() and len(part) < 9:
            return ModulePlace(".".join(parts[:i]), int(part), ".".join(parts[i + 1 :]))
    return ModulePlace(name, None, "")


def spans(indices: Iterable[int]) -> str:
    """0-2,5"""
    runs: list[list[int]] = []
    for index in sorted(set(indices)):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def grouped_modules(
    items: Iterable[T], name: Callable[[T], str], key: Callable[[T], Hashable]
) -> list[tuple[str, list[T]]]:
    """Group items that differ only in their block number, by their common name."""
    found: dict[Hashable, list[T]] = {}
    for item in items:
        where = place(name(item))
        found.setdefault((where.stack, where.block is None, where.rest, key(item)), []).append(item)
    result = []
    for alike in found.values():
        places = [place(name(item)) for item in alike]
        result.append((places[0].label([p.block for p in places if p.block is not None]), alike))
    return result


def module_labels(names: Iterable[str]) -> list[str]:
    return [label for label, _ in grouped_modules(dict.fromkeys(names), lambda name: name, lambda _: None)]


def within(name: str, module: str) -> bool:
    """Whether a name is the module or inside it."""
    return not module or name == module or name.startswith(f"{module}.")


def listed(words: Sequence[str], most: int = 4) -> str:
    """The words as "a, b and c"; long lists as the first `most` words and the number of others."""
    if len(words) > most + 1:
        return f"{', '.join(words[:most])} and {len(words) - most:,} more"
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else ""


def counted(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
