"""A sweep as arrays, for tables, figures and sentences."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import InputError

if TYPE_CHECKING:
    from normgrowth.lab.sweep_result import Sweep

Floats = NDArray[np.float64]


def fractional_rows(values: Floats, rows: Sequence[Any]) -> Floats:
    """The fractional row of each value, interpolated logarithmically if rows are positive; NaN outside the rows."""
    try:
        known = np.array(rows, float)
    except (TypeError, ValueError):
        return np.full(len(values), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        place, scale = (np.log(values), np.log(known)) if (known > 0).all() else (values, known)
    if len(known) < 2 or not (np.diff(scale) > 0).all():
        return np.full(len(values), np.nan)
    return np.interp(place, scale, np.arange(len(known), dtype=float), left=np.nan, right=np.nan)


class SweepGrid:
    """The cells of a sweep by column and row, and its edges by column."""

    def __init__(self, result: "Sweep") -> None:
        self.result, self.records = result, result.records
        self.run = self.records.distinct("run")[0] if len(self.records) else "sweep"
        self.x, self.y = result.x, result.y
        self.shape = len(self.x.values), len(self.y.values)

    @cached_property
    def _cells(self) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for row in self.records.where(level="cell").to_rows():
            found.setdefault(row["quantity"], {})[row["name"]] = row["value"]
        return found

    def cell(self, quantity: str) -> Floats:
        """A quantity of each cell, columns × rows; NaN where no cell was trained."""
        values, places = self._cells.get(quantity, {}), []
        for axis in (self.x, self.y):
            known = self._cells.get(axis.setting, {})
            listed = [float(value) if axis.numbers else float(i) for i, value in enumerate(axis.values)]
            places.append({name: listed.index(value) for name, value in known.items() if value in listed})
        found = np.full(self.shape, np.nan)
        for name, value in values.items():
            if not all(name in place for place in places):
                raise InputError(f"{self.run}: cell {name!r} is not on the grid of the sweep")
            found[places[0][name], places[1][name]] = value
        return found

    def column(self, quantity: str) -> Floats:
        rows = self.records.where(level="column", quantity=quantity)
        if len(rows) not in (0, self.shape[0]):
            raise InputError(f"{self.run}: {len(rows)} columns have {quantity}, the grid has {self.shape[0]}")
        return rows.table["value"].to_numpy() if len(rows) else np.full(self.shape[0], np.nan)

    def at_edge(self, quantity: str) -> Floats:
        """A quantity at the edge of each column, between the cells on its two sides; NaN where the edge is outside."""
        growth, values = self.cell("growth"), self.cell(quantity)
        found = np.full(self.shape[0], np.nan)
        rows = [float(value) for value in self.y.values] if self.y.numbers else []
        for i, sides in enumerate(zip(self.column("edge_below"), self.column("edge_above"), strict=True)):
            if all(side in rows for side in sides):
                low, high = (rows.index(side) for side in sides)
                if growth[i, low] > growth[i, high]:
                    weight = growth[i, low] / (growth[i, low] - growth[i, high])  # where growth is 0
                    found[i] = values[i, low] + weight * (values[i, high] - values[i, low])
        return found

    @property
    def additive_edges(self) -> bool:
        """Whether alignment and steps each balance a share of the decay: neither is negative at any edge."""
        shares = np.concatenate([self.column(f"edge_{term}") for term in ("alignment", "steps")])
        shares = shares[np.isfinite(shares)]
        return bool(((shares >= 0) & (shares <= 1)).all())

    def edge_terms(self) -> dict[str, Floats]:
        """Title -> the terms of the growth of ‖θ‖² at each edge; as shares of the decay if none is negative."""
        if self.additive_edges:
            return {
                f"decay balanced\nby {term}": self.column(f"edge_{term}") for term in ("alignment", "steps")
            }
        terms = ("alignment", "steps", "decay")
        return {f"growth of ‖θ‖²\nby {term}": self.at_edge(f"growth_{term}") for term in terms}

    @cached_property
    def log_factor(self) -> Floats:
        """log₁₀ of the final norm divided by the initial norm."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log10(self.cell("factor"))

    @cached_property
    def lost(self) -> NDArray[np.bool_]:
        """Cells whose workers died, so that their growth is unknown."""
        found = np.zeros(self.shape, bool)
        for cell in self.result.lost:
            if all(0 <= place < size for place, size in zip(cell, self.shape, strict=True)):
                found[cell] = True
        return found

    @cached_property
    def diverged(self) -> NDArray[np.bool_]:
        return self.cell("diverged") == 1
