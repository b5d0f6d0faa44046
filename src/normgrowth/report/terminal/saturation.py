"""Saturation by layer: a table with a column for each model, the paper's Figure 2, and a heat map.

Measured lines have colours; what the paper published is grey, and is called published.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import InputError
from normgrowth.records import Records
from normgrowth.report.figures.style import (
    BLUE,
    FORMATS,
    GREY,
    INK,
    known_formats,
    label,
    laid_out,
    save,
    style,
)
from normgrowth.report.figures.trace import DASHES, FAMILIES
from normgrowth.report.terminal.console import Cells, new_console, say, say_remarks, show
from normgrowth.report.wording import measured_with

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console

COLOURS = (BLUE, *FAMILIES[:-1])
TRAINED, RANDOM = "the model's weights", "random weights"
EXCESS = (
    "Only the excess over the cosine to other tokens indicates saturation; the rest is shared by all states."
)
OTHERS = "dotted: to other tokens' states"
EMBEDDINGS = -1  # where layers are numbered
METHOD = re.compile(r"saturation(_c[^_]+)?")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """The levels of one model: embeddings and blocks, by one method, and the mean over blocks."""

    run: str
    method: str  # "saturation", "saturation_c1000"
    weights: str  # TRAINED or RANDOM
    layers: list[int]  # 0 is the first block, as in every record; EMBEDDINGS comes before
    values: Floats
    errors: Floats  # standard error over sentences; of random weights, deviation over seeds
    mean: float
    others: Floats  # the same with other tokens' saturated states
    baseline: bool = False  # the random self of the model, not the model itself

    @property
    def blocks(self) -> list[int]:
        """Where in `layers` the blocks are: all but the embeddings."""
        return [i for i, layer in enumerate(self.layers) if layer != EMBEDDINGS]


def lines(records: Records) -> list[Line]:
    """What the records hold, in their order: models, methods, and the random self after the model."""
    found = []
    for run in records.distinct("run"):
        rows = _levels(records, run)
        known: dict[str, Any] = records.made_by.get("runs", {}).get(run, records.made_by)
        own = RANDOM if known.get("random_weights") else TRAINED
        methods = list(dict.fromkeys(match[0] for name in rows if (match := METHOD.match(name))))
        for method in methods:
            if method in rows:
                found.append(_line(rows, run, method, "", "_stderr", own))
            if f"{method}_random" in rows:
                found.append(_line(rows, run, method, "_random", "_random_std", RANDOM))
    if not found:
        raise InputError("these records hold no saturation; `normgrowth saturation MODEL -o DIR` makes them")
    return found


def print_saturation(records: Records, console: "Console | None" = None) -> None:
    """A row for each layer and one for their mean; a column for each model and method."""
    console, drawn = console or new_console(), lines(records)
    runs: dict[str, Any] = records.made_by.get("runs", {})
    for run in records.distinct("run"):
        said = measured_with(_facts(records, run), runs.get(run, records.made_by))
        say(console, f"{run}: {said}", "bold")
    depth = range(EMBEDDINGS, max(max(line.layers) for line in drawn) + 1)
    names = [layer_name(layer) for layer in depth]
    columns = [Cells("layer", [*names, "mean of blocks"], right=False)]
    roomy = 20 + 18 * len(drawn) <= console.width
    for line in drawn:
        at = dict(zip(line.layers, zip(line.values, line.errors, strict=True), strict=True))
        cells = [_level(*at[layer], roomy) if layer in at else "-" for layer in depth]
        title = f"{line.run}\n{method_name(line.method)}{f'{chr(10)}random self' if line.baseline else ''}"
        rank = line.baseline + 2 * (line.method != drawn[0].method)  # the exact limit of the models stays
        columns.append(Cells(title, [*cells, _level(line.mean, np.nan, roomy)], rank))
        if np.isfinite(line.others).any() and line.method == drawn[0].method:
            other = dict(zip(line.layers, line.others, strict=True))
            mean = float(np.mean([value for layer, value in other.items() if layer != EMBEDDINGS]))
            cells = [_level(other[layer], np.nan, False) if layer in other else "-" for layer in depth]
            columns.append(
                Cells("to other\ntokens", [*cells, _level(mean, np.nan, False)], 4 + line.baseline)
            )
    show(console, columns, last_bold=True)
    if any(np.isfinite(line.others).any() for line in drawn):
        say(console, EXCESS, "dim")
    if roomy:
        say(console, "± standard error over sentences; of a random self, deviation over seeds.", "dim")
    say_remarks(console, records)


def draw_saturation(
    records: Records,
    folder: Path | str,
    *,
    published: Records | None = None,
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Figure 2 and the heat map; the paths of the files. published: the paper's levels, drawn in grey."""
    formats = known_formats(formats)
    text = "; ".join(
        f"{line.run}, {line.weights}, {method_name(line.method)}: mean of blocks {line.mean:.3f}"
        for line in lines(records)
    )
    figures = {
        "saturation": ("Saturation by layer", figure_saturation(records, published)),
        "saturation_map": ("Saturation by layer and model", figure_map(records)),
    }
    return save(figures, folder, formats, text)


def figure_saturation(records: Records, published: Records | None = None) -> "Figure":
    """The paper's Figure 2: random weights on the left, the model's own on the right; a row for each method."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    drawn = lines(records)
    theirs = lines(published) if published is not None else []
    kinds = [kind for kind in (RANDOM, TRAINED) if any(line.weights == kind for line in drawn)]
    methods = list(dict.fromkeys(line.method for line in drawn))
    colour = {run: COLOURS[i % len(COLOURS)] for i, run in enumerate(dict.fromkeys(x.run for x in drawn))}
    dashes = {run: DASHES[i % len(DASHES)] for i, run in enumerate(dict.fromkeys(x.run for x in theirs))}
    with style():
        figure = Figure(figsize=(1.9 + 2.9 * len(kinds), 0.4 + 2.3 * len(methods)))
        axes = figure.subplots(len(methods), len(kinds), squeeze=False, sharex=True, sharey=True)
        for ax, method, kind in _panels(axes, methods, kinds):
            ax.axhline(0, color=GREY, linewidth=0.6, zorder=0)
            for line in theirs:
                if (line.method, line.weights) == (method, kind):
                    look = {"linestyle": dashes[line.run], "linewidth": 1.0, "marker": "", "zorder": 1}
                    _curve(ax, line, color=GREY, label=f"{label(line.run)}, published", **look)
            for line in drawn:
                if (line.method, line.weights) == (method, kind):
                    self_, mark = (", random self", "s") if line.baseline else ("", "o")
                    look = {"marker": mark, "markersize": 3.0, "linewidth": 1.4, "capsize": 1.5}
                    _curve(ax, line, color=colour[line.run], label=f"{label(line.run)}{self_}", **look)
                    blocks = line.blocks
                    if np.isfinite(line.others[blocks]).any():
                        look = {"linestyle": (0, (1, 1)), "linewidth": 1.0, "label": OTHERS}
                        at = np.array(line.layers)[blocks]
                        ax.plot(at, line.others[blocks], color=colour[line.run], zorder=1, **look)
            ax.set_title(f"{kind}, {method_name(method)}")
        for ax in axes[:, 0]:
            ax.set_ylabel("cosine to the\nsaturated network")
        for ax in axes[-1]:
            ax.set_xlabel("layer")
            ax.xaxis.get_major_locator().set_params(integer=True)
        entries: dict[str, Any] = {}
        for ax in axes.ravel():
            entries |= {name: handle for handle, name in zip(*ax.get_legend_handles_labels(), strict=True)}
        if entries.pop(OTHERS, None) is not None:  # of every colour
            entries[OTHERS] = Line2D([], [], color=INK, linewidth=1.0, linestyle=(0, (1, 1)))
        figure.legend(entries.values(), entries.keys(), loc="outside right upper")
        return laid_out(figure)


def figure_map(records: Records) -> "Figure":
    """Layers from below to above, models side by side, by the first method that was measured."""
    from matplotlib.figure import Figure

    every = lines(records)
    drawn = [line for line in every if line.method == every[0].method]
    depth = range(EMBEDDINGS, max(max(line.layers) for line in drawn) + 1)
    grid = np.full((len(depth), len(drawn)), np.nan)
    for column, line in enumerate(drawn):
        grid[np.array(line.layers) - EMBEDDINGS, column] = line.values
    with style():
        figure = Figure(figsize=(1.9 + 0.75 * len(drawn), 1.3 + 0.21 * len(depth)))
        ax: Axes = figure.subplots()
        low = min(0.0, float(np.nanmin(grid))) if np.isfinite(grid).any() else 0.0
        image = ax.imshow(grid, origin="lower", aspect="auto", cmap="viridis", vmin=low, vmax=1)
        for (row, column), value in np.ndenumerate(grid):
            pale = isfinite(value) and value > low + 0.6 * (1 - low)
            text = f"{round(value, 2) + 0.0:.2f}".replace("-", "−") if isfinite(value) else "NaN"
            hue = "black" if pale or not isfinite(value) else "white"
            if depth[row] in drawn[column].layers:
                ax.text(column, row, text, ha="center", va="center", fontsize=7, color=hue)
        names = [f"{label(line.run)}{', random self' if line.baseline else ''}" for line in drawn]
        ax.set_xticks(
            range(len(drawn)), names, rotation=30, ha="right", rotation_mode="anchor", parse_math=False
        )
        ax.set_yticks(range(len(depth)), [layer_name(layer) for layer in depth])
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        ax.set_ylabel("layer")
        bar = figure.colorbar(image, ax=ax, aspect=30, pad=0.02)
        bar.set_label("cosine")
        ax.set_title(f"cosine to the saturated\nnetwork, {method_name(every[0].method)}")
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        return laid_out(figure)


def layer_name(layer: int) -> str:
    return "embeddings" if layer == EMBEDDINGS else str(layer)


def method_name(method: str) -> str:
    return "exact limit" if method == "saturation" else f"c = {method.removeprefix('saturation_c')}"


def _panels(axes: Any, methods: Sequence[str], kinds: Sequence[str]) -> Iterator[tuple["Axes", str, str]]:
    for row, method in zip(axes, methods, strict=True):
        for ax, kind in zip(row, kinds, strict=True):
            yield ax, method, kind


def _curve(ax: "Axes", line: Line, **look: Any) -> None:
    """Without the embeddings, which the paper leaves out: next to them nothing would show."""
    blocks = line.blocks
    errors = np.nan_to_num(line.errors[blocks]) if np.isfinite(line.errors).any() else None
    ax.errorbar(np.array(line.layers)[blocks], line.values[blocks], yerr=errors, elinewidth=0.8, **look)


def _levels(records: Records, run: str) -> dict[str, dict[int | None, float]]:
    """quantity -> layer -> level; the mean over blocks under None."""
    found: dict[str, dict[int | None, float]] = {}
    for row in records.where(run=run).table.to_pylist():
        if row["quantity"].startswith("saturation"):
            layer = EMBEDDINGS if row["layer"] is None else row["layer"]
            layer = None if row["level"] == "model" else layer
            found.setdefault(row["quantity"], {})[layer] = row["value"]
    return found


def _facts(records: Records, run: str) -> dict[str, float]:
    rows = records.where(run=run, level="model").table.to_pylist()
    return {row["quantity"]: row["value"] for row in rows}


def _line(
    rows: dict[str, dict[int | None, float]], run: str, method: str, self_: str, error: str, weights: str
) -> Line:
    level = rows[f"{method}{self_}"]
    layers = sorted(layer for layer in level if layer is not None)

    def of(quantity: str) -> Floats:
        known = rows.get(quantity, {})
        return np.array([known.get(layer, np.nan) for layer in layers])

    values, errors = of(f"{method}{self_}"), of(f"{method}{error}")
    others = of(f"{method}_others{self_}")
    return Line(run, method, weights, layers, values, errors, level.get(None, np.nan), others, bool(self_))


def _level(value: float, error: float, with_error: bool) -> str:
    if not isfinite(value):
        return "NaN"
    return f"{value:.3f} ± {error:.3f}" if with_error and isfinite(error) else f"{value:.3f}"
