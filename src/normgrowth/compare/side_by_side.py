"""Compare the growth of two traces at a common step."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan

import numpy as np

from normgrowth.compare.result import ComparedRow, Side, Values
from normgrowth.errors import InputError
from normgrowth.records import Block, Matrix, Records
from normgrowth.trace.result import Trace

Thing = tuple[str, str]  # level and name
# field of `Values` -> quantity and reference
QUANTITIES = {
    "norm": ("norm", None),
    "cosine_first": ("cosine", "first"),
    "alignment": ("alignment", None),
    "total_share_steps": ("total_share_steps", None),
    "total_growth": ("total_growth", None),
    "total_growth_steps": ("total_growth_steps", None),
    "total_growth_alignment": ("total_growth_alignment", None),
}


class _Grids:
    """The quantities of one trace. Each is read once, because a trace may have millions of rows."""

    def __init__(self, trace: Trace) -> None:
        trace.records.single_run()
        levels = {level: trace.records.where(level=level) for level in ("layer", "model")}
        self.grids: dict[tuple[str, str], Matrix] = {
            (level, field): rows.matrix(quantity, level=level, reference=reference)
            for level, rows in levels.items()
            for field, (quantity, reference) in QUANTITIES.items()
        }
        if not self.grids["model", "norm"].names:
            raise InputError(
                f"{trace.source or trace.run}: contains no norm of a model, so it is not a trace"
            )
        self.steps = [int(step) for step in self.grids["model", "norm"].steps]

    def things(self) -> list[Thing]:
        return [(level, name) for level in ("layer", "model") for name in self.grids[level, "norm"].names]

    def values(self, thing: Thing, step: int) -> Values:
        found = {field: self._value(thing, field, step) for field in QUANTITIES}
        first = self._value(thing, "norm", self.steps[0])
        found["factor"] = found["norm"] / first if first > 0 else nan
        return Values(**{field: value if isfinite(value) else None for field, value in found.items()})

    def _value(self, thing: Thing, field: str, step: int) -> float:
        level, name = thing
        grid = self.grids[level, field]
        at = np.flatnonzero(grid.steps == step)
        return float(grid.curve(name)[at[0]]) if len(at) else nan


@dataclass(frozen=True)
class GrowthSideBySide:
    """One row per layer, and a last row for the model. matched: both sides are evaluated at the same step."""

    a: Side
    b: Side
    matched: bool
    rows: tuple[ComparedRow, ...]
    records: Records


def growth_side_by_side(a: Trace, b: Trace) -> GrowthSideBySide:
    """Return norm, growth, direction and budget of each layer and of the model, in two traces."""
    traces = (a, b)
    grids = [_Grids(trace) for trace in traces]
    steps, matched = _common_step(*(one.steps for one in grids))
    things = sorted(dict.fromkeys(thing for one in grids for thing in one.things()), key=_model_last)
    rows = tuple(
        ComparedRow(*thing, *(one.values(thing, step) for one, step in zip(grids, steps, strict=True)))
        for thing in things
    )
    sides = [
        Side(
            trace.source or trace.run,
            trace.run,
            step,
            trace.parameters,
            trace.ranks,
            trace.counted.dtypes if trace.counted else {},
            trace.compute_dtypes,
            trace.counted.of_tensors - trace.counted.tensors if trace.counted else 0,
        )
        for trace, step in zip(traces, steps, strict=True)
    ]
    return GrowthSideBySide(sides[0], sides[1], matched, rows, _records(sides, rows))


def _common_step(a: Sequence[int], b: Sequence[int]) -> tuple[tuple[int, int], bool]:
    common = set(a) & set(b)
    if len(a) > 1 or len(b) > 1:
        common -= {a[0], b[0]}
    return ((max(common), max(common)), True) if common else ((a[-1], b[-1]), False)


def _model_last(thing: Thing) -> bool:
    return thing[0] == "model"


def _records(sides: Sequence[Side], rows: Sequence[ComparedRow]) -> Records:
    """Return the values of both sides as records of the runs "a" and "b"."""
    parts = []
    for run, side in zip("ab", sides, strict=True):
        blocks = []
        for level in ("layer", "model"):
            own = [row for row in rows if row.level == level]
            none = [None] * len(own)
            for field, (quantity, reference) in {**QUANTITIES, "factor": ("factor", None)}.items():
                values = [getattr(row.a if run == "a" else row.b, field) for row in own]
                column = np.array([[nan if value is None else value for value in values]])
                names = [row.name for row in own]
                blocks.append(Block(level, names, none, none, [side.step], {quantity: column}, reference))
        parts.append(Records.from_blocks(run, blocks))
    return Records.joined(parts)
