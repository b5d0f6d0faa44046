"""Sweep: the result of `sweep`."""

from dataclasses import dataclass
from math import nan
from typing import ClassVar

from normgrowth.checkpoints.parameters.selection import CountedParameters, Selection
from normgrowth.lab.cells.axis import Axis
from normgrowth.lab.run import CorpusSummary
from normgrowth.lab.settings import TrainSettings
from normgrowth.results import Result


@dataclass(frozen=True)
class Edge:
    """Where growth ends in one column of a sweep.

    value: where the norm neither grows nor falls; 0 or infinity if outside the grid, NaN if lost cells may hide it.
    below, above: the last row that grows, the first row that falls. monotone: no trained cell contradicts the edge.
    predicted: the edge for random gradients. alignment_share, step_share: contributions of these terms at the edge, as
    fractions of the loss to decay.
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
    """A grid of runs over two settings: the outcome of each cell, and where growth ends in each column."""

    kind: ClassVar[str] = "sweep"

    settings: TrainSettings
    x: Axis
    y: Axis
    corpus: CorpusSummary
    cells: int = 0  # number of trained cells
    of: int = 0  # number of cells of the grid
    # Column and row of cells without an outcome (killed or out of memory).
    lost: tuple[tuple[int, int], ...] = ()
    refine: bool = False  # only cells around the edge were trained
    time_limit: float | None = None  # seconds per cell
    stack_size: int = 0  # number of cells in the largest stack
    selection: Selection | None = None  # the counted parameters; None: unknown
    counted: CountedParameters | None = None  # their number, if all cells have the same model

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Return one edge per value of x; empty if y is not numeric."""
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
