"""Saturation over training, and against the norm of the weights, layer by layer: what `saturation_profile` wrote."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import InputError
from normgrowth.records import Matrix, Records
from normgrowth.report.figures.style import (
    FORMATS,
    GREY,
    INK,
    Layers,
    known_formats,
    laid_out,
    line,
    save,
    step_axis,
    style,
    value_axis,
)
from normgrowth.report.grids import Grids
from normgrowth.report.terminal.console import Cells, new_console, say, say_parameters, say_remarks, show
from normgrowth.report.terminal.saturation import METHOD, method_name
from normgrowth.report.wording import measured_with, number, times

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console

Floats = NDArray[np.float64]
NAME = "saturation_profile"
SHARED = 0.3  # a cosine to other tokens' states from which on it must be said
ROWS = 12  # of the table at most: the first step, the last, and some between


class Profile:
    """Levels and norms of the layers that have both, at the steps that have both."""

    def __init__(self, records: Records) -> None:
        grids = Grids(records)
        names = records.where(level="model").distinct("quantity")
        self.methods = [name for name in names if METHOD.fullmatch(name)]
        if not self.methods or "norm" not in names:
            raise InputError(
                "these records hold no saturation of a series; `normgrowth saturation SERIES --config` makes them"
            )
        self.method = self.methods[0]
        self.run = grids.run
        levels, norms = grids.of("layer", self.method), grids.of("layer", "norm")
        layers = [name for name in levels.names if name in norms.names]
        self.steps = [int(s) for s in np.intersect1d(levels.steps, norms.steps)]
        model = records.where(level="model", step=self.steps[-1]).table.to_pylist() if self.steps else []
        self.evaluated = {
            row["quantity"]: row["value"] for row in model
        }  # the size of the text, among others
        self.layers = Matrix(
            layers,
            [levels.layers[levels.names.index(name)] for name in layers],
            np.array(self.steps, np.int64),
            np.stack([self._at(levels, name) for name in layers], 1)
            if layers
            else np.zeros((len(self.steps), 0)),
        )
        self.norms = {name: self._at(norms, name) for name in layers}
        self.level = self._at(grids.of("model", self.method), "model")
        self.norm = self._at(grids.of("model", "norm"), "model")
        others = grids.of("model", f"{self.method}_others")
        self.others = self._at(others, "model") if others.names else np.full(len(self.steps), np.nan)

    def _at(self, grid: Matrix, name: str) -> Floats:
        return grid.curve(name)[np.isin(grid.steps, self.steps)]


def sentences(records: Records) -> list[str]:
    profile = Profile(records)
    good = np.flatnonzero(np.isfinite(profile.level) & np.isfinite(profile.norm))
    if len(good) < 2:
        return []
    first, last = good[0], good[-1]
    grown = times(float(profile.norm[last] / profile.norm[first]))
    said = [
        f"From step {profile.steps[first]:,} to {profile.steps[last]:,} the norm became {grown} times what it was; "
        f"the mean cosine to the saturated network ({method_name(profile.method)}) went from "
        f"{profile.level[first]:.3f} to {profile.level[last]:.3f}."
    ]
    shared = profile.others[good]
    if np.isfinite(shared).any():
        worst = int(np.nanargmax(shared))
        if shared[worst] > SHARED:
            said.append(
                f"At step {profile.steps[good[worst]]:,} the cosine to the saturated states of other tokens is "
                f"{shared[worst]:.3f} (to the token's own: {profile.level[good[worst]]:.3f}): states share a "
                "direction, and a high cosine there is no sign of saturation."
            )
    above = profile.level[good] - shared
    known = np.isfinite(above).all()
    if known:
        said.append(
            f"What the level is above that to other tokens went from {above[0]:.3f} to {above[-1]:.3f}."
        )
    if len(good) > 4:
        of_level = rank_correlation(profile.norm[good], profile.level[good])
        of_rest = rank_correlation(profile.norm[good], above) if known else np.nan
        beside = f", of norm and what is above the others {of_rest:+.2f}" if known else ""
        said.append(
            f"Over these {len(good)} checkpoints the rank correlation of norm and saturation is {of_level:+.2f}"
            f"{beside}; one run cannot tell which causes which."
        )
    return said


def rank_correlation(x: Floats, y: Floats) -> float:
    """Spearman's; ties share their mean rank. NaN if one of them does not vary."""

    def ranks(values: Floats) -> Floats:
        _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
        return (np.cumsum(counts) - (counts - 1) / 2)[place]

    a, b = ranks(x), ranks(y)
    if a.std() == 0 or b.std() == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def print_profile(records: Records, console: "Console | None" = None) -> None:
    """A row for some of the steps: norm, and the level of the model and of its first and last layer."""
    console, profile = console or new_console(), Profile(records)
    text = records.made_by.get("saturation", {})
    said = measured_with(profile.evaluated, text)
    each = f", each {said}" if said else ""
    say(console, f"{profile.run}: {len(profile.steps)} checkpoints{each}", "bold")
    say_parameters(console, records)
    rows = np.unique(
        np.linspace(0, len(profile.steps) - 1, min(ROWS, len(profile.steps))).round().astype(int)
    )

    def column(title: str, values: Floats, rank: int = 0) -> Cells:
        return Cells(title, [f"{values[i]:.3f}" if np.isfinite(values[i]) else "NaN" for i in rows], rank)

    columns = [
        Cells("step", [f"{profile.steps[i]:,}" for i in rows]),
        Cells("norm", [number(float(profile.norm[i])) for i in rows]),
        column("saturation,\nmean of blocks", profile.level),
    ]
    ends = dict.fromkeys([*profile.layers.names[:1], *profile.layers.names[-1:]])
    if np.isfinite(profile.others).any():
        columns.append(column("to other\ntokens", profile.others))
    columns += [column(f"saturation\nof {name}", profile.layers.curve(name), rank=1) for name in ends]
    grids = Grids(records)
    for method in profile.methods[1:]:
        grid = grids.of("model", method)
        values = grid.curve("model")[np.isin(grid.steps, profile.steps)]
        columns.append(column(f"at {method_name(method)},\nmean of blocks", values, rank=2))
    show(console, columns)
    for sentence in sentences(records):
        say(console, sentence)
    say_remarks(console, records)


def draw_profile(records: Records, folder: Path | str, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Saturation against step and against norm; the paths of the files."""
    formats = known_formats(formats)
    figures = {NAME: ("Saturation and norm", figure_profile(records))}
    return save(figures, folder, formats, " ".join(sentences(records)))


def figure_profile(records: Records) -> "Figure":
    from matplotlib.figure import Figure

    profile = Profile(records)
    with style():
        figure = Figure(figsize=(7.2, 2.9))
        left, right = figure.subplots(1, 2, sharey=True)
        layers = Layers(profile.layers) if profile.layers.names else None
        for name in profile.layers.names:
            colour: Any = layers.colour(name) if layers else GREY
            line(left, profile.steps, profile.layers.curve(name), color=colour, linewidth=1.1)
            _path(right, profile.norms[name], profile.layers.curve(name), colour)
        line(left, profile.steps, profile.level, color=INK, linewidth=2.0, label="mean of blocks")
        look = {"color": INK, "linewidth": 1.2, "linestyle": (0, (1, 1)), "marker": ""}
        line(left, profile.steps, profile.others, label="… to other tokens' states", **look)
        left.legend(loc="best")
        step_axis(left, profile.steps)
        for ax in (left, right):
            ax.axhline(1, color=GREY, linewidth=0.6, zorder=0)
        left.set_ylabel(f"cosine to the saturated\nnetwork ({method_name(profile.method)})")
        right.set_xlabel("norm of the layer's weights")
        value_axis(left, zero_below=1.0)
        if layers:
            layers.bar(figure, [left, right])
        return laid_out(figure)


def _path(ax: "Axes", norms: Floats, levels: Floats, colour: Any) -> None:
    """The way of a layer through the plane, from a hollow dot to a full one."""
    good = np.flatnonzero(np.isfinite(norms) & np.isfinite(levels))
    if not len(good):
        return
    ax.plot(norms[good], levels[good], color=colour, linewidth=1.1)
    ax.plot(norms[good[0]], levels[good[0]], marker="o", markersize=4, color=colour, markerfacecolor="white")
    ax.plot(norms[good[-1]], levels[good[-1]], marker="o", markersize=4, color=colour)
