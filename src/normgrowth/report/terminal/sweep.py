"""A sweep in the terminal: the grid in signs, the edge of growth in a table, and what they say."""

from functools import cached_property
from math import isfinite, log10
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import InputError
from normgrowth.records import Records
from normgrowth.report.terminal.console import Cells, say, say_parameters, say_remarks
from normgrowth.report.terminal.console import show as show_table
from normgrowth.report.wording import number, percent, times

if TYPE_CHECKING:
    from rich.console import Console

    from normgrowth.lab.sweep_result import Sweep

Floats = NDArray[np.float64]

GROWS, FALLS, STAYS, DIVERGED, UNKNOWN, LOST = "+", "−", "=", "x", "·", "?"


class SweepGrid:
    """The records of a sweep as arrays: cells by column and row, edges by column."""

    def __init__(self, records: Records) -> None:
        if records.made_by.get("command") != "sweep":
            raise InputError("these are no records of a sweep")
        self.records, self.made_by = records, records.made_by
        self.run = records.distinct("run")[0] if len(records) else "sweep"
        self.x, self.y = self.made_by["x"], self.made_by["y"]
        self.shape = len(self.x["values"]), len(self.y["values"])
        if not all(self.shape):
            raise InputError(f"{self.run}: the grid of this sweep has no cells")

    @cached_property
    def _cells(self) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for row in self.records.where(level="cell").to_rows():
            found.setdefault(row["quantity"], {})[row["name"]] = row["value"]
        return found

    def cell(self, quantity: str) -> Floats:
        """By column and row; NaN where no cell was trained."""
        values, places = self._cells.get(quantity, {}), []
        for axis in (self.x, self.y):
            known = self._cells.get(axis["setting"], {})
            numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in axis["values"])
            listed = [float(value) if numbers else float(i) for i, value in enumerate(axis["values"])]
            places.append({name: listed.index(value) for name, value in known.items() if value in listed})
        found = np.full(self.shape, np.nan)
        for name, value in values.items():
            if not all(name in place for place in places):
                raise InputError(f"{self.run}: the cell {name!r} is not on the grid that the sweep describes")
            found[places[0][name], places[1][name]] = value
        return found

    def column(self, quantity: str) -> Floats:
        rows = self.records.where(level="column", quantity=quantity)
        if len(rows) not in (0, self.shape[0]):
            raise InputError(
                f"{self.run}: {len(rows)} columns have {quantity}, but the grid has {self.shape[0]}"
            )
        return rows.table["value"].to_numpy() if len(rows) else np.full(self.shape[0], np.nan)

    @cached_property
    def log_factor(self) -> Floats:
        """log₁₀ of the norm at the end over that at the start."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log10(self.cell("factor"))

    @cached_property
    def lost(self) -> NDArray[np.bool_]:
        """Cells whose workers died: whether they grow is unknown."""
        found = np.zeros(self.shape, bool)
        for cell in self.made_by.get("lost", []):
            if len(cell) == 2 and all(
                0 <= place < size for place, size in zip(cell, self.shape, strict=True)
            ):
                found[tuple(cell)] = True
        return found

    @cached_property
    def diverged(self) -> NDArray[np.bool_]:
        return self.cell("diverged") == 1


def show(result: "Sweep", console: "Console") -> None:
    records, settings = result.records, result.settings
    found = SweepGrid(records)
    shape = f"{settings.kind}, {settings.layers} layers of {settings.width}"
    say(console, f"{found.run}: {shape}, {settings.optimizer} on {result.corpus.name}", "bold")
    say_parameters(console, records)
    for line in _signs(found):
        say(console, line)
    if len(records.where(level="column")):
        show_table(console, _edges(found))
    for sentence in sentences(found):
        say(console, sentence)
    say_remarks(console, records)


def _signs(found: SweepGrid) -> list[str]:
    """The largest row on top, as in Figure 6."""
    factor, diverged = found.log_factor, found.diverged
    names = [_short(value) for value in found.y["values"]]
    width = max(map(len, names))
    lines = [f"{found.y['setting']}, against {found.x['setting']} (columns)"]
    for row in range(found.shape[1] - 1, -1, -1):
        signs = [
            DIVERGED
            if diverged[i, row]
            else LOST
            if found.lost[i, row]
            else UNKNOWN
            if np.isnan(f)
            else _sign(f)
            for i, f in enumerate(factor[:, row])
        ]
        lines.append(f"{names[row]:>{width}}  {' '.join(signs)}")
    ends = f"{_short(found.x['values'][0])} to {_short(found.x['values'][-1])}"
    stays = f"{STAYS} stays, " if (factor == 0).any() else ""
    lost = f", {LOST} lost" if found.lost.any() else ""
    lines.append(
        f"{'':>{width}}  {ends}   {GROWS} grows, {FALLS} falls, {stays}{DIVERGED} diverged, {UNKNOWN} not trained{lost}"
    )
    return lines


def _sign(log_factor: float) -> str:
    return GROWS if log_factor > 0 else FALLS if log_factor < 0 else STAYS


def _edges(found: SweepGrid) -> list[Cells]:
    def cells(title: str, quantity: str, write: Any = None, rank: int = 0) -> Cells | None:
        values = found.column(quantity)
        return (
            Cells(title, [(write or edge_in_words)(v) for v in values], rank)
            if np.isfinite(values).any()
            else None
        )

    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = found.column("edge") / found.column("edge_predicted")
    columns = [
        Cells(found.x["setting"], [_short(value) for value in found.x["values"]]),
        Cells(f"growth ends at\n{found.y['setting']}", [edge_in_words(v) for v in found.column("edge")]),
        cells("for random\ngradients", "edge_predicted"),
        Cells("ratio", [times(r) if isfinite(r) and r > 0 else "" for r in ratio], 1)
        if np.isfinite(ratio).any()
        else None,
        cells("of decay, given\nby alignment", "edge_alignment", _share, 2),
        cells("by steps", "edge_steps", _share, 2),
        Cells("sign changes", list(map(_changes, found.column("once"), found.column("edge"))), 3),
    ]
    return [column for column in columns if column is not None]


def sentences(found: SweepGrid) -> list[str]:
    grows, diverged = found.log_factor > 0, found.diverged
    trained = int(np.isfinite(found.cell("steps")).sum())
    said = [
        f"{trained} of {found.shape[0] * found.shape[1]} cells were trained: the norm grew in "
        f"{int((grows | diverged).sum())}, {int(diverged.sum())} of these diverged."
    ]
    if lost := int(found.lost.sum()):
        said.append(
            f"{lost} were lost (killed or out of memory): whether they grow is unknown, and edges are interpolated "
            "between trained cells. Run the same command again to train them."
        )
    if timed_out := int((found.cell("timed_out") == 1).sum()):
        limit = found.made_by.get("limit")
        said.append(
            f"{timed_out} ran into the limit{f' of {limit:g} seconds' if limit else ''} and stopped there."
        )
    if rounded := _without_decay(found):
        said.append(
            f"In {rounded} decay took nothing: in single precision 1 − ηλ is 1 where ηλ is below 3·10⁻⁸."
        )
    return said + _said_of_edges(found) if len(found.records.where(level="column")) else said


def _without_decay(found: SweepGrid) -> int:
    """Cells that should decay and move, and whose decay was lost."""
    axes = (found.x["setting"], found.y["setting"])
    given = found.made_by["settings"].get("weight_decay") or 0.0
    decay = found.cell("weight_decay") if "weight_decay" in axes else np.full(found.shape, given)
    return int(((decay > 0) & (found.cell("growth_decay") == 0) & (found.cell("growth") != 0)).sum())


def _said_of_edges(found: SweepGrid) -> list[str]:
    edge, predicted, said = found.column("edge"), found.column("edge_predicted"), []
    inside = np.isfinite(edge) & (edge > 0)
    both = inside & np.isfinite(predicted) & (predicted > 0)
    if inside.any():
        said.append(
            f"Growth ends at {found.y['setting']} {number(float(edge[inside].min()), 3)} to "
            f"{number(float(edge[inside].max()), 3)}, in {int(inside.sum())} of {found.shape[0]} columns."
        )
    else:
        said.append(f"Nowhere does growth end within this range of {found.y['setting']}.")
    if found.x["setting"] == "lr" and (fitted := inside & (np.array(found.x["values"]) > 0)).sum() > 2:
        rates = np.array(found.x["values"])[fitted]
        slope = np.polyfit(np.log10(rates), np.log10(edge[fitted]), 1)[0]
        random = "; for random gradients as η^1.00" if both.any() else ""
        said.append(f"It moves with the learning rate as η^{slope:.2f}{random}.")
    if both.any():
        ratio = edge[both] / predicted[both]
        said.append(
            f"It is at {number(float(ratio.min()), 3)} to {number(float(ratio.max()), 3)} times λ*, that of random "
            f"gradients (median {number(float(np.median(ratio)), 3)})."
        )
    again = found.column("once") == 0
    for columns, what in (
        (again & (edge > 0), "The sign changes more than once"),
        (
            again & (edge == 0),
            f"The norm falls at the least {found.y['setting']}, and grows at a larger one,",
        ),
    ):
        if columns.any():
            values = [found.x["values"][i] for i in np.flatnonzero(columns)]
            said.append(f"{what} at {found.x['setting']} {', '.join(map(_short, values))}.")
    return said


def _changes(once: float, edge: float) -> str:
    return "once" if once else "more than once" if edge > 0 else "falls first"


def edge_in_words(value: float) -> str:
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
