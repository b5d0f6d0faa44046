"""A sweep in the terminal: the grid in signs, a table of the edge of growth, and sentences."""

from typing import TYPE_CHECKING

import numpy as np

from normgrowth.report.columns.sweep import edge_columns
from normgrowth.report.sentences.sweep import sentences, short_value
from normgrowth.report.sweep_grid import SweepGrid
from normgrowth.report.terminal.console import say, say_each, say_parameters, say_remarks, show_table

if TYPE_CHECKING:
    from rich.console import Console

    from normgrowth.lab.sweep_result import Sweep

GROWS, FALLS, STAYS, DIVERGED, UNKNOWN, LOST = "+", "−", "=", "x", "·", "?"


def show(result: "Sweep", console: "Console") -> None:
    records, settings = result.records, result.settings
    found = SweepGrid(result)
    shape = f"{settings.kind}, {settings.layers} layers of {settings.width}"
    say(console, f"{found.run}: {shape}, {settings.optimizer} on {result.corpus.name}", "bold")
    say_parameters(console, result.selection, result.counted)
    say_each(console, _signs(found))
    if len(records.where(level="column")):
        show_table(console, edge_columns(found))
    say_each(console, sentences(result))
    say_remarks(console, result)


def _signs(found: SweepGrid) -> list[str]:
    """The grid in signs, with the largest row on top, as in Figure 6."""
    factor, diverged = found.log_factor, found.diverged
    names = [short_value(value) for value in found.y.values]
    width = max(map(len, names))
    lines = [f"{found.y.setting}, against {found.x.setting} (columns)"]
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
    ends = f"{short_value(found.x.values[0])} to {short_value(found.x.values[-1])}"
    stays = f"{STAYS} stays, " if (factor == 0).any() else ""
    lost = f", {LOST} lost" if found.lost.any() else ""
    lines.append(
        f"{'':>{width}}  {ends}   {GROWS} grows, {FALLS} falls, {stays}{DIVERGED} diverged, {UNKNOWN} not trained{lost}"
    )
    return lines


def _sign(log_factor: float) -> str:
    return GROWS if log_factor > 0 else FALLS if log_factor < 0 else STAYS
