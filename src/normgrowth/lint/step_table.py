"""A table of all sampled steps, the input of the checks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.checkpoints.checkpoint import Tensor
from normgrowth.checkpoints.parameters.parameter_names import Reading, read_names
from normgrowth.lint.checks.trajectory import Trajectory
from normgrowth.moments.moments import Floats, Moments, quantities
from normgrowth.trace.measured_steps import tied_copies
from normgrowth.trace.sampling.finding import Finding, Kind, Severity
from normgrowth.trace.sampling.sampled_steps import SampledStep

LOST = 1e-24  # ratio of squared norms: the direction of weights that shrank below this is only rounding error


@dataclass(frozen=True)
class StepTable:
    """All sampled steps: rows are checkpoints, columns are tensors under their first name."""

    sampled: Sequence[SampledStep]
    origin: Mapping[tuple[str, tuple[int, ...]], Floats]  # first values, which are subtracted in the sketches

    @cached_property
    def names(self) -> list[str]:
        return list(self.index)

    @cached_property
    def column(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    @cached_property
    def index(self) -> dict[str, Tensor]:
        """Return every tensor with the dtype and shape of its first appearance."""
        found: dict[str, Tensor] = {}
        for sample in self.sampled:
            for name, dtype, shape in zip(sample.names, sample.dtypes, sample.shapes, strict=True):
                found.setdefault(name, Tensor(dtype, shape))
        return found

    @cached_property
    def readings(self) -> dict[str, Reading]:
        """Return the layer and role of every tensor."""
        return read_names(self.index, include="all")

    def _table(self, field: str, absent: Any, kind: Any) -> NDArray[Any]:
        table = np.full((len(self.sampled), len(self.names)), absent, kind)
        for row, sample in zip(table, self.sampled, strict=True):
            row[[self.column[name] for name in sample.names]] = getattr(sample, field)
        return table

    @cached_property
    def square(self) -> Floats:
        return self._table("square", np.nan, np.float64)

    @cached_property
    def nonfinite(self) -> Floats:
        return self._table("nonfinite", 0, np.float64)

    @cached_property
    def numel(self) -> Floats:
        return self._table("numel", 0, np.float64).max(axis=0, initial=0)

    @cached_property
    def delta(self) -> Floats:
        return self._table("delta", np.nan, np.float64)

    @cached_property
    def changed(self) -> Floats:
        return self._table("changed", np.nan, np.float64)

    @cached_property
    def pattern(self) -> NDArray[np.object_]:
        return self._table("patterns", "", object)

    @cached_property
    def unchanged(self) -> NDArray[np.bool_]:
        """Return which tensors equal those of the previous row. Infinite values (a mask) are judged by the sample."""
        return (self.delta == 0) | (np.isnan(self.delta) & (self.nonfinite > 0) & (self.changed == 0))

    def cosine(self, row: int, name: str = "") -> float | None:
        """Return the exact cosine to the previous row, of a tensor or of the model as a trace counts it.

        NaN if the cosine is undefined; None if the two rows have no common sums.
        """
        sample = self.sampled[row]
        items = (
            [sample.index[name]] if name else [sample.index[n] for n in sample.names if n not in self.copies]
        )
        largest = np.zeros(len(sample.names))  # not stored, and not needed here
        moments = Moments(sample.numel, sample.square, largest, sample.nonfinite, {"previous": sample.pair})
        chosen = moments.chosen(items)
        if row == 0 or not np.isfinite(chosen.against["previous"].delta).all():
            return None
        whole = chosen.grouped([0] * len(items), 1)
        if whole.square[0] < LOST * whole.against["previous"].square[0]:
            return float("nan")
        return float(quantities(whole)["cosine"][0])

    @cached_property
    def copies(self) -> set[str]:
        """Return heads that are stored copies of the embedding they are tied to; a trace counts them once."""

        def sums(reading: Reading) -> tuple[float, ...]:
            column = self.column[reading.name]
            return (self.numel[column], *self.square[:, column]) if self.square[0, column] > 0 else ()

        return set(tied_copies((self.readings[name] for name in self.names), sums))

    def finding(self, row: int, name: str, kind: Kind, why: str, severity: Severity = "fault") -> Finding:
        sample = self.sampled[row]
        return Finding(sample.step, sample.spelling(name) if name else "", kind, why, sample.label, severity)

    def step(self, row: int) -> str:
        return f"step {self.sampled[row].step}"

    def routes(self) -> Trajectory | None:
        """Return the trajectory of the tensors that the checkpoints have in common; None if there are none.

        A checkpoint is left out if half of these tensors are missing or not finite. Otherwise, it would remove
        these tensors for all checkpoints.
        """
        shapes = [dict(zip(sample.names, sample.shapes, strict=True)) for sample in self.sampled]
        usual = [Counter(found.get(name) for found in shapes).most_common(1)[0][0] for name in self.names]
        alike = np.array(
            [[f.get(name) == shape for name, shape in zip(self.names, usual, strict=True)] for f in shapes]
        )
        sound = alike & (self.nonfinite == 0) & (self.numel > 0) & [shape is not None for shape in usual]
        often = 2 * sound.sum(axis=0) > len(self.sampled)
        rows = np.flatnonzero(2 * sound[:, often].sum(axis=1) > often.sum())
        columns = np.flatnonzero(sound[rows].all(axis=0)) if len(rows) else rows
        if len(rows) < 2 or not len(columns):
            return None
        names = [self.names[i] for i in columns]
        parts = [_parts(self.sampled[row]) for row in rows.tolist()]
        sizes = [len(parts[0][name]) for name in names]
        delta = self.delta[np.ix_(rows[1:], columns)]
        moved = delta > 0
        moving = moved.any(axis=0) & (2 * moved.sum(axis=0) >= moved.any(axis=1).sum())
        delta = np.where(moved, delta, np.nan)
        # Gains and biases start with the same values in every run, so matrices represent the model if there are any.
        matrix = moving & np.array([len(usual[i] or ()) > 1 for i in columns])
        return Trajectory(
            rows.tolist(),
            names,
            np.concatenate([self.origin[self.names[i], usual[i] or ()] for i in columns]),
            np.stack([np.concatenate([part[name] for name in names]) for part in parts]),
            np.cumsum([0, *sizes[:-1]]),
            self.numel[columns] / np.array(sizes),
            np.array([np.nanmedian(delta[:, i]) if moves else 0.0 for i, moves in enumerate(moving)]),
            matrix if matrix.any() else moving,
            self.delta[np.ix_(rows, columns)],
        )


def _parts(sample: SampledStep) -> dict[str, NDArray[np.float32]]:
    return dict(zip(sample.names, np.split(sample.sketch, sample.ends[:-1]), strict=True))
