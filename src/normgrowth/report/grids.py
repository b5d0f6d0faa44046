"""Records as matrices, steps × layers, for tables and figures."""

from dataclasses import replace
from functools import cached_property
from math import isfinite, nan

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import InputError
from normgrowth.fit.vector_share import layers_level, vector_share
from normgrowth.lab.run import Run
from normgrowth.records import Matrix, Records
from normgrowth.results import Result
from normgrowth.trace.result import DOMINANT, LAYER_MATRICES, MATRICES, Trace

LARGEST = 1e300  # larger values overflow the range of an axis


def grids_of_trace(given: Records | Result) -> "Grids":
    """The grids of a trace. Raises InputError if the records lack the norm of the model."""
    grids = Grids(given)
    if not grids.of("model", "norm").names:
        raise InputError("these records are not from a trace: they lack the norm of the model")
    return grids


class Grids:
    """The quantities of one run as matrices, each computed once: records of tensors can have millions of rows."""

    def __init__(self, given: Records | Result) -> None:
        records = given.records if isinstance(given, Result) else given
        self.run = records.single_run()
        # A tracker compares single training steps, a trace neighboring checkpoints.
        self.tracked = given.tracked if isinstance(given, Trace) else isinstance(given, Run)
        self._records = records
        self._grids: dict[tuple[str, str, str | None, float | None], Matrix] = {}
        found = (self.of(level, "norm").steps for level in ("model", "layer", "role"))
        self.steps = [int(step) for step in next((steps for steps in found if len(steps)), ())]

    @property
    def tokens(self) -> float | None:
        """The training tokens up to the last step, if known."""
        import pyarrow.compute as pc

        table = self._records.table
        return pc.max(table["tokens"]).as_py() if "tokens" in table.column_names else None  # pyright: ignore[reportAttributeAccessIssue]

    def of(
        self, level: str, quantity: str, reference: str | None = None, scale: float | None = None
    ) -> Matrix:
        key = level, quantity, reference, scale
        if key not in self._grids:
            grid = self._records.matrix(quantity, level=level, reference=reference, scale=scale)
            drawable = np.abs(grid.values) <= LARGEST
            self._grids[key] = replace(grid, values=np.where(drawable, grid.values, np.nan))
        return self._grids[key]

    def model(
        self, quantity: str, reference: str | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Steps and values where the quantity of the model is finite."""
        return self._finite("model", "model", quantity, reference)

    def leading(
        self, quantity: str, reference: str | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Steps and values where the quantity of what leads is finite."""
        return self._finite(*self.lead, quantity, reference)

    def _finite(
        self, level: str, name: str, quantity: str, reference: str | None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        grid = self.of(level, quantity, reference)
        values = grid.curve(name) if name in grid.names else np.zeros(0)
        good = np.isfinite(values)
        return grid.steps[good], values[good]

    def budget(self) -> tuple[float, float, float] | None:
        """Growth of the squared norm of what leads, by alignment and by steps, at the last step with all three."""
        level, name = self.lead
        terms = [self.of(level, f"total_growth{term}") for term in ("", "_alignment", "_steps")]
        if not all(grid.names and len(grid.steps) == len(terms[0].steps) for grid in terms):
            return None
        rows = np.stack([grid.curve(name) for grid in terms], axis=1)
        rows = rows[np.isfinite(rows).all(axis=1)]
        return (float(rows[-1, 0]), float(rows[-1, 1]), float(rows[-1, 2])) if len(rows) else None

    def value(
        self,
        level: str,
        name: str,
        quantity: str,
        step: int,
        reference: str | None = None,
        scale: float | None = None,
    ) -> float:
        grid = self.of(level, quantity, reference, scale)
        row = int(np.searchsorted(grid.steps, step))
        if name not in grid.names or row == len(grid.steps) or grid.steps[row] != step:
            return nan
        return float(grid.values[row, grid.names.index(name)])

    def factor(self, level: str, name: str, step: int) -> float:
        """The norm at a step divided by the norm at the first step."""
        first = self.value(level, name, "norm", self.steps[0])
        return self.value(level, name, "norm", step) / first if first > 0 else nan

    def extreme_layers(self) -> tuple[tuple[str, float], tuple[str, float]] | None:
        """The layers that grew most and least, with their factors; at a single step, the largest and smallest norms."""
        if not self.steps:
            return None
        last, grown, level = self.steps[-1], len(self.steps) > 1, self.layer_level
        found = {
            name: self.factor(level, name, last) if grown else self.value(level, name, "norm", last)
            for name in self.of(level, "norm").names
        }
        ranked = sorted((item for item in found.items() if isfinite(item[1])), key=lambda item: -item[1])
        if len(ranked) < 2 or ranked[0][1] == ranked[-1][1]:
            return None
        return ranked[0], ranked[-1]

    def additive_terms(self) -> bool:
        """Whether neither term, steps or alignment, is negative, so that each is a share of the growth."""
        shares = [self.value(*thing, "total_share_steps", self.steps[-1]) for thing in self.things()]
        return all(0 <= share <= 1 for share in shares if isfinite(share))

    def things(self) -> list[tuple[str, str]]:
        """Layers in order, then the model, each as level and name; the matrices come first if they lead."""
        levels = (self.layer_level, "model")
        layers = [(level, name) for level in levels for name in self.of(level, "norm").names]
        return [("part", MATRICES), *layers] if self.matrices_lead else layers

    @property
    def lead(self) -> tuple[str, str]:
        """What shows the growth, as level and name: the matrices if they lead, else the model."""
        return ("part", MATRICES) if self.matrices_lead else ("model", "model")

    @cached_property
    def layer_level(self) -> str:
        """The level of the layers that are shown: their matrices, if matrices lead and the records have them."""
        return layers_level(self._records, self.vector_share)

    @property
    def of_layers(self) -> str:
        """What titles say of layers: " (matrices)" if only their matrices are shown."""
        return " (matrices)" if self.layer_level == LAYER_MATRICES else ""

    @cached_property
    def vector_share(self) -> float:
        """The share of gains, biases and other vectors in ‖θ‖², the larger of the first and the last step; else 0."""
        return vector_share(self._records)

    @property
    def matrices_lead(self) -> bool:
        """Whether vectors make so much of ‖θ‖² that the norms of layers and model hide the growth of the matrices."""
        return self.vector_share > DOMINANT
