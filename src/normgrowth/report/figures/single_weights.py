"""The figure of single weights: how much they grew since the first checkpoint, and how many grew or changed sign."""

from typing import TYPE_CHECKING

import numpy as np

from normgrowth.report.figures.style import (
    BLUE,
    GRAY,
    INK,
    ORANGE,
    Layers,
    drawing,
    line,
    log_axis,
    panels,
    step_axis,
)
from normgrowth.report.grids import Grids
from normgrowth.trace.result import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEGEND_ROOM = 0.35  # share of the logarithmic axis above the highest curve
BANDS = (("05", "95", "90% of the weights", 0.2), ("25", "75", "half of the weights", 0.4))


@drawing(
    "Growth of single weights since the first checkpoint",
    needs="single weights compared with the first checkpoint: trace --scalars",
)
def figure_scalars(trace: Trace) -> "Figure | None":
    """Quantiles of |θ/θ₀| in the model, its median in each layer, and the shares that grew and that changed sign."""
    grids = Grids(trace)
    if not len(grids.model("share_grown", "first")[0]):
        return None
    layers = Layers(grids.of(grids.layer_level, "log_ratio_q50", "first"))
    figure, axes = panels(10.2 if layers.numbers else 7.2, 2.9, 1, 3 if layers.numbers else 2)
    _quantiles(axes[0], grids)
    _shares(axes[-1], grids)
    if layers.numbers:
        _medians(axes[1], grids, layers)
        axes[1].sharey(axes[0])
    log_axis(axes[0].yaxis)
    for ax in axes:
        step_axis(ax, grids.steps)
    layers.key(figure, list(axes[1:2]))
    return figure


def _quantiles(ax: "Axes", grids: Grids) -> None:
    ratio = {q: np.exp(grids.of("model", f"log_ratio_q{q}", "first").curve("model")) for q in _names()}
    steps = grids.of("model", "log_ratio_q50", "first").steps
    for low, high, said, alpha in BANDS:
        ax.fill_between(steps, ratio[low], ratio[high], color=BLUE, alpha=alpha, linewidth=0, label=said)
    line(ax, steps, ratio["50"], color=INK, label="median")
    _unchanged(ax)
    ax.set_title("model")
    ax.set_ylabel("magnitude relative to\nthe first checkpoint, |θ/θ₀|")
    low, high = ax.get_ylim()
    ax.set_ylim(low, high * (high / low) ** LEGEND_ROOM)
    ax.legend(loc="upper left")


def _medians(ax: "Axes", grids: Grids, layers: Layers) -> None:
    grid = grids.of(grids.layer_level, "log_ratio_q50", "first")
    for name in grid.names:
        line(ax, grid.steps, np.exp(grid.curve(name)), color=layers.color(name), linewidth=1.2)
    _unchanged(ax)
    ax.set_title(f"median by layer{grids.of_layers}")


def _shares(ax: "Axes", grids: Grids) -> None:
    from matplotlib.ticker import PercentFormatter

    for quantity, color, said in (
        ("share_grown", BLUE, "grew in magnitude"),
        ("share_sign_changed", ORANGE, "changed sign"),
    ):
        line(ax, *grids.model(quantity, "first"), color=color, label=said)
    ax.set_ylim(0, 1)
    ax.yaxis.set_major_formatter(PercentFormatter(1, 0))
    ax.set_title("share of the single weights")
    ax.legend()


def _unchanged(ax: "Axes") -> None:
    ax.axhline(1, color=GRAY, linewidth=0.6, zorder=0)
    ax.set_yscale("log")


def _names() -> list[str]:
    return ["50", *(q for low, high, *_ in BANDS for q in (low, high))]
