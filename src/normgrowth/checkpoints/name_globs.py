"""Globs that match the checkpoints of one series, but no others in the same folder."""

import glob
import re
import shlex
from collections.abc import Sequence

Named = tuple[str, int | None]  # the label of a checkpoint, and its step
_WILDCARDS = ("*", "[0-9]*", "*[0-9]")  # in the order of preference


def name_pattern(label: str, step: int | None = None) -> tuple[str, str]:
    """The label before and after the number of its step, or else its last number; (label, "") without numbers."""
    numbers = list(re.finditer(r"\d+", label))
    if not numbers:
        return label, ""
    own = [number for number in numbers if int(number[0]) == step] or numbers
    return label[: own[-1].start()], label[own[-1].end() :]


def by_pattern(checkpoints: Sequence[Named]) -> list[list[int]]:
    """Positions of checkpoints, grouped by names that differ only in the step, in the order of first occurrence."""
    found: dict[tuple[str, str], list[int]] = {}
    for position, named in enumerate(checkpoints):
        found.setdefault(name_pattern(*named), []).append(position)
    return list(found.values())


def by_foreign_pattern(files: Sequence[Named], own: Sequence[Named]) -> list[list[int]]:
    """Like `by_pattern`, but files that are named like a checkpoint of the series (`own`) are groups of one."""
    of_series = {name_pattern(*named) for named in own}
    groups = by_pattern(files)
    single = [name_pattern(*files[group[0]]) in of_series for group in groups]
    return [
        part
        for group, apart in zip(groups, single, strict=True)
        for part in ([[i] for i in group] if apart else [group])
    ]


def any_number(label: str, step: int | None = None) -> str:
    """The label with a star in place of its step or last number, to name all files of a pattern."""
    before, after = name_pattern(label, step)
    return f"{before}*{after}" if label != before else label


def separating_globs(parts: Sequence[Sequence[Named]]) -> list[list[str]] | None:
    """For each part, globs that match only its checkpoints; None if globs cannot separate the parts.

    >>> separating_globs([[("run/a_5.pt", 5), ("run/a_10.pt", 10)], [("run/b_5.pt", 5), ("run/b_10.pt", 10)]])
    [['run/a_*.pt'], ['run/b_*.pt']]
    """
    found: list[list[str]] = []
    for k, part in enumerate(parts):
        others = [label for j, other in enumerate(parts) if j != k for label, _ in other]
        globs: list[str] = []
        for before, after in dict.fromkeys(name_pattern(*named) for named in part):
            own = [label for label, step in part if name_pattern(label, step) == (before, after)]
            if len(own) == 1:
                candidates = [glob.escape(own[0])]
            else:
                candidates = [glob.escape(before) + wild + glob.escape(after) for wild in _WILDCARDS]
            fitting = [g for g in candidates if all(_matches(g, x) for x in own)]
            clean = [g for g in fitting if not any(_matches(g, x) for x in others)]
            if not clean:
                return None
            globs.append(clean[0])
        found.append(globs)
    return found


def lint_commands(parts: Sequence[Sequence[Named]]) -> str:
    """A lint command for each part; if no glob separates the parts, the names of two files."""
    local = not any("://" in label.removeprefix("hf://") for part in parts for label, _ in part)
    globs = separating_globs(parts) if local else None
    if globs is None:
        return f"no glob separates them, for example {parts[0][0][0]} and {parts[1][0][0]}"
    return "; ".join(f"normgrowth lint {' '.join(map(shlex.quote, own))}" for own in globs)


def without(own: Sequence[Named], others: Sequence[Named], command: str = "") -> str:
    """The end of a sentence about other files, with the globs that leave them out; "" if globs cannot."""
    local = not any("://" in label for label, _ in own)
    globs = separating_globs([own, others]) if own and local else None
    return f"; without these files: {command}{' '.join(map(shlex.quote, globs[0]))}" if globs else ""


def without_pattern_of(label: str, own: str, labels: Sequence[str]) -> str:
    """Like `without`, for the files named like `label`, which are not part of the series of `own`; or ""."""
    pattern = name_pattern(label)
    others = [(other, None) for other in labels if name_pattern(other) == pattern]
    rest = [(other, None) for other in labels if name_pattern(other) != pattern]
    return "" if name_pattern(own) == pattern else without(rest, others)


def _matches(pattern: str, label: str) -> bool:
    """Match like the shell and `glob`: a star does not match a slash."""
    parts = re.split(r"(\[.*?\]|\*)", pattern)
    regex = "".join(
        "[^/]*" if p == "*" else p if p == "[0-9]" else re.escape(p[1:-1] if p[:1] == "[" else p)
        for p in parts
    )
    return re.fullmatch(regex, label) is not None
