"""A figure of several runs, a row each: growth and its law, the layers, the direction, and saturation next to them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from normgrowth.fit import fit
from normgrowth.records import Matrix, Records
from normgrowth.report.figures.style import (
    BLUE,
    GRAY,
    INK,
    MOST_ENTRIES,
    ORANGE,
    Layers,
    drawing,
    line,
    step_axis,
    value_axis,
)
from normgrowth.report.grids import Grids
from normgrowth.trace.result import MATRICES, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = ("norm ‖θ‖", "norm by layer", "cosine to the previous\ncheckpoint", "saturation level")


@dataclass(frozen=True)
class GrowthRow:
    """A run in a row of panels. levels: saturation of its layers and of the model by step; None if unknown."""

    title: str
    trace: Trace
    levels: Records | None = None

    @cached_property
    def grids(self) -> Grids:
        return Grids(self.trace)


@drawing("Growth, its law, direction and saturation")
def figure_growth(trace: Trace, title: str, others: Sequence[GrowthRow] = ()) -> "Figure":
    """A row for each run: its norm with the best law, its layers, cosines, and levels of saturation."""
    from matplotlib.figure import Figure

    rows = [GrowthRow(title, trace), *others]
    figure = Figure(figsize=(12.0, 0.3 + 2.5 * len(rows)))
    figure.set_layout_engine("constrained", hspace=0.1, wspace=0.04)
    for row, axes in zip(rows, figure.subplots(len(rows), len(TITLES), squeeze=False), strict=True):
        heading = axes[0].set_title(row.title, fontweight="bold", parse_math=False)
        heading.set_in_layout(False)  # it is longer than its panel
        level = row.grids.layer_level
        layers = Layers(row.grids.of(level, "norm"), published=row.trace.published)
        _norm(axes[0], row)
        _by_layer(axes[1], row.grids.of(level, "norm"), layers)
        value_axis(axes[1], zero_below=1.0)
        _cosines(axes[2], row, layers)
        _levels(axes[3], row, layers)
        for ax, name in zip(axes, TITLES, strict=True):
            if ax.axison:
                only = row.grids.of_layers or " (with gains and biases)"
                ax.set_ylabel(f"{name}\n{only[1:]}" if ax is axes[1] and row.grids.matrices_lead else name)
                step_axis(ax, row.grids.steps)
        if len(layers.numbers) > MOST_ENTRIES:
            layers.key(figure, [axes[3]])
        elif len(layers.numbers) > 1:
            axes[1].legend(title="layer", loc="lower right", ncols=2, handlelength=1.2)
    figure.align_ylabels()
    return figure


def _norm(ax: "Axes", row: GrowthRow) -> None:
    """The norm of what leads, the law with the largest weight of evidence, and the model if matrices lead."""
    level, name = row.grids.lead
    norm, color = row.grids.of(level, "norm"), GRAY if row.trace.published else BLUE
    line(ax, norm.steps, norm.curve(name), color=color, linewidth=2.2, label=name)
    if name == MATRICES:
        model = row.grids.of("model", "norm")
        look = {"color": color, "linewidth": 1.0, "linestyle": (0, (1, 1.5)), "markersize": 0}
        line(ax, model.steps, model.curve("model"), **look, label="with gains and biases")
    known = fit(norm.steps, norm.curve(name), bootstrap=0)
    law = known.best if known.only.best_law else known["sqrt"]
    if law.fitted:
        at = np.linspace(norm.steps[0], norm.steps[-1], 200)
        said = f"{law.formula}, r² = {law.r2:.4f}"
        ax.plot(at, law.predict(at), color=ORANGE, linewidth=1.2, linestyle=(0, (4, 2)), label=said)
    value_axis(ax, zero_below=1.0)
    ax.set_ylim(0, 1.45 * ax.get_ylim()[1])
    ax.legend(loc="upper left", handlelength=1.6)


def _by_layer(ax: "Axes", grid: Matrix, layers: Layers) -> None:
    for name in grid.names:
        number = layers.numbers[layers.depth[name]]
        line(
            ax,
            grid.steps,
            grid.curve(name),
            color=layers.color(name),
            linewidth=1.2,
            markersize=0,
            label=number,
        )


def _cosines(ax: "Axes", row: GrowthRow, layers: Layers) -> None:
    _by_layer(ax, row.grids.of(row.grids.layer_level, "cosine"), layers)
    level, name = row.grids.lead
    whole = row.grids.of(level, "cosine")
    line(ax, whole.steps, whole.curve(name), color=INK, linewidth=1.8, markersize=0)
    value_axis(ax)
    ax.legend(handles=ax.lines[-1:], labels=[name], loc="lower right")


def _levels(ax: "Axes", row: GrowthRow, layers: Layers) -> None:
    """The cosine of each layer's states to those of the saturated network, and to those of other tokens."""
    if row.levels is None:
        ax.set_axis_off()
        ax.text(0.5, 0.5, "no levels during training\nare published", ha="center", va="center", color=GRAY)
        return
    grid = row.levels.where(level="layer").matrix("saturation", level="layer")
    for name in (name for name in grid.names if name in layers.depth):
        line(ax, grid.steps, grid.curve(name), color=layers.color(name), linewidth=1.2, markersize=0)
    for quantity, dashes, said in (
        ("saturation", "-", "mean"),
        ("saturation_others", (0, (4, 2)), "to other tokens"),
    ):
        steps, values = row.levels.series(quantity)
        line(ax, steps, values, color=INK, linewidth=1.8, linestyle=dashes, markersize=0, label=said)
    ax.set_ylim(0, 1.02)
    ax.legend(loc="center right")
