"""Fixed parameters, which do not grow: names or patterns of names."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from normgrowth.errors import InputError


def matching(names: Iterable[str], patterns: Sequence[str]) -> set[str]:
    """The names that match a pattern (`*` matches anything, including dots); each pattern must match a name."""
    if isinstance(patterns, str):
        raise InputError(f'fixed must be a list of names: fixed=["{patterns}"]')
    names = list(names)
    found: set[str] = set()
    for pattern in patterns:
        matched = {name for name in names if fnmatchcase(name, pattern)}
        if not matched:
            raise InputError(f"fixed: no parameter matches {pattern!r}{_suggestion(pattern, names)}")
        found |= matched
    return found


def note_on_fixed(fixed: Sequence[str]) -> list[str]:
    """A note for the user about fixed parameters."""
    return [f"held fixed: {', '.join(fixed)}; all other parameters grow"] if fixed else []


def _suggestion(pattern: str, names: list[str]) -> str:
    """Parameters with a similar name, or whose last part is similar."""
    last = pattern.rpartition(".")[2].strip("*")
    close = get_close_matches(pattern, names, 3)
    if not close and last:
        ends: dict[str, str] = {}
        for name in names:
            ends.setdefault(name.rpartition(".")[2], name)
        similar = [end for end in ends if last in end] or get_close_matches(last, list(ends), 3)
        close = [ends[end] for end in similar[:3]]
    return f"; close matches: {', '.join(close)}" if close else ""
