"""Find files in a folder that do not belong to the series: other models, data files, a second run."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from normgrowth.checkpoints.checkpoint import Tensor
from normgrowth.checkpoints.name_globs import (
    Named,
    any_number,
    by_foreign_pattern,
    by_pattern,
    lint_commands,
    name_pattern,
    without,
)
from normgrowth.checkpoints.parameters.parameter_names import Reading
from normgrowth.checkpoints.series import Entry
from normgrowth.lint.step_table import StepTable
from normgrowth.trace.sampling.finding import Finding

Shape = tuple[int, ...]
SHOWN = 3  # number of tensors that a message lists
_PARAMETER = re.compile(
    r"(^|[._/])(weight|bias|kernel|gamma|beta|scale|gain|embeddings?|lora_\w+|[wb](_?[a-z])?\d*)(_[gv]|\.default)?$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Member:
    """One checkpoint, described by its index."""

    entry: Entry
    shapes: Mapping[str, Shape]  # of the parameters, or of all tensors if there are no parameters
    counted: bool  # whether any of its tensors is selected for the checks

    @property
    def named(self) -> tuple[str, int]:
        return self.entry.label, self.entry.step

    @staticmethod
    def of(entry: Entry, tensors: Mapping[str, Tensor], readings: Mapping[str, Reading]) -> "Member":
        parameters = [name for name, r in readings.items() if r.role not in ("buffer", "optimizer")]
        shapes = {name: tensors[name].shape for name in parameters or tensors}
        return Member(entry, shapes, any(reading.counted for reading in readings.values()))


@dataclass(frozen=True)
class UnreadFile:
    """A file of a series that could not be read."""

    label: str
    step: int | None
    reason: str
    is_data: bool  # it could be read, but has no tensors


@dataclass
class Mixture:
    """The opened checkpoints of a source, grouped by their tensors."""

    groups: list[list[Member]] = field(default_factory=list)

    def add(self, member: Member) -> bool:
        """Add a checkpoint; return whether it belongs to the first group with tensors to check."""
        for group in self.groups:
            if any(_related(shapes, member.shapes) for shapes in _distinct(group)):
                group.append(member)
                break
        else:
            group = [member]
            self.groups.append(group)
        return group is next((group for group in self.groups if group[0].counted), None)

    def series(self) -> tuple[list[Member], list[list[Member]]]:
        """Return the series to check, and the others. Models precede data files; then the longest series wins."""
        parts = [part for group in self.groups for part in _by_name(group)]
        main = max(parts, key=lambda part: (part[0].counted, _is_model(part), len(part)), default=[])
        return main, [part for part in parts if part is not main]


def other_series(main: Sequence[Member], others: Sequence[Sequence[Member]]) -> Iterator[Finding]:
    """Yield a finding for each other series, model or name pattern of data files; these are not checked."""
    own = [member.named for member in main]
    for part in _merged_by_name(others):
        entry, usual, shapes = part[0].entry, main[0].shapes, part[0].shapes
        names = [name for name, shape in shapes.items() if usual.get(name) != shape]
        listed = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
        if _is_model(part):
            which = f"{len(part)} checkpoints have" if len(part) > 1 else "has"
            what = f"other tensors ({listed})" if names else f"only {len(shapes)} of {len(usual)} tensors"
            commands = lint_commands([own, [m.named for m in part]])
            why = f"two series? {which} {what}, not checked. Check each: {commands}"
            yield Finding(entry.step, "", "mixed", why, entry.label)
        else:
            which = f"{_files(part[0].named, len(part))}tensors {listed}"
            yield _data(
                entry.step, entry.label, which, without(own, [m.named for m in part], "normgrowth lint ")
            )


def unreadable(files: Sequence[UnreadFile], own: Sequence[Named]) -> Iterator[Finding]:
    """Yield a finding for each file that is named like the series, and for each other name pattern of files."""
    named = [(file.label, file.step) for file in files]
    patterns = {name_pattern(*checkpoint) for checkpoint in own}
    for group in by_foreign_pattern(named, own):
        file, others = files[group[0]], _files(named[group[0]], len(group))
        advice = without(own, [named[i] for i in group], "normgrowth lint ")
        if name_pattern(*named[group[0]]) not in patterns and all(files[i].is_data for i in group):
            yield _data(file.step, file.label, others + file.reason, advice)
        else:
            which = f" ({others}for example {file.label})" if others else ""
            why = f"cannot be read{which}: {file.reason}{others and advice}"
            yield Finding(file.step, "", "partial", why, file.label)


def _files(first: Named, count: int) -> str:
    return f"{count} files {any_number(*first)}, " if count > 1 else ""


def _data(step: int | None, label: str, which: str, advice: str) -> Finding:
    why = f"data, not a model ({which}): not part of the series, not checked{advice}"
    return Finding(step, "", "data", why, label, "remark")


def _merged_by_name(parts: Sequence[Sequence[Member]]) -> list[list[Member]]:
    """Merge parts that are named alike: data files differ in their tensors, and so do models of several sizes."""
    found: list[list[Member]] = []
    for members in (
        [member for part in parts if _is_model(part) is model for member in part] for model in (True, False)
    ):
        named = [member.named for member in members]
        found += [[members[i] for i in group] for group in by_pattern(named)]
    return found


def named_apart(e: StepTable) -> list[list[int]]:
    """Return rows grouped by file name pattern, if there are several patterns with at least two checkpoints each."""
    parts = by_pattern([(sample.label, sample.step) for sample in e.sampled])
    return parts if len(parts) > 1 and all(len(part) > 1 for part in parts) else []


def two_runs(e: StepTable, parts: Sequence[Sequence[int]]) -> Finding:
    commands = lint_commands(
        [[(e.sampled[row].label, e.sampled[row].step) for row in part] for part in parts]
    )
    why = f"{len(parts)} series? Files named alike continue from each other, the others do not. Check each: {commands}"
    return e.finding(parts[1][0], "", "mixed", why.replace("2 series", "two series", 1))


def _distinct(group: Sequence[Member]) -> list[Mapping[str, Shape]]:
    found: list[Mapping[str, Shape]] = []
    for member in group:
        if member.shapes not in found:
            found.append(member.shapes)
    return found


def _related(a: Mapping[str, Shape], b: Mapping[str, Shape]) -> bool:
    """Whether two checkpoints may belong to one model: at most half of the tensors are missing, renamed or reshaped."""
    if a == b:
        return True
    few, many = sorted((len(a), len(b)))
    same = sum(b.get(name) == shape for name, shape in a.items())
    renamed = (Counter(a.values()) & Counter(b.values())).total()
    reshaped = sum(prod(b[name]) == prod(shape) for name, shape in a.items() if name in b)
    return 2 * same >= few or 2 * renamed >= many or 2 * reshaped >= many


def _by_name(group: list[Member]) -> list[list[Member]]:
    """Split a group by file name pattern if no two patterns have a checkpoint with the same tensors."""
    parts = [[group[i] for i in part] for part in by_pattern([m.named for m in group])]
    if len(parts) < 2 or any(len(part) < 2 for part in parts):
        return [group]
    indexes = [{frozenset(shapes.items()) for shapes in _distinct(part)} for part in parts]
    apart = all(not indexes[i] & indexes[j] for i in range(len(parts)) for j in range(i))
    return parts if apart else [group]


def _is_model(part: Sequence[Member]) -> bool:
    names = list(part[0].shapes)
    return 2 * sum(_PARAMETER.search(name) is not None for name in names) >= len(names)
