"""The figure of the growth budget: how much of ‖θ‖² comes from alignment and how much from the size of steps."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from normgrowth.report.figures.style import (
    BLUE,
    GRAY,
    INK,
    ORANGE,
    Layers,
    drawing,
    label,
    line,
    step_axis,
    value_axis,
)
from normgrowth.report.grids import Grids
from normgrowth.report.numbers import percent
from normgrowth.report.sentences.trace import model_title
from normgrowth.trace.result import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEGEND_ROOM = 1.4  # height of the axis over the highest curve, so that the legend covers no curve


@drawing(
    "Where the growth of the squared norm comes from",
    needs="two checkpoints that are compared without gaps: a trace of checkpoints, or a tracker with every=1",
)
def figure_budget(trace: Trace) -> "Figure | None":
    """The growth of ‖θ‖², of the model or of matrices that lead, and its terms: alignment, and size of the steps."""
    from matplotlib.figure import Figure

    grids = Grids(trace)
    last = grids.budget()
    if last is None or not grids.steps:
        return None
    level, name = grids.lead
    terms = [grids.of(level, f"total_growth{term}") for term in ("", "_alignment", "_steps")]
    layers = all(
        grids.of(grids.layer_level, f"total_growth{term}").drawable() for term in ("", "_alignment", "_steps")
    )
    figure = Figure(figsize=(7.2, 2.9) if layers else (4.2, 2.9))
    axes = figure.subplots(1, 2 if layers else 1, squeeze=False)[0]
    ax: Axes = axes[0]
    # The budget has no values at the first checkpoint; the curves begin there at zero.
    steps = np.concatenate([grids.steps[:1], terms[0].steps])
    curves = [np.concatenate([[0.0], grid.curve(name)]) for grid in terms]
    stack_or_lines(ax, steps, curves, last)
    ax.set_title(label(name if grids.matrices_lead else model_title(trace.selection)), parse_math=False)
    ax.set_ylabel(f"growth of ‖θ‖² since step {steps[0]:,}")
    step_axis(ax, grids.steps)
    value_axis(ax, zero_below=1.0)
    if np.nanmin(curves) >= 0 and (top := np.nanmax(curves)) > 0:
        ax.set_ylim(0, LEGEND_ROOM * top)
    if layers:
        _budget_by_layer(axes[1], grids)
    return figure


def stack_or_lines(
    ax: "Axes", steps: NDArray[np.int64], curves: list[NDArray[np.float64]], last: tuple[float, float, float]
) -> None:
    """Stack the two terms if both are positive, so that the top is their sum; else draw them as lines."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    total, aligned, stepped = curves
    low, high = np.nanmin(curves), np.nanmax(curves)
    if low >= 0:
        ax.fill_between(steps, 0, aligned, color=BLUE, alpha=0.75, linewidth=0)
        ax.fill_between(steps, aligned, aligned + stepped, color=ORANGE, alpha=0.75, linewidth=0)
    else:
        ax.axhline(0, color=GRAY, linewidth=0.6)
        line(ax, steps, aligned, color=BLUE, label="alignment")
        line(ax, steps, stepped, color=ORANGE, label="size")
    line(ax, steps, total, color=INK, label="growth")
    shares = [f", {percent(part / last[0])}" if min(last) >= 0 and last[0] > 0 else "" for part in last[1:]]
    if low < 0:
        handles = [Line2D([], [], color=color) for color in (ORANGE, BLUE)]
    else:
        handles = [Patch(color=color, alpha=0.75, linewidth=0) for color in (ORANGE, BLUE)]
    ax.legend(
        [Line2D([], [], color=INK), *handles],
        ["growth of ‖θ‖²", f"size of the steps, Σ‖δ‖²{shares[1]}", f"alignment, Σ2⟨θ,δ⟩{shares[0]}"],
        loc="upper left" if high >= -low else "lower left",
        handlelength=1.2,
    )


def _budget_by_layer(ax: "Axes", grids: Grids) -> None:
    """The terms at the last step by layer: positive ones stacked upwards, negative ones downwards."""
    grid_of = [grids.of(grids.layer_level, f"total_growth{term}") for term in ("", "_alignment", "_steps")]
    for position, names in Layers(grid_of[0]).side_by_side(ax):
        rows = np.array([[grid.curve(name)[-1] for name in names] for grid in grid_of])
        total, *terms = np.where(np.isfinite(rows).all(axis=0), rows, np.nan)  # a term alone would mislead
        up, down = np.zeros(len(names)), np.zeros(len(names))
        for height, color in zip(np.nan_to_num(terms), (BLUE, ORANGE), strict=True):
            bottom = np.where(height >= 0, up, down)
            ax.bar(position, height, 0.8, bottom=bottom, color=color, alpha=0.75, linewidth=0)
            up, down = np.maximum(up, bottom + height), np.minimum(down, bottom + height)
        size = min(3.0, 60 / len(grid_of[0].names))
        line(ax, position, total, color=INK, linestyle="", markevery=None, markersize=size, label="growth")
    ax.axhline(0, color=GRAY, linewidth=0.6)
    ax.set_title(f"by layer{grids.of_layers}, at step {grid_of[0].steps[-1]:,}")
    value_axis(ax)
