"""A sweep: where the norm grows over two settings, and where growth ends."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np

from normgrowth.records import Records
from normgrowth.report.page.pieces import Axis, Curve, Floats, Map, Section, Table, column, words
from normgrowth.report.sweep import Sweep, sentences
from normgrowth.report.sweep_figures import MOST, WORDS
from normgrowth.report.wording import number, percent, times, visible


def sweep_section(found: Sequence[Records]) -> Section | None:
    items: list[Map | Table] = []
    said: list[str] = []
    for place, records in enumerate(found):
        one = Sweep(records)
        said += [f"{visible(one.run)}: {text}" if len(found) > 1 else text for text in sentences(one)]
        name = one.run if len(found) > 1 else ""
        items += [_phase(one, place, name), _edges(one, name)]
    return Section("sweep", "Where growth ends", said, items) if items else None


def _phase(found: Sweep, place: int, name: str) -> Map:
    factor = np.where(found.diverged, np.nan, found.log_factor)
    loss = found.cell("dev_loss")
    texts = [
        [_cell(found, i, j, float(factor[i, j]), float(loss[i, j])) for j in range(found.shape[1])]
        for i in range(found.shape[0])
    ]
    over = []
    columns = np.arange(found.shape[0], dtype=float)
    for quantity, label, colour, dash in (
        ("edge", "growth ends", 0, 0),
        ("edge_predicted", "λ* of random gradients", 1, 1),
    ):
        rows = _rows(found.column(quantity), found.y["values"])
        if np.isfinite(rows).any():
            kind = "derived" if dash else "measured"
            over.append(Curve(label, columns, rows, "", colour, dash=dash, provenance=kind))
    x, y = (_axis(axis) for axis in (found.x, found.y))
    grown = int((factor > 0).sum())
    alt = f"{grown} of {int(np.isfinite(factor).sum())} cells grow; red grows, blue falls."
    title = f"Where the norm grows{f': {name}' if name else ''}"
    return Map(f"phase-{place}", title, alt, x, y, factor, texts, MOST, over=over)


def _axis(axis: dict[str, Any]) -> Axis:
    ticks = tuple(number(v, 3) if isinstance(v, float) else str(v) for v in axis["values"])
    return Axis(WORDS.get(axis["setting"]) or str(axis["setting"]), ticks=ticks)


def _cell(found: Sweep, i: int, j: int, log_factor: float, loss: float) -> str:
    where = ", ".join(
        f"{axis['setting']} {number(v, 3) if isinstance(v := axis['values'][k], float) else v}"
        for axis, k in ((found.x, i), (found.y, j))
    )
    if found.diverged[i, j]:
        return f"{where}: diverged"
    if not isfinite(log_factor):
        return f"{where}: not trained"
    return f"{where}: ×{times(10**log_factor)}{f', loss {loss:.3f}' if isfinite(loss) else ''}"


def _rows(values: Floats, rows: Sequence[Any]) -> Floats:
    """Where numbers are between the rows of an axis, by logarithm if it has one; NaN beyond the rows."""
    try:
        known = np.array(rows, float)
    except (TypeError, ValueError):
        return np.full(len(values), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        place, scale = (np.log(values), np.log(known)) if (known > 0).all() else (values, known)
    if len(known) < 2 or not (np.diff(scale) > 0).all():
        return np.full(len(values), np.nan)
    return np.interp(place, scale, np.arange(len(known), dtype=float), left=np.nan, right=np.nan)


def _edges(found: Sweep, name: str) -> Table:
    names = [number(v, 3) if isinstance(v, float) else str(v) for v in found.x["values"]]
    columns = [words(found.x["setting"], names)]
    for title, quantity, write in (
        (f"growth ends at {found.y['setting']}", "edge", lambda x: number(x, 3)),
        ("not below", "edge_below", lambda x: number(x, 3)),
        ("not above", "edge_above", lambda x: number(x, 3)),
        ("for random gradients", "edge_predicted", lambda x: number(x, 3)),
        ("given by alignment", "edge_alignment", percent),
        ("given by steps", "edge_steps", percent),
    ):
        values = [float(value) for value in found.column(quantity)]
        if any(map(isfinite, values)):
            columns.append(column(title, values, write))
    return Table(f"The edge of growth{f': {name}' if name else ''}", columns)
