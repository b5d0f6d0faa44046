"""Sweep: the result of `sweep`."""

from dataclasses import dataclass
from math import nan
from typing import ClassVar

from normgrowth.checkpoints.selection import Selection
from normgrowth.lab.cells.axis import Axis
from normgrowth.lab.run import CorpusSummary
from normgrowth.lab.settings import TrainSettings
from normgrowth.results import Result


@dataclass(frozen=True)
class Edge:
    """Where growth ends in one column of a sweep.

    value: where the norm neither grows nor falls; 0 or infinity beyond all rows, NaN where lost cells hide it.
    below, above: the last row that grows, the first that falls. monotone: no trained cell contradicts it.
    predicted: for random gradients. alignment_share, step_share: what these terms give, of what decay takes.
    """

    x: float | str | bool | int | None
    value: float
    below: float
    above: float
    monotone: bool
    predicted: float
    alignment_share: float
    step_share: float


@dataclass(frozen=True, kw_only=True)
class Sweep(Result):
    """A grid of runs over two settings: what became of each cell, and where growth ends in each column."""

    kind: ClassVar[str] = "sweep"

    settings: TrainSettings
    x: Axis
    y: Axis
    corpus: CorpusSummary
    cells: int = 0  # trained
    of: int = 0  # cells of the grid
    lost: tuple[
        tuple[int, int], ...
    ] = ()  # column and row: killed or out of memory, whether they grow is unknown
    refine: bool = False  # only cells around the edge were trained
    limit: float | None = None  # seconds for each cell
    together: int = 0  # cells of the largest stack
    selection: Selection | None = None  # the parameters that norms count; None: unknown

    @property
    def edges(self) -> tuple[Edge, ...]:
        """One for each value of x; none where y is no number."""
        rows: dict[str, list[float]] = {}
        for row in self.records.where(level="column").table.to_pylist():
            rows.setdefault(row["quantity"], []).append(row["value"])
        names = ("edge", "edge_below", "edge_above", "once", "edge_predicted", "edge_alignment", "edge_steps")
        columns = zip(*(rows.get(name, [nan] * len(self.x.values)) for name in names), strict=True)
        found = [
            Edge(x, value, below, above, bool(once), *shares)
            for x, (value, below, above, once, *shares) in zip(self.x.values, columns, strict=True)
        ]
        return tuple(found) if rows else ()
