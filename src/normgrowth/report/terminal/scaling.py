"""The table of scaling curves: cosine to the saturated network at some values of c."""

from typing import TYPE_CHECKING

import numpy as np

from normgrowth.network.scaling.result import Scaling, ScalingCurves
from normgrowth.report.numbers import cosine, number
from normgrowth.report.sentences.scaling import sentences
from normgrowth.report.table_columns import Column, words
from normgrowth.report.terminal.console import say, say_each, show_table

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = (1, 2, 5, 10, 100, 1000)  # values of c in the table, and the last one


def show(result: Scaling, console: "Console", published: Scaling | None = None) -> None:
    """A row for each network; for a single network, a row for each layer and for the last state."""
    own, theirs = result.curves, published.curves if published else []
    say(console, result.source or "scaling", "bold")
    for note in [*result.problems, *result.notes, *(published.notes if published else ())]:
        say(console, note, "dim")
    if len(own) == 1:
        layers = result.matrix("cosine_saturated")
        rows = [(name, layers.steps, layers.curve(name)) for name in layers.names]
        rows.append(("last state", own[0].scales, own[0].mean("cosine_saturated")))
    else:
        rows = [(curves.run, curves.scales, curves.mean("cosine_saturated")) for curves in own]
    rows += [(curves.run, curves.scales, curves.mean("cosine_flattened")) for curves in theirs]

    def column(c: float) -> Column:
        cells = [cosine(float(np.interp(np.log(c), np.log(x), y, np.nan, np.nan))) for _, x, y in rows]
        return Column(f"cosine at\nc = {c:,.6g}", cells, rank=1 if c in (2, 5, 100) else 0)

    columns = [words("network" if len(own) > 1 else "layer", [name for name, *_ in rows])]
    last = float(own[0].scales[-1]) if own else 0.0
    columns += [column(c) for c in [*(c for c in SHOWN if c < last), *([last] if own else [])]]
    if len(own) > 1:
        spread = [_over_seeds(curves) for curves in own] + ["-"] * len(theirs)
        error = [number(float(curves.mean("scaling_error")[-1]), 3) for curves in own] + ["-"] * len(theirs)
        columns += [Column("± over seeds\nat c = 2", spread, rank=2)]
        columns += [Column(f"error at\nc = {own[0].scales[-1]:,.0f}", error, rank=3)]
    show_table(console, columns)
    say_each(console, sentences(result, published))


def _over_seeds(curves: ScalingCurves) -> str:
    values = curves.at("cosine_saturated", 2)
    return f"{values.std(ddof=1):.4f}" if len(values) > 1 else "-"
