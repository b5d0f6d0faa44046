"""A sweep in the terminal: the grid in signs, the edge of growth in a table, and what they say."""

from functools import cached_property
from math import isfinite, log10
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import InputError
from normgrowth.records import Records
from normgrowth.report.terminal import Cells, new_console, say, say_remarks, show
from normgrowth.report.wording import number, percent, times

if TYPE_CHECKING:
    from rich.console import Console

Floats = NDArray[np.float64]

GROWS, FALLS, DIVERGED, UNKNOWN = "+", "−", "x", "·"


class Sweep:
    """The records of a sweep as arrays: cells by column and row, edges by column."""

    def __init__(self, records: Records) -> None:
        if records.made_by.get("command") != "sweep":
            raise InputError("these are no records of a sweep")
        self.records, self.made_by = records, records.made_by
        self.run = records.distinct("run")[0] if len(records) else "sweep"
        self.x, self.y = self.made_by["x"], self.made_by["y"]
        self.shape = len(self.x["values"]), len(self.y["values"])

    @cached_property
    def _cells(self) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for row in self.records.where(scope="cell").to_rows():
            found.setdefault(row["quantity"], {})[row["name"]] = row["value"]
        return found

    def cell(self, quantity: str) -> Floats:
        """By column and row; NaN where no cell was trained."""
        values, places = self._cells.get(quantity, {}), []
        for axis in (self.x, self.y):
            known = self._cells.get(axis["setting"], {})
            numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in axis["values"])
            listed = [float(value) if numbers else float(i) for i, value in enumerate(axis["values"])]
            places.append({name: listed.index(value) for name, value in known.items()})
        found = np.full(self.shape, np.nan)
        for name, value in values.items():
            found[places[0][name], places[1][name]] = value
        return found

    def column(self, quantity: str) -> Floats:
        rows = self.records.where(scope="column", quantity=quantity)
        return rows.table["value"].to_numpy() if len(rows) else np.full(self.shape[0], np.nan)

    @cached_property
    def log_factor(self) -> Floats:
        """log₁₀ of the norm at the end over that at the start."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log10(self.cell("factor"))

    @property
    def diverged(self) -> NDArray[np.bool_]:
        return self.cell("diverged") == 1


def print_sweep(records: Records, console: "Console | None" = None) -> None:
    console, found = console or new_console(), Sweep(records)
    settings, corpus = found.made_by["settings"], found.made_by["corpus"]
    shape = f"{settings['kind']}, {settings['layers']} layers of {settings['width']}"
    say(console, f"{found.run}: {shape}, {settings['optimizer']} on {corpus['name']}", "bold")
    for line in _signs(found):
        say(console, line)
    if len(records.where(scope="column")):
        show(console, _edges(found))
    for sentence in sentences(found):
        say(console, sentence)
    say_remarks(console, records)


def _signs(found: Sweep) -> list[str]:
    """The largest row on top, as in Figure 6."""
    factor, diverged = found.log_factor, found.diverged
    names = [_short(value) for value in found.y["values"]]
    width = max(map(len, names))
    lines = [f"{found.y['setting']}, against {found.x['setting']} (columns)"]
    for row in range(found.shape[1] - 1, -1, -1):
        signs = [
            DIVERGED if diverged[i, row] else UNKNOWN if np.isnan(f) else GROWS if f > 0 else FALLS
            for i, f in enumerate(factor[:, row])
        ]
        lines.append(f"{names[row]:>{width}}  {' '.join(signs)}")
    ends = f"{_short(found.x['values'][0])} to {_short(found.x['values'][-1])}"
    lines.append(
        f"{'':>{width}}  {ends}   {GROWS} grows, {FALLS} falls, {DIVERGED} diverged, {UNKNOWN} not trained"
    )
    return lines


def _edges(found: Sweep) -> list[Cells]:
    def cells(title: str, quantity: str, write: Any = None, rank: int = 0) -> Cells | None:
        values = found.column(quantity)
        return (
            Cells(title, [(write or _edge)(v) for v in values], rank) if np.isfinite(values).any() else None
        )

    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = found.column("edge") / found.column("edge_predicted")
    columns = [
        Cells(found.x["setting"], [_short(value) for value in found.x["values"]]),
        Cells(f"growth ends at\n{found.y['setting']}", [_edge(v) for v in found.column("edge")]),
        cells("for random\ngradients", "edge_predicted"),
        Cells("ratio", [times(r) if isfinite(r) and r > 0 else "" for r in ratio], 1)
        if np.isfinite(ratio).any()
        else None,
        cells("of decay, given\nby alignment", "edge_alignment", _share, 2),
        cells("by steps", "edge_steps", _share, 2),
        Cells("sign changes", ["once" if once else "more than once" for once in found.column("once")], 3),
    ]
    return [column for column in columns if column is not None]


def sentences(found: Sweep) -> list[str]:
    grows, diverged = found.log_factor > 0, found.diverged
    trained = int(np.isfinite(found.cell("steps")).sum())
    said = [
        f"{trained} of {found.shape[0] * found.shape[1]} cells were trained: the norm grew in "
        f"{int((grows | diverged).sum())}, {int(diverged.sum())} of these diverged."
    ]
    edge, predicted = found.column("edge"), found.column("edge_predicted")
    inside = np.isfinite(edge) & (edge > 0)
    if not inside.any():
        return (
            [*said, f"Nowhere does growth end within this range of {found.y['setting']}."]
            if edge.size
            else said
        )
    said.append(
        f"Growth ends at {found.y['setting']} {number(float(edge[inside].min()), 3)} to "
        f"{number(float(edge[inside].max()), 3)}, in {int(inside.sum())} of {found.shape[0]} columns."
    )
    x = np.array(found.x["values"], float) if found.x["setting"] == "lr" else None
    if x is not None and inside.sum() > 2:
        slope = np.polyfit(np.log10(x[inside]), np.log10(edge[inside]), 1)[0]
        said.append(f"It moves with the learning rate as η^{slope:.2f}; for random gradients as η^1.00.")
    both = inside & np.isfinite(predicted) & (predicted > 0)
    if both.any():
        ratio = edge[both] / predicted[both]
        said.append(
            f"It is at {number(float(ratio.min()), 3)} to {number(float(ratio.max()), 3)} times λ*, that of random "
            f"gradients (median {number(float(np.median(ratio)), 3)})."
        )
    several = [found.x["values"][i] for i in np.flatnonzero(found.column("once") == 0)]
    if several:
        said.append(
            f"The sign changes more than once at {found.x['setting']} {', '.join(map(_short, several))}."
        )
    return said


def _edge(value: float) -> str:
    return (
        "below all"
        if value == 0
        else "above all"
        if value == np.inf
        else ""
        if np.isnan(value)
        else number(value, 3)
    )


def _share(value: float) -> str:
    return percent(value) if isfinite(value) else ""


def _short(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if value == 0 or -3 <= log10(abs(value)) < 4 else f"{value:.2g}"
