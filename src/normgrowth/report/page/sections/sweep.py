"""A sweep: where the norm grows over two settings, and where growth ends."""

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from normgrowth.lab.sweep_result import Sweep
from normgrowth.report.figures.sweep import MOST, WORDS
from normgrowth.report.numbers import number, percent, signed, times
from normgrowth.report.page.content import Content
from normgrowth.report.page.pieces import (
    ChartAxis,
    ChartCurve,
    Column,
    Floats,
    Map,
    Section,
    SummaryRow,
    Table,
    column,
)
from normgrowth.report.sentences.sweep import edge_in_words, sentences
from normgrowth.report.sweep_grid import SweepGrid
from normgrowth.report.terminal.console import one_line
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
        items += [_phase(one, place, name), _edges(one, name)]
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
        rows = _rows(found.column(quantity), found.y.values)
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
    return Map(f"phase-{place}", title, alt, x, y, factor, texts, MOST, over=over)


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


def _rows(values: Floats, rows: Sequence[Any]) -> Floats:
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


def _edges(found: SweepGrid, name: str) -> Table:
    names = [number(v, 3) if isinstance(v, float) else str(v) for v in found.x.values]
    numbers = [float(v) if isinstance(v, float) else float(i) for i, v in enumerate(found.x.values)]
    edges = [float(value) for value in found.column("edge")]
    columns = [
        Column(str(found.x.setting), names, numbers),
        Column(f"growth ends at {found.y.setting}", [edge_in_words(edge) for edge in edges], edges),
    ]
    ends = {"not below": "edge_below", "not above": "edge_above", "for random gradients": "edge_predicted"}
    write_term = percent if found.additive_edges else signed
    for title, given, write in (
        *((title, found.column(quantity), lambda x: number(x, 3)) for title, quantity in ends.items()),
        *((one_line(title), terms, write_term) for title, terms in found.edge_terms().items()),
    ):
        values = [float(value) for value in given]
        if any(map(isfinite, values)):
            columns.append(column(title, values, write))
    return Table(f"The edge of growth{f': {name}' if name else ''}", columns)
