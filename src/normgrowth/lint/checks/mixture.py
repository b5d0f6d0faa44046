"""Checkpoints of one folder that are not one series: other models beside it, data files, two runs."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from normgrowth.checkpoints.checkpoint import Tensor
from normgrowth.checkpoints.name_globs import by_pattern, lint_commands
from normgrowth.checkpoints.parameter_names import Reading
from normgrowth.checkpoints.series import Entry
from normgrowth.lint.finding import Finding
from normgrowth.lint.step_table import StepTable

Shape = tuple[int, ...]
SHOWN = 3  # tensors of another model or data file that are named
_PARAMETER = re.compile(
    r"(^|[._/])(weight|bias|kernel|gamma|beta|scale|gain|embeddings?|lora_\w+|[wb](_?[a-z])?\d*)(_[gv]|\.default)?$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Member:
    """One checkpoint, by what its index says."""

    entry: Entry
    shapes: Mapping[str, Shape]  # of parameters; of all tensors where there are none
    counted: bool  # whether any tensor of it is to be checked

    @property
    def named(self) -> tuple[str, int]:
        return self.entry.label, self.entry.step

    @staticmethod
    def of(entry: Entry, tensors: Mapping[str, Tensor], readings: Mapping[str, Reading]) -> "Member":
        parameters = [name for name, r in readings.items() if r.role not in ("buffer", "optimizer")]
        shapes = {name: tensors[name].shape for name in parameters or tensors}
        return Member(entry, shapes, any(reading.counted for reading in readings.values()))


@dataclass
class Mixture:
    """The checkpoints of a source, grouped by their tensors as they are opened."""

    groups: list[list[Member]] = field(default_factory=list)

    def add(self, member: Member) -> bool:
        """Whether it belongs to the first group that has tensors to check."""
        for group in self.groups:
            if any(_related(shapes, member.shapes) for shapes in _distinct(group)):
                group.append(member)
                break
        else:
            group = [member]
            self.groups.append(group)
        return group is next((group for group in self.groups if group[0].counted), None)

    def series(self) -> tuple[list[Member], list[list[Member]]]:
        """The series to check, and the others: a model before data, then the one with the most checkpoints."""
        parts = [part for group in self.groups for part in _by_name(group)]
        main = max(parts, key=lambda part: (part[0].counted, _is_model(part), len(part)), default=[])
        return main, [part for part in parts if part is not main]


def other_series(main: Sequence[Member], others: Sequence[Sequence[Member]]) -> Iterator[Finding]:
    """A finding for each other series, model or kind of data file, none of which is checked."""
    for part in others:
        entry, usual, shapes = part[0].entry, main[0].shapes, part[0].shapes
        names = [name for name, shape in shapes.items() if usual.get(name) != shape]
        listed = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
        if _is_model(part):
            which = f"{len(part)} checkpoints have" if len(part) > 1 else "has"
            what = f"other tensors ({listed})" if names else f"only {len(shapes)} of {len(usual)} tensors"
            commands = lint_commands([[m.named for m in main], [m.named for m in part]])
            why = f"two series? {which} {what}, not checked. Check each: {commands}"
            yield Finding(entry.step, "", "mixed", why, entry.label)
        else:
            files = f"{len(part)} files, " if len(part) > 1 else ""
            why = f"data, not a model ({files}tensors {listed}): not part of the series, not checked"
            yield Finding(entry.step, "", "data", why, entry.label, "remark")


def named_apart(e: StepTable) -> list[list[int]]:
    """Rows by the names of their files, if these tell two series or more of at least two checkpoints each."""
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
    """Whether two checkpoints may be of one model: some tensors missing, renamed or reshaped, but not most."""
    if a == b:
        return True
    few, many = sorted((len(a), len(b)))
    same = sum(b.get(name) == shape for name, shape in a.items())
    renamed = (Counter(a.values()) & Counter(b.values())).total()
    reshaped = sum(prod(b[name]) == prod(shape) for name, shape in a.items() if name in b)
    return 2 * same >= few or 2 * renamed >= many or 2 * reshaped >= many


def _by_name(group: list[Member]) -> list[list[Member]]:
    """Two models of one family: files named otherwise have other tensors throughout."""
    parts = [[group[i] for i in part] for part in by_pattern([m.named for m in group])]
    if len(parts) < 2 or any(len(part) < 2 for part in parts):
        return [group]
    indexes = [{frozenset(shapes.items()) for shapes in _distinct(part)} for part in parts]
    apart = all(not indexes[i] & indexes[j] for i in range(len(parts)) for j in range(i))
    return parts if apart else [group]


def _is_model(part: Sequence[Member]) -> bool:
    names = list(part[0].shapes)
    return 2 * sum(_PARAMETER.search(name) is not None for name in names) >= len(names)
