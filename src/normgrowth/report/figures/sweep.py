"""The phase diagram of a sweep (the paper's Figure 6): where the norm grows, and the measured and predicted edge."""

from typing import TYPE_CHECKING, Any

import numpy as np

from normgrowth.report.figures.style import BLUE, GRAY, INK, ORANGE, drawing, panels
from normgrowth.report.sweep_grid import SweepGrid, fractional_rows
from normgrowth.text import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normgrowth.lab.cells.axis import Axis
    from normgrowth.lab.sweep_result import Sweep

WORDS = {"lr": "learning rate η", "weight_decay": "weight decay λ"}
DEFAULT = {"adamw": (1e-3, 1e-2), "adam": (1e-3, 0.0), "sgd": (1e-3, 0.0)}  # PyTorch's
NEAR, MOST = (
    0.002,
    0.5,
)  # |log₁₀ factor|: the color scale is linear below the first and saturates at the second
FACTORS = (0.5, 0.9, 0.98, 1, 1.02, 1.1, 2)
DECOUPLED, LEAST = ("adamw", "adafactor"), 2.0**-25  # up to this, 1 − ηλ is 1 in float32


@drawing("Where the norm grows")
def phase(result: "Sweep") -> "Figure":
    """The growth factor of each cell, with the measured and the predicted edge of growth."""
    found = SweepGrid(result)
    figure, ax = panels(5.2, 4.2)
    _phase(ax, found, figure)
    settings = result.settings
    ax.set_title(f"{settings.optimizer}, {settings.kind}, {visible(result.corpus.name)}", pad=20)
    return figure


def _phase(ax: "Axes", found: SweepGrid, figure: "Figure") -> None:
    from matplotlib.colors import SymLogNorm

    x, y = (_places(axis) for axis in (found.x, found.y))
    factor = np.where(found.diverged, np.nan, found.log_factor)
    scale = SymLogNorm(NEAR, vmin=-MOST, vmax=MOST)  # so that growth by 1% shows
    mesh = ax.pcolormesh(_corners(x), _corners(y), factor.T, cmap="RdBu_r", norm=scale, rasterized=True)
    bar = figure.colorbar(mesh, ax=ax, extend="both", pad=0.02)
    bar.set_ticks(np.log10(FACTORS).tolist(), labels=[f"{factor:g}" for factor in FACTORS])
    bar.minorticks_off()
    bar.set_label("final norm / initial norm")
    for cells, mark in ((found.diverged, "×"), (found.lost & ~found.diverged, "?")):
        for i, j in np.argwhere(cells):
            ax.text(x[i], y[j], mark, ha="center", va="center", color=GRAY, fontsize=7)
    if len(found.records.where(level="column")):
        _edges(ax, found, x, y)
    for set_scale, axis in ((ax.set_xscale, found.x), (ax.set_yscale, found.y)):
        if _logarithmic(axis):
            set_scale("log")
    for axis, set_ticks in ((found.x, ax.set_xticks), (found.y, ax.set_yticks)):
        if not _logarithmic(axis):
            set_ticks(range(len(axis.values)), [str(value) for value in axis.values])
    ax.set_xlabel(_words(found.x))
    ax.set_ylabel(_words(found.y))
    ax.set_xlim(_corners(x)[[0, -1]])
    ax.set_ylim(_corners(y)[[0, -1]])
    if ax.get_legend_handles_labels()[0]:
        legend = ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderpad=0.2, columnspacing=1.0)
        legend.set_in_layout(False)  # it may overlap the color bar


def _edges(ax: "Axes", found: SweepGrid, x: Any, y: Any) -> None:
    edge, predicted = found.column("edge"), found.column("edge_predicted")
    inside = np.isfinite(edge) & (edge > 0)
    ax.plot(
        x,
        np.where(inside, _place(edge, found.y), np.nan),
        color=INK,
        marker="o",
        markersize=3,
        linewidth=1.4,
        label="growth ends",
    )
    if (predicted > 0).any():
        ax.plot(
            x,
            _place(predicted, found.y),
            color=ORANGE,
            linestyle="--",
            linewidth=1.4,
            label="λ* of random gradients",
        )
    if (found.x.setting, found.y.setting) != ("lr", "weight_decay"):
        return
    optimizer = found.result.settings.optimizer
    default = DEFAULT.get(optimizer)
    scaled = _logarithmic(found.x) and _logarithmic(found.y)
    if optimizer in DECOUPLED and scaled and (LEAST / x > y[0]).any():
        ax.plot(x, LEAST / x, color=GRAY, linestyle=":", linewidth=1.2)
        said = "below the dotted line, float32 rounds decay away"
        under = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5}
        ax.text(0.015, 0.02, said, transform=ax.transAxes, color=INK, fontsize=6.5, bbox=under)
    if default and default[1] > 0:
        ax.plot(
            *(
                _place(np.array([value]), axis)
                for value, axis in zip(default, (found.x, found.y), strict=True)
            ),
            marker="*",
            markersize=11,
            color="white",
            markeredgecolor=INK,
            linestyle="none",
            label="PyTorch's default",
        )


@drawing("Where growth ends, measured and predicted")
def edge(result: "Sweep") -> "Figure | None":
    """The measured and the predicted edge, and which terms of the budget balance weight decay at the measured edge.

    None without a prediction.
    """
    found = SweepGrid(result)
    edge, predicted = found.column("edge"), found.column("edge_predicted")
    if not (np.isfinite(predicted) & (predicted > 0)).any():
        return None
    x = np.array(found.x.values, float)
    figure, (left, right) = panels(7.2, 2.9, 1, 2, sharex=True)  # terms may be missing in every column
    inside = np.isfinite(edge) & (edge > 0)
    low, high = found.column("edge_below"), found.column("edge_above")
    left.fill_between(
        x, np.where(inside, low, np.nan), np.where(inside, high, np.nan), color=BLUE, alpha=0.25, linewidth=0
    )
    left.plot(x, np.where(inside, edge, np.nan), color=BLUE, marker="o", markersize=3, label="measured")
    left.plot(x, predicted, color=ORANGE, linestyle="--", label="λ* of random gradients")
    rows = [float(v) for v in found.y.values]
    left.axhspan(rows[0], rows[-1], color=GRAY, alpha=0.08, linewidth=0)
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_xlabel(WORDS["lr"])
    left.set_ylabel("weight decay λ where growth ends")
    left.legend()
    for quantity, color, label in (("alignment", BLUE, "alignment 2⟨θ, δ⟩"), ("steps", ORANGE, "steps ‖δ‖²")):
        right.plot(x, found.column(f"edge_{quantity}"), color=color, marker="o", markersize=3, label=label)
    right.axhline(0, color=GRAY, linewidth=0.6)
    right.axhline(1, color=GRAY, linewidth=0.6, linestyle=":")
    right.set_xscale("log")
    right.set_xlabel(WORDS["lr"])
    right.set_ylabel("growth by the term / loss by decay")
    right.legend()
    return figure


FIGURES = {"phase": phase, "edge": edge}


def _words(axis: "Axis") -> str:
    return WORDS.get(axis.setting) or visible(axis.setting)


def _logarithmic(axis: "Axis") -> bool:
    return all(isinstance(v, float) and v > 0 for v in axis.values) and len(axis.values) > 1


def _places(axis: "Axis") -> Any:
    return np.array(axis.values, float) if _logarithmic(axis) else np.arange(len(axis.values), dtype=float)


def _place(values: Any, axis: "Axis") -> Any:
    """The coordinate of each value on an axis: the value, or its fractional row if the axis is not logarithmic."""
    return values if _logarithmic(axis) else fractional_rows(values, axis.values)


def _corners(places: Any) -> Any:
    """The edges of cells halfway between their centers, on a logarithmic scale if the centers are positive."""
    if len(places) == 1:
        return np.array([places[0] - 0.5, places[0] + 0.5])
    if places[0] > 0:
        between = np.sqrt(places[1:] * places[:-1])
        return np.concatenate([[places[0] ** 2 / between[0]], between, [places[-1] ** 2 / between[-1]]])
    between = (places[1:] + places[:-1]) / 2
    return np.concatenate([[2 * places[0] - between[0]], between, [2 * places[-1] - between[-1]]])
