"""A sweep: where the norm grows over two settings, and where growth ends."""

from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from normgrowth.lab.sweep_result import Sweep
from normgrowth.report.columns.sweep import edge_columns
from normgrowth.report.figures.sweep import MOST, WORDS
from normgrowth.report.numbers import number, times
from normgrowth.report.page.content import Content
from normgrowth.report.page.pieces import ChartAxis, ChartCurve, Map, Section, SummaryRow
from normgrowth.report.sentences.sweep import sentences
from normgrowth.report.sweep_grid import SweepGrid, fractional_rows
from normgrowth.report.table_columns import Table
from normgrowth.text import visible

MOST_CELLS = 20_000  # larger grids have short tooltips


if TYPE_CHECKING:
    from normgrowth.lab.cells.axis import Axis as SweepAxis


def sections(content: Content) -> list[Section]:
    items: list[Map | Table] = []
    said: list[str] = []
    found = content.results(Sweep)
    for place, result in enumerate(found):
        one = SweepGrid(result)
        said += [f"{visible(one.run)}: {text}" if len(found) > 1 else text for text in sentences(result)]
        name = one.run if len(found) > 1 else ""
        items += [
            _phase(one, place, name),
            Table(f"The edge of growth{f': {name}' if name else ''}", edge_columns(one)),
        ]
    return [Section("sweep", "Where growth ends", said, items)] if items else []


def rows(content: Content) -> list[SummaryRow]:
    """A row for each sweep: in how many cells the norm grows."""
    found = []
    for result in content.results(Sweep):
        grid = SweepGrid(result)
        factor = np.where(grid.diverged, np.nan, grid.log_factor)
        said = f"the norm grows in {int((factor > 0).sum())} of {int(np.isfinite(factor).sum())} cells"
        found.append(SummaryRow(visible(grid.run), "sweep", found=said))
    return found


def summary(content: Content) -> list[str]:
    return [visible(text) for result in content.results(Sweep) for text in sentences(result)[:1]]


def _phase(found: SweepGrid, place: int, name: str) -> Map:
    factor = np.where(found.diverged, np.nan, found.log_factor)
    loss = found.cell("dev_loss")
    short = factor.size > MOST_CELLS
    texts = [
        [_cell(found, i, j, float(factor[i, j]), float(loss[i, j]), short) for j in range(found.shape[1])]
        for i in range(found.shape[0])
    ]
    over = []
    columns = np.arange(found.shape[0], dtype=float)
    for quantity, label, color, dash in (
        ("edge", "growth ends", 0, 0),
        ("edge_predicted", "λ* of random gradients", 1, 1),
    ):
        rows = fractional_rows(found.column(quantity), found.y.values)
        if np.isfinite(rows).any():
            kind = "derived" if dash else "measured"
            said = [f"{label} at {number(value, 3)}" for value in found.column(quantity)]
            over.append(ChartCurve(label, columns, rows, "", color, dash=dash, provenance=kind, said=said))
    x, y = (_axis(axis) for axis in (found.x, found.y))
    grown, trained = int((factor > 0).sum()), int(np.isfinite(factor).sum())
    gone = int(found.diverged.sum())
    more = f"; {gone} cells diverged" if gone else ""
    alt = f"The norm grows in {grown} of {trained} cells{more}. Red: it grows; blue: it falls."
    title = f"Where the norm grows{f': {name}' if name else ''}"
    return Map(f"phase-{place}", title, alt, x, y, factor, texts, MOST, curves=over)


def _axis(axis: "SweepAxis") -> ChartAxis:
    ticks = tuple(number(v, 3) if isinstance(v, float) else str(v) for v in axis.values)
    return ChartAxis(WORDS.get(axis.setting) or axis.setting, ticks=ticks)


def _cell(found: SweepGrid, i: int, j: int, log_factor: float, loss: float, short: bool) -> str:
    if short:
        return (
            "diverged" if found.diverged[i, j] else f"×{10**log_factor:.3g}" if isfinite(log_factor) else "·"
        )
    where = ", ".join(
        f"{axis.setting} {number(v, 3) if isinstance(v := axis.values[k], float) else v}"
        for axis, k in ((found.x, i), (found.y, j))
    )
    if found.diverged[i, j]:
        return f"{where}: diverged"
    if not isfinite(log_factor):
        return f"{where}: not trained"
    return f"{where}: ×{times(10**log_factor)}{f', loss {loss:.3f}' if isfinite(loss) else ''}"
