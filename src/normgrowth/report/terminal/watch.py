"""A run in progress in the terminal: the latest numbers of each layer, and sparklines."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.report.columns.trace import of, optional_columns
from normgrowth.report.grids import Grids
from normgrowth.report.numbers import times
from normgrowth.report.table_columns import numbers, words
from normgrowth.report.terminal.console import fitted, layer_names
from normgrowth.text import visible
from normgrowth.trace.result import Trace

if TYPE_CHECKING:
    from rich.console import Console

BARS = "▁▂▃▄▅▆▇█"
PLAIN = "_.-=*#"  # for encodings without block characters
WIDTH = 24


def sparkline(values: NDArray[np.float64], width: int = WIDTH, bars: str = BARS) -> str:
    """A sparkline scaled to the smallest and the largest value, with gaps at undefined values."""
    if not len(values):
        return ""
    parts = np.array_split(values, min(width, len(values)))
    means = np.array([np.mean(p[np.isfinite(p)]) if np.isfinite(p).any() else np.nan for p in parts])
    good = np.isfinite(means)
    if not good.any():
        return " " * len(means)
    low, high = means[good].min(), means[good].max()
    span = high - low or 1.0
    return "".join(
        bars[int((value - low) / span * (len(bars) - 1) + 0.5)] if np.isfinite(value) else " "
        for value in means
    )


def watch_table(trace: Trace, console: "Console") -> Any:
    """The table of a run so far, for rich to print."""
    from rich.console import Group
    from rich.text import Text

    grids = Grids(trace)
    if not grids.steps:
        return Text("nothing measured yet")
    last = grids.steps[-1]
    # Matrices that lead and the model come first, since a short screen cuts the last rows.
    things = sorted(grids.things(), key=lambda thing: ("part", "model", grids.layer_level).index(thing[0]))
    bars = BARS if (console.encoding or "").lower().startswith("utf") else PLAIN

    rows = [(grids, *thing) for thing in things]
    lines = [sparkline(grids.of(level, "norm").curve(name), bars=bars) for level, name in things]
    shown = [
        of(rows, name)
        for name in ("relative_step", "angle", "equilibrium_angle", "alignment", "gradient_norm")
    ]
    columns = [
        layer_names(things),
        of(rows, "norm"),
        numbers("factor", [grids.factor(*thing, last) for thing in things], times),
        words("norm so far", lines, 1),
        *(column for column in shown if column.known),
        *optional_columns(rows),
    ]
    measured = f"{len(grids.steps):,} measured step{'' if len(grids.steps) == 1 else 's'}"
    title = f"{grids.run}: step {last:,}, {measured}; factor since step {grids.steps[0]:,}, angles in radians"
    notes = (*trace.notes[-3:], *trace.problems[-3:])
    table, _ = fitted(console, columns)
    said = (Text(visible(note), style="yellow") for note in notes)
    counted = [Text(visible(f"parameters: {trace.parameters}"), style="dim")] if trace.parameters else []
    return Group(Text(visible(title), style="bold"), *counted, *said, table)
