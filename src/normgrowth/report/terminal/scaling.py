"""Scaling curves: cosine to the saturated network against c, and how the error vanishes (the paper's Figure 4).

Ink is without biases, red with them; a band spans the seeds. What the paper published is grey, and says so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import InputError
from normgrowth.records import Records
from normgrowth.report.figures.style import (
    FORMATS,
    GREY,
    INK,
    Layers,
    known_formats,
    label,
    laid_out,
    line,
    save,
    style,
)
from normgrowth.report.grids import Grids
from normgrowth.report.terminal.console import Cells, new_console, say, show
from normgrowth.report.wording import cosine, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console

Floats = NDArray[np.float64]
RED = "#d55e00"
SHOWN = (1, 2, 5, 10, 100, 1000)  # values of c in the table
NAME = "scaling"
UP_TO = 300  # c, up to which the cosine is drawn if it is near 1 from there on; the error tells the rest
TITLES = {
    "paper_pre_norm": "paper's pre-norm x + LN(f(x))",
    "usual_pre_norm": "usual pre-norm x + f(LN(x))",
    "post_norm": "post-norm LN(x + f(x))",
}


@dataclass(frozen=True)
class Curves:
    """The networks of one group, that differ by their seed: (seeds, scales)."""

    group: str
    kind: str
    bias: bool | None
    rates: list[str]
    overflow: float | None  # the smallest c at which a norm overflows, of any seed
    scales: Floats
    values: dict[str, Floats]

    def at(self, quantity: str, c: float) -> Floats:
        """Of each seed, between the scales along log c; NaN outside them."""
        where = np.log(c), np.log(self.scales)
        return np.array([np.interp(*where, row, np.nan, np.nan) for row in self.of(quantity)])

    def mean(self, quantity: str) -> Floats:
        return self.of(quantity).mean(0)

    def of(self, quantity: str) -> Floats:
        if quantity not in self.values:
            raise InputError(f"these records hold no {quantity} of {self.group!r} at each of its scales")
        return self.values[quantity]


def groups(records: Records) -> list[Curves]:
    facts: dict[str, Any] = records.made_by.get("runs") or {}
    if not facts or not all("group" in fact for fact in facts.values()):
        raise InputError("these records hold no scaling curves: `normgrowth scaling -o` makes them")
    names = dict.fromkeys(fact["group"] for fact in facts.values())
    found = []
    for group in names:
        runs = [run for run, fact in facts.items() if fact["group"] == group]
        grids = [Grids(records.where(run=run)) for run in runs]
        steps = grids[0].of("model", "scale").steps
        values = {
            quantity: np.stack([grid.of("model", quantity).values[:, 0] for grid in grids])
            for quantity in records.where(run=runs[0], level="model").distinct("quantity")
            if all(np.array_equal(grid.of("model", quantity).steps, steps) for grid in grids)
        }
        first = facts[runs[0]]
        rates = [facts[run]["rate"]["sentence"] for run in runs if "rate" in facts[run]]
        lost = min((c for run in runs if (c := facts[run].get("overflow")) is not None), default=None)
        kind, bias = first.get("kind", group), first.get("bias")
        found.append(Curves(group, kind, bias, rates, lost, np.zeros(0), values))
        found[-1] = replace(found[-1], scales=found[-1].of("scale")[0])
    return found


def sentences(records: Records, published: Records | None = None) -> list[str]:
    """What the curves show, and how far the published ones are from them."""
    said, own = [], groups(records)
    for curves in own:
        for sentence in dict.fromkeys(curves.rates):
            count, seeds = curves.rates.count(sentence), len(curves.rates)
            where = f" ({count} of {seeds} seeds)" if count < seeds else ""
            said.append(f"{curves.group}: the error {sentence}{where}.")
        if curves.overflow is not None:
            said.append(
                f"{curves.group}: from c = {curves.overflow:,.0f} on a norm overflows; nothing is drawn there."
            )
    for bare in own:
        for biased in own:
            if bare.kind == biased.kind and bare.bias is False and biased.bias is True:
                curves = [one.mean("cosine_saturated") for one in (bare, biased)]
                if not np.array_equal(bare.scales, biased.scales):
                    continue
                apart = np.abs(np.subtract(*curves))
                if not np.isfinite(apart).any():
                    continue
                worst = int(np.nanargmax(apart))
                said.append(
                    f"{bare.kind}: biases move the mean cosine by {apart[worst]:.3f} at most, "
                    f"at c = {bare.scales[worst]:.3g}."
                )
    for theirs in groups(published) if published else []:
        for curves in own:
            if (curves.kind, curves.bias) == (theirs.kind, theirs.bias):
                ours = np.stack([curves.at("cosine_flattened", c) for c in theirs.scales])  # (scales, seeds)
                apart = ours.mean(1) - theirs.values["cosine_flattened"][0]
                worst = int(np.abs(apart).argmax())
                said.append(
                    f"{theirs.group}: measured {curves.group} differs by {np.abs(apart).mean():.3f} on average, "
                    f"{apart[worst]:+.3f} at c = {theirs.scales[worst]:.2g}, where they are farthest apart."
                )
    return said


def print_scaling(
    records: Records, published: Records | None = None, console: "Console | None" = None
) -> None:
    """A row for each network; of a single one, a row for each layer and its last state."""
    console, own = console or new_console(), groups(records)
    say(console, str(records.made_by.get("source", "scaling")), "bold")
    for note in [*(records.made_by.get("notes") or []), *(published.made_by["notes"] if published else [])]:
        say(console, note, "dim")
    if len(own) == 1:
        scales, layers, names = _by_layer(records, "cosine_saturated")
        rows = [(name, scales, layers[:, i]) for i, name in enumerate(names)]
        rows.append(("last state", scales, own[0].mean("cosine_saturated")))
    else:
        rows = [(curves.group, curves.scales, curves.mean("cosine_saturated")) for curves in own]
    theirs = groups(published) if published else []
    rows += [(curves.group, curves.scales, curves.mean("cosine_flattened")) for curves in theirs]

    def column(c: float) -> Cells:
        cells = [cosine(float(np.interp(np.log(c), np.log(x), y, np.nan, np.nan))) for _, x, y in rows]
        return Cells(f"cosine at\nc = {c:,}", cells, rank=1 if c in (2, 5, 100) else 0)

    columns = [Cells("network" if len(own) > 1 else "layer", [name for name, *_ in rows], right=False)]
    columns += [column(c) for c in SHOWN if c <= own[0].scales[-1]]
    if len(own) > 1:
        spread = [_seeds(curves) for curves in own] + ["-"] * len(theirs)
        error = [number(float(curves.mean("scaling_error")[-1]), 3) for curves in own] + ["-"] * len(theirs)
        columns += [Cells("± over seeds\nat c = 2", spread, rank=2)]
        columns += [Cells(f"error at\nc = {own[0].scales[-1]:,.0f}", error, rank=3)]
    show(console, columns)
    for sentence in sentences(records, published):
        say(console, sentence)


def _seeds(curves: Curves) -> str:
    values = curves.at("cosine_saturated", 2)
    return f"{values.std(ddof=1):.4f}" if len(values) > 1 else "-"


def _by_layer(records: Records, quantity: str) -> tuple[Floats, Floats, list[str]]:
    """Scales, mean over runs (scales, layers), and names."""
    grids = [Grids(records.where(run=run)) for run in records.distinct("run")]
    values = np.mean([grid.of("layer", quantity).values for grid in grids], axis=0)
    return grids[0].of("model", "scale").values[:, 0], values, grids[0].of("layer", quantity).names


def draw_scaling(
    records: Records,
    folder: Path | str,
    *,
    published: Records | None = None,
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Figure 4 of these records; the paths of the files, as written."""
    formats = known_formats(formats)
    title = "Cosine to the saturated network as weights grow"
    text = " ".join(sentences(records, published))
    return save({NAME: (title, figure_scaling(records, published))}, folder, formats, text)


def figure_scaling(records: Records, published: Records | None = None) -> "Figure":
    with style():
        return laid_out(_figure(records, published))


def _figure(records: Records, published: Records | None) -> "Figure":
    from matplotlib.figure import Figure

    own = groups(records)
    kinds = list(dict.fromkeys(curves.kind for curves in own))
    figure = Figure(figsize=(1.2 + 2.9 * len(kinds), 4.9))
    axes: NDArray[Any] = figure.subplots(2, len(kinds), squeeze=False, sharey="row")
    quantity = "cosine_flattened" if published else "cosine_saturated"
    for (top, bottom), kind in zip(axes.T, kinds, strict=True):
        members = [curves for curves in own if curves.kind == kind]
        if len(own) == 1:
            _draw_layers(figure, records, top, bottom)
        for curves in members:
            _draw_group(top, curves, curves.scales, quantity, np.mean)
            _draw_group(bottom, curves, curves.mean("scaled_norm"), "scaling_error", _geometric)
        for curves in groups(published) if published else []:
            if curves.kind == kind:
                look = {"marker": "o" if curves.bias else "s", "markersize": 3.2, "linestyle": ""}
                look |= {"markerfacecolor": "none", "markeredgecolor": GREY, "markeredgewidth": 0.8}
                name = f"published as {'with biases' if curves.bias else 'without'}"
                top.plot(curves.scales, curves.mean("cosine_flattened"), label=name, zorder=1, **look)
        top.set_title(TITLES.get(kind, label(kind)), parse_math=False)
        top.set_xscale("log")
        top.set_xlabel("scale c of the weights")
        if all((curves.mean(quantity)[curves.scales >= UP_TO] > 0.99).all() for curves in own):
            top.set_xlim(0.9, min(UP_TO, float(own[0].scales[-1])))
        top.axhline(1, color=GREY, linewidth=0.6, zorder=0)
        bottom.set_xscale("log")
        bottom.set_yscale("log")
        bottom.set_xlabel("norm of the weights ‖cθ‖")
        top.legend(loc="lower right", fontsize=7)
    how = "all tokens as one vector" if published else "mean over tokens"
    axes[0, 0].set_ylabel(f"cosine to the saturated network\n({how})")
    axes[1, 0].set_ylabel("relative error\n‖f(x; cθ)/cᵏ − limit‖")
    return figure


def _draw_group(ax: "Axes", curves: Curves, x: Floats, quantity: str, middle: Callable[..., Any]) -> None:
    values = curves.of(quantity)
    colour = RED if curves.bias else INK
    name = {None: "last state", True: "measured, with biases", False: "measured, without"}[curves.bias]
    line(ax, x, middle(values, axis=0), color=colour, label=name, marker="", zorder=3)
    if len(values) > 1:
        ax.fill_between(x, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0, zorder=2)


def _geometric(values: Floats, axis: int) -> Floats:
    with np.errstate(divide="ignore"):
        return np.exp(np.log(values).mean(axis))


def _draw_layers(figure: "Figure", records: Records, top: "Axes", bottom: "Axes") -> None:
    layers = Layers(Grids(records.where(run=records.distinct("run")[0])).of("layer", "cosine_saturated"))
    for ax, quantity in ((top, "cosine_saturated"), (bottom, "scaling_error")):
        scales, values, names = _by_layer(records, quantity)
        x = scales if ax is top else groups(records)[0].mean("scaled_norm")
        for i, name in enumerate(names):
            line(ax, x, values[:, i], color=layers.colour(name), linewidth=0.9, marker="")
    layers.bar(figure, [top, bottom])
