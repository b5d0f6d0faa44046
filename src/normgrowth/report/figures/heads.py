"""Figures of heads: the paper's Figure 3 as published and without padding, an atlas, and patterns of a sentence.

Measured bars are colored. Published bars are gray and labeled as published.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from normgrowth.network.heads.result import Heads, HeadTable
from normgrowth.report.figures.style import BLUE, GRAY, INK, Drawing, drawing, label, panels
from normgrowth.report.sentences.heads import KINDS, tables

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The colorblind-safe palette of Okabe and Ito; letters make the kinds readable in black and white.
COLORS = {
    "argmax-like": "#0072b2",
    "previous-token": "#009e73",
    "sink": "#d55e00",
    "mean-like": "#f0e442",
    "in between": "#d9d9d9",
    "": "#ffffff",
}
LETTERS = {"argmax-like": "A", "previous-token": "P", "sink": "S", "mean-like": "M"}
DARK = ("argmax-like", "previous-token", "sink")
MOST_LETTERS = 24  # heads per layer up to which letters fit into the cells
MOST_BARS = 60
# The looks of the paper's two encoders.
PUBLISHED: tuple[dict[str, Any], ...] = (
    {"facecolor": "#cccccc", "edgecolor": "#cccccc", "linewidth": 0.6},
    {"facecolor": "none", "edgecolor": GRAY, "linewidth": 0.6, "hatch": "////"},
)


@drawing("Positions attended by saturated heads")
def positions(result: Heads, published: Heads | None = None) -> "Figure | None":
    """Figure 3: left as published (positions), right as shares of the visible positions. A row for each model."""
    from matplotlib.patches import Patch

    drawn = [heads for heads in tables(result) if heads.form]
    if not drawn:
        return None
    theirs = tables(published) if published is not None else []
    figure, axes = panels(
        7.2, 1.0 + 1.75 * len(drawn), len(drawn), 2, squeeze=False, sharex="col", sharey=True
    )
    for (left, right), heads in zip(axes, drawn, strict=True):
        _positions(left, heads, theirs, result.window)
        _shares(right, heads)
        left.set_title(label(heads.run), parse_math=False)
        left.set_ylabel("heads")
    window = result.window if drawn[0].form == "attended_window" else None
    counted = f"windows filled up to {window} tokens, padding counts" if window else "real tokens only"
    axes[-1, 0].set_xlabel(f"positions attended, mean over queries\n({counted})")
    axes[-1, 1].set_xlabel("share of the visible positions, mean over queries\n(real tokens only)")
    handles: list[Any] = [Patch(color=BLUE, label=f"measured, {_method(drawn[0])}")]
    if theirs:
        handles += [
            Patch(**look, label=f"published: {label(heads.run)}")
            for heads, look in zip(theirs, PUBLISHED, strict=False)
        ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _method(heads: HeadTable) -> str:
    return "exact limit" if heads.scale is None else f"c = {heads.scale:g}"


def _positions(ax: "Axes", heads: HeadTable, theirs: Sequence[HeadTable], window: int | None) -> None:
    values = heads.of(heads.form)
    window = window if heads.form == "attended_window" else None
    published = [one.of("attended_window") for one in theirs] if window else []
    visible = (window + 1) / 2 if window else heads.model.get("visible", 1.0)
    most = max([values.max(), visible, *(one.max() for one in published)])
    width = max(1, ceil(most / MOST_BARS))
    edges = np.arange(1 - width / 2, most + width, width)
    for own, look in zip(published, PUBLISHED, strict=False):
        ax.bar(edges[:-1] + width / 2, np.histogram(own, edges)[0] / len(own), 0.94 * width, zorder=1, **look)
    _bars(ax, values, edges)
    # In a window the marks assume a causal mask, even if the model has another mask.
    lines = [(visible, "all of the past and itself" if window else "all visible")]
    if window:  # the last query has no future positions and attends to one position
        lines.append((((window - 1) * window / 2 + 1) / window, "all of the future"))
    _marks(ax, lines, -0.02 * most)


def _shares(ax: "Axes", heads: HeadTable) -> None:
    from matplotlib.ticker import PercentFormatter

    _bars(ax, heads.of("attended_share").clip(0, 1), np.linspace(0, 1, 51))
    ax.set_xlim(-0.02, 1.02)
    ax.xaxis.set_major_formatter(PercentFormatter(1, 0))
    one = heads.model.get("one_share", np.nan)
    if np.isfinite(one):
        _marks(ax, [(one, "one position")], 0.02, percent=True)


def _bars(ax: "Axes", values: Any, edges: Any) -> None:
    """A histogram of shares of heads, with a mark for each head below it."""
    from matplotlib.ticker import PercentFormatter

    width = edges[1] - edges[0]
    high = np.histogram(values, edges)[0] / len(values)
    ax.bar(edges[:-1] + width / 2, high, 0.6 * width, color=BLUE, zorder=3)
    look = {"color": BLUE, "markersize": 4, "markeredgewidth": 0.6, "clip_on": False}
    ax.plot(values, np.full(len(values), -0.04), "|", **look)
    ax.set_ylim(0, 1.25)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1])
    ax.yaxis.set_major_formatter(PercentFormatter(1, 0))
    ax.tick_params(axis="x", pad=6)


def _marks(ax: "Axes", lines: Sequence[tuple[float, str]], beside: float, *, percent: bool = False) -> None:
    """Dashed vertical lines, with labels stacked next to them."""
    nearest = (min if beside < 0 else max)(place for place, _ in lines)
    for i, (place, word) in enumerate(lines):
        value = f"{100 * place:.1f}%" if percent else f"{place:.2f}"
        ax.axvline(place, color=INK, linewidth=0.6, linestyle=(0, (2, 2)), zorder=0)
        look = {"ha": "right" if beside < 0 else "left", "va": "center", "fontsize": 7}
        ax.text(nearest + beside, 1.17 - 0.13 * i, f"{word}: {value}", **look)


@drawing("Heads by kind")
def atlas(result: Heads) -> "Figure | None":
    """A cell for each head, colored by kind, layers from bottom to top: in the soft and in the saturated network."""
    from matplotlib.patches import Patch

    drawn = [heads for heads in tables(result) if any(heads.kinds)]
    if not drawn:
        return None
    columns = 2 if any(any(heads.saturated_kinds) for heads in drawn) else 1
    wide = max(max(Counter(heads.layers).values()) for heads in drawn)
    deep = [len(heads.depth) for heads in drawn]
    cell = min(0.25, 3.6 / wide)
    size = 1.0 + columns * (cell * wide + 0.35), 0.95 + sum(cell * n + 0.55 for n in deep)
    figure, axes = panels(max(size[0], 4.6), size[1], len(drawn), columns, squeeze=False, height_ratios=deep)
    for row, heads in zip(axes, drawn, strict=True):
        both = ((heads.kinds, "soft"), (heads.saturated_kinds, "saturated"))
        for ax, (kinds, which) in zip(row, both, strict=False):
            _atlas(ax, heads, kinds)
            name = f"{label(heads.run)}, " if len(drawn) > 1 else ""
            ax.set_title(f"{name}{which}", parse_math=False)
        row[0].set_ylabel("layer")
    for ax in axes[-1]:
        ax.set_xlabel("head")
    handles = [
        Patch(facecolor=COLORS[kind], label=f"{LETTERS.get(kind, '')} {kind}".strip()) for kind in KINDS
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, handlelength=1.1, columnspacing=1.2)
    return figure


def _atlas(ax: "Axes", heads: HeadTable, kinds: Sequence[str]) -> None:
    from matplotlib.patches import Rectangle

    place = {layer: i for i, layer in enumerate(heads.depth)}
    seen = Counter[int | None]()
    wide = max(Counter(heads.layers).values())
    for layer, kind in zip(heads.layers, kinds, strict=True):
        x, y = seen[layer], place.get(layer or 0, 0)
        seen[layer] += 1
        look = {"facecolor": COLORS[kind], "edgecolor": "white", "linewidth": 0.8}
        ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, **look))
        if kind in LETTERS and wide <= MOST_LETTERS:
            hue = "white" if kind in DARK else INK
            size = 6.5 if wide <= 16 else 5
            ax.text(x, y, LETTERS[kind], ha="center", va="center", fontsize=size, color=hue)
    every = 1 if len(place) <= 16 else 4
    ax.set_yticks(range(0, len(place), every), [str(layer) for layer in heads.depth[::every]])
    step = 1 if wide <= 12 else 2 if wide <= 24 else 8
    ax.set_xticks(range(0, wide, step))
    ax.set_xlim(-0.5, wide - 0.5)
    ax.set_ylim(-0.5, len(place) - 0.5)
    ax.set_aspect("equal")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


@drawing("Attention patterns of heads")
def patterns(result: Heads, run: str | None = None) -> "Figure | None":
    """The attention weights of chosen heads on one sentence: a column for each head, soft above, saturated below.

    run: the model (default: the first).
    """
    known = result.models.get(next(iter(result.models), "") if run is None else run)
    if known is None or known.patterns is None or not known.patterns.heads:
        return None
    tokens, chosen, kinds = known.patterns.tokens, known.patterns.heads, known.kinds
    side = max(1.5, min(2.4, 0.14 * len(tokens)))
    figure, axes = panels(
        1.5 + (side + 0.15) * len(chosen),
        1.5 + 2 * side,
        2,
        len(chosen),
        squeeze=False,
        sharex=True,
        sharey=True,
    )
    image = None
    for column, (name, both) in zip(axes.T, chosen.items(), strict=True):
        for ax, which in zip(column, ("soft", "saturated"), strict=True):
            image = ax.imshow(np.array(getattr(both, which)), cmap="Blues", vmin=0, vmax=1)
            ax.spines[:].set_visible(True)
            ax.tick_params(length=0, labelsize=max(4.5, min(7.0, 150 / len(tokens))))
        kind = kinds.get(name, "")
        column[0].set_title(f"{label(name)}\n{kind}", fontsize=7.5, parse_math=False)
    shown = [label(token) for token in tokens]
    for ax, which in zip(axes[:, 0], ("soft", "saturated"), strict=True):
        ax.set_yticks(range(len(shown)), shown, parse_math=False)
        ax.set_ylabel(f"{which}\nfrom")
    for ax in axes[-1]:
        ax.set_xticks(range(len(shown)), shown, rotation=90, parse_math=False)
        ax.set_xlabel("to")
    assert image is not None
    bar = figure.colorbar(image, ax=axes, aspect=30, pad=0.02, fraction=0.04)
    bar.set_label("weight")
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return figure


FIGURES = {"atlas": atlas, "positions": positions, "patterns": patterns}


def figures_of(result: Heads) -> dict[str, Drawing]:
    """All figures, with an additional figure of patterns for each model after the first."""
    further = list(result.models)[1:]
    return FIGURES | {
        f"patterns_{i}": Drawing(f"{patterns.title}: {run}", partial(patterns.build, run=run))
        for i, run in enumerate(further, 2)
    }
