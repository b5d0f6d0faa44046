"""Saturation by layer (the paper's Figure 2), as a heat map, and over training.

Measured lines are colored. Published lines are gray and labeled as published.
"""

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.network.saturation.result import EMBEDDINGS, LayerCurve, Saturation
from normgrowth.report.figures.style import (
    BLUE,
    GRAY,
    INK,
    Layers,
    drawing,
    label,
    panels,
    step_axis,
    value_axis,
)
from normgrowth.report.figures.style import line as draw_line
from normgrowth.report.figures.trace import DASHES, FAMILIES
from normgrowth.report.sentences.saturation import Profile, checked_curves, layer_name, method_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
COLORS = (BLUE, *FAMILIES[:-1])
TRAINED, RANDOM = "the model's weights", "random weights"
OTHERS = "dotted: to other tokens' states"


@drawing("Saturation by layer, or over training")
def levels(result: Saturation, published: Saturation | None = None) -> "Figure":
    """Saturation by layer; for a series, over steps and against the norm. published: drawn in gray."""
    return _over_training(result) if result.steps else _by_layer(result, published)


def _weights(line: LayerCurve) -> str:
    return RANDOM if line.random_weights else TRAINED


def _by_layer(result: Saturation, published: Saturation | None = None) -> "Figure":
    """The paper's Figure 2: random weights on the left, the model's own on the right; a row for each method."""
    from matplotlib.lines import Line2D

    drawn = checked_curves(result)
    theirs = published.curves if published is not None else []
    kinds = [kind for kind in (RANDOM, TRAINED) if any(_weights(line) == kind for line in drawn)]
    methods = list(dict.fromkeys(line.c for line in drawn))
    color = {run: COLORS[i % len(COLORS)] for i, run in enumerate(dict.fromkeys(x.run for x in drawn))}
    dashes = {run: DASHES[i % len(DASHES)] for i, run in enumerate(dict.fromkeys(x.run for x in theirs))}
    figure, axes = panels(
        1.9 + 2.9 * len(kinds),
        0.4 + 2.3 * len(methods),
        len(methods),
        len(kinds),
        squeeze=False,
        sharex=True,
        sharey=True,
    )
    for ax, method, kind in _panels(axes, methods, kinds):
        ax.axhline(0, color=GRAY, linewidth=0.6, zorder=0)
        for line in theirs:
            if (line.c, _weights(line)) == (method, kind):
                look = {"linestyle": dashes[line.run], "linewidth": 1.0, "marker": "", "zorder": 1}
                _curve(ax, line, color=GRAY, label=f"{label(line.run)}, published", **look)
        for line in drawn:
            if (line.c, _weights(line)) == (method, kind):
                self_, mark = (", random baseline", "s") if line.baseline else ("", "o")
                look = {"marker": mark, "markersize": 3.0, "linewidth": 1.4, "capsize": 1.5}
                _curve(ax, line, color=color[line.run], label=f"{label(line.run)}{self_}", **look)
                blocks = line.blocks
                if np.isfinite(line.others[blocks]).any():
                    look = {"linestyle": (0, (1, 1)), "linewidth": 1.0, "label": OTHERS}
                    at = np.array(line.layers)[blocks]
                    ax.plot(at, line.others[blocks], color=color[line.run], zorder=1, **look)
        alone = len(kinds) == 1  # a single panel is too narrow for a title of one line
        ax.set_title(f"{kind},{chr(10) if alone else ' '}{method_name(method)}")
    for ax in axes[:, 0]:
        ax.set_ylabel("cosine to the\nsaturated network")
    for ax in axes[-1]:
        ax.set_xlabel("layer")
        ax.xaxis.get_major_locator().set_params(integer=True)
    entries: dict[str, Any] = {}
    for ax in axes.ravel():
        entries |= {name: handle for handle, name in zip(*ax.get_legend_handles_labels(), strict=True)}
    if entries.pop(OTHERS, None) is not None:  # this entry applies to lines of every color
        entries[OTHERS] = Line2D([], [], color=INK, linewidth=1.0, linestyle=(0, (1, 1)))
    figure.legend(entries.values(), entries.keys(), loc="outside right upper")
    return figure


@drawing("Saturation by layer and model")
def heat_map(result: Saturation) -> "Figure | None":
    """A cell for each layer and model, layers from bottom to top, at the first c that was measured."""
    if result.steps:
        return None
    every = checked_curves(result)
    drawn = [line for line in every if line.c == every[0].c]
    depth = range(EMBEDDINGS, max(max(line.layers) for line in drawn) + 1)
    grid = np.full((len(depth), len(drawn)), np.nan)
    for column, line in enumerate(drawn):
        grid[np.array(line.layers) - EMBEDDINGS, column] = line.values
    figure, ax = panels(1.9 + 0.75 * len(drawn), 1.3 + 0.21 * len(depth))
    low = min(0.0, float(np.nanmin(grid))) if np.isfinite(grid).any() else 0.0
    image = ax.imshow(grid, origin="lower", aspect="auto", cmap="viridis", vmin=low, vmax=1)
    for (row, column), value in np.ndenumerate(grid):
        pale = isfinite(value) and value > low + 0.6 * (1 - low)
        text = f"{round(value, 2) + 0.0:.2f}".replace("-", "−") if isfinite(value) else "NaN"
        hue = "black" if pale or not isfinite(value) else "white"
        if depth[row] in drawn[column].layers:
            ax.text(column, row, text, ha="center", va="center", fontsize=7, color=hue)
    names = [f"{label(line.run)}{', random baseline' if line.baseline else ''}" for line in drawn]
    ax.set_xticks(range(len(drawn)), names, rotation=30, ha="right", rotation_mode="anchor", parse_math=False)
    ax.set_yticks(range(len(depth)), [layer_name(layer) for layer in depth])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_ylabel("layer")
    bar = figure.colorbar(image, ax=ax, aspect=30, pad=0.02)
    bar.set_label("cosine")
    ax.set_title(f"cosine to the saturated\nnetwork, {method_name(every[0].c)}")
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return figure


def _panels(
    axes: Any, methods: Sequence[float | None], kinds: Sequence[str]
) -> Iterator[tuple["Axes", float | None, str]]:
    for row, method in zip(axes, methods, strict=True):
        for ax, kind in zip(row, kinds, strict=True):
            yield ax, method, kind


def _curve(ax: "Axes", line: LayerCurve, **look: Any) -> None:
    """A curve with error bars, without the embeddings: their cosine is 1, and the paper omits them."""
    blocks = line.blocks
    errors = np.nan_to_num(line.errors[blocks]) if np.isfinite(line.errors).any() else None
    ax.errorbar(np.array(line.layers)[blocks], line.values[blocks], yerr=errors, elinewidth=0.8, **look)


def _over_training(result: Saturation) -> "Figure":
    profile = Profile(result)
    figure, (left, right) = panels(7.2, 2.9, 1, 2, sharey=True)
    layers = Layers(profile.layers) if profile.layers.names else None
    for name in profile.layers.names:
        color: Any = layers.color(name) if layers else GRAY
        draw_line(left, profile.steps, profile.layers.curve(name), color=color, linewidth=1.1)
        _path(right, profile.norms[name], profile.layers.curve(name), color)
    draw_line(left, profile.steps, profile.level, color=INK, linewidth=2.0, label="mean of blocks")
    look = {"color": INK, "linewidth": 1.2, "linestyle": (0, (1, 1)), "marker": ""}
    draw_line(left, profile.steps, profile.others, label="… to other tokens' states", **look)
    left.legend(loc="best")
    step_axis(left, profile.steps)
    for ax in (left, right):
        ax.axhline(1, color=GRAY, linewidth=0.6, zorder=0)
    left.set_ylabel(f"cosine to the saturated\nnetwork ({method_name(profile.c)})")
    right.set_xlabel("norm of the layer's weights")
    value_axis(left, zero_below=1.0)
    if layers:
        layers.key(figure, [left, right])
    return figure


def _path(ax: "Axes", norms: Floats, levels: Floats, color: Any) -> None:
    """The path of a layer in the plane of norm and saturation, from a hollow to a filled dot."""
    good = np.flatnonzero(np.isfinite(norms) & np.isfinite(levels))
    if not len(good):
        return
    ax.plot(norms[good], levels[good], color=color, linewidth=1.1)
    ax.plot(norms[good[0]], levels[good[0]], marker="o", markersize=4, color=color, markerfacecolor="white")
    ax.plot(norms[good[-1]], levels[good[-1]], marker="o", markersize=4, color=color)


FIGURES = {"levels": levels, "heat_map": heat_map}
