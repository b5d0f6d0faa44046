"""A run in progress in the terminal: the latest numbers of each layer, and sparklines."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.report.grids import Grids
from normgrowth.report.numbers import number, small, times
from normgrowth.report.terminal.console import Cells, fitted, layer_cells
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


def _rough(value: float) -> str:
    return number(value, 4)


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

    def column(title: str, quantity: str, rank: int, write: Callable[[float], str] = _rough) -> Cells | None:
        values = [grids.value(*thing, quantity, last) for thing in things]
        known = any(np.isfinite(value) for value in values)
        return Cells(title, [write(value) for value in values], rank) if known else None

    def curve(title: str, quantity: str, rank: int) -> Cells:
        lines = [sparkline(grids.of(level, quantity).curve(name), bars=bars) for level, name in things]
        return Cells(title, lines, rank, right=False)

    columns = [
        layer_cells(things),
        column("norm", "norm", 0),
        Cells("factor", [times(grids.factor(*thing, last)) for thing in things]),
        curve("norm so far", "norm", 1),
        column("relative\nstep", "relative_step", 2),
        column("angle", "angle", 3),
        column("equilibrium\nangle", "equilibrium_angle", 6),
        Cells("alignment", [small(grids.value(*thing, "alignment", last)) for thing in things], 5),
        column("gradient", "gradient_norm", 4),
        column("LoRA\nupdate", "lora_update_norm", 2),
        column("gradient\nalignment", "gradient_alignment", 4, small),
        column("first\nmoment", "first_moment_norm", 6),
        column("second\nmoment", "second_moment_norm", 6),
        column("moment\nratio", "moment_ratio", 5),
    ]
    measured = f"{len(grids.steps):,} measured step{'' if len(grids.steps) == 1 else 's'}"
    title = f"{grids.run}: step {last:,}, {measured}; factor since step {grids.steps[0]:,}, angles in radians"
    notes = (*trace.notes[-3:], *trace.problems[-3:])
    shown, _ = fitted(console, [c for c in columns if c is not None])
    said = (Text(visible(note), style="yellow") for note in notes)
    counted = [Text(visible(f"parameters: {trace.parameters}"), style="dim")] if trace.parameters else []
    return Group(Text(visible(title), style="bold"), *counted, *said, shown)
