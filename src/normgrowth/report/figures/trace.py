"""Figures of a trace: the paper's Figures 1 and 5 for any series, the budget, the roles.

The same trace gives the same bytes. Figures are built without pyplot, so that neither the user's settings nor an
earlier figure affects them. Each color has one meaning: dark is the whole model, light to dark are the layers in their
order, blue is the growth by alignment, orange is the growth by the size of steps. If a measured run is drawn over a
published one, the measured run is blue and the published one is gray.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.report.figures import budget
from normgrowth.report.figures.single_weights import figure_scalars
from normgrowth.report.figures.style import (
    BLUE,
    GRAY,
    INK,
    ORANGE,
    Layers,
    drawing,
    label,
    label_ends,
    line,
    log_axis,
    panels,
    step_axis,
    value_axis,
)
from normgrowth.report.grids import Grids
from normgrowth.report.numbers import number, times
from normgrowth.report.sentences.trace import model_title, role_name
from normgrowth.trace.result import MATRICES, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OUTSIDE = ("embedding", "position", "head")  # roles of parameters outside of the blocks
# Colors of roles, different from those of the two terms of the budget.
FAMILIES = ("#009e73", "#d55e00", "#7b3294", "#56b4e9", "#a07800", GRAY)
DASHES = ("-", (0, (4, 1.2)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)))
LABELS = {
    "norm": "norm ‖θ‖",
    "cosine": "cosine to the\nprevious checkpoint",
    "angle": "angle to the\nprevious checkpoint (rad)",
    "alignment": "alignment cos(δ, θ)",
    "step_size": "step size ‖δ‖\nbetween checkpoints",
}
# Labels for a tracker, which measures single optimizer steps.
TRACKED = {
    "cosine": "cosine to the weights\none step before",
    "angle": "angle to the weights\none step before (rad)",
    "step_size": "size ‖δ‖ of one step",
}
# These quantities grow with the number of parameters, so panels do not share an axis. The axis starts at zero if the
# smallest value is at most this share of the largest: always for step sizes; for norms unless it would hide growth.
LENGTHS = {"norm": 0.8, "step_size": 1.0}


@dataclass(frozen=True)
class FittedLaw:
    """A growth law fitted to the norm of the model, to be drawn over it."""

    label: str
    steps: NDArray[Any]
    norms: NDArray[np.float64]


@drawing("Norm and direction of the weights during training")
def figure_norm_direction(
    trace: Trace, overlay: Sequence[Trace] = (), fitted: FittedLaw | None = None
) -> "Figure | None":
    """The paper's Figure 1: norm, and cosine between checkpoints, of the model and of its layers.

    If checkpoints are so close that every cosine rounds to 1.0000, the angle is drawn instead of the cosine.
    """
    grids = Grids(trace)
    if len(grids.steps) == 1:
        return _one_step(grids, model_title(trace.selection))
    cosines = np.concatenate(
        [grids.of(level, "cosine").values.ravel() for level in ("model", grids.layer_level)]
    )
    close = np.isfinite(cosines).any() and np.nanmin(cosines) > 0.9999
    return _over_steps(trace, grids, ("norm", "angle" if close else "cosine"), overlay, fitted)


@drawing("Alignment and size of the steps during training")
def figure_alignment_step(trace: Trace, overlay: Sequence[Trace] = ()) -> "Figure | None":
    """The paper's Figure 5, of the model and of its layers."""
    return _over_steps(trace, Grids(trace), ("alignment", "step_size"), overlay)


@drawing("Angle between successive checkpoints")
def figure_angle(trace: Trace, overlay: Sequence[Trace] = ()) -> "Figure | None":
    """Angles on logarithmic axes: the direction converges only if they fall faster than 1/step."""
    grids = Grids(trace)
    curves = [(grids.model("angle"), INK, "model")]
    curves += [(other.model("angle"), GRAY, other.run) for other in map(Grids, overlay)]
    curves = [((t[(t > 0) & (y > 0)], y[(t > 0) & (y > 0)]), *look) for (t, y), *look in curves]
    steps, angles = curves[0][0]
    if len(steps) < 3:
        return None
    figure, ax = panels(4.2, 2.9)
    for (t, y), color, name in reversed(curves):
        line(ax, t, y, color=color, label=label(name))
    middle = len(steps) // 2
    slope = angles[middle] * steps[middle] / steps
    ax.plot(
        steps,
        slope,
        color=ORANGE,
        linewidth=1.0,
        linestyle=(0, (4, 2)),
        label="1/step: angles without a finite sum",
    )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("training step")
    ax.set_ylabel((TRACKED if grids.tracked else LABELS)["angle"])
    ax.set_title("does the direction converge?")
    log_axis(ax.xaxis)
    log_axis(ax.yaxis)
    ax.legend()
    return figure


@drawing("Growth of the norm by role")
def figure_roles(trace: Trace) -> "Figure | None":
    """The norm of each role divided by its norm at the first step."""
    grids = Grids(trace)
    norm = grids.of("role", "norm")
    if len(norm.steps) < 2:
        return None
    factors = dict(
        zip(norm.names, (norm.values / np.where(norm.values[0] > 0, norm.values[0], np.nan)).T, strict=True)
    )
    drawn = {name: factor for name, factor in factors.items() if np.isfinite(factor[1:]).any()}
    if not drawn:
        return None
    figure, ax = panels(5.6, 3.4)
    ends: list[tuple[float, str, str]] = []
    families: dict[str, int] = {}  # color for the family ("attention"), dashes for its members
    for name, factor in drawn.items():
        family = name.partition(".")[0]
        member = families.setdefault(family, 0)
        families[family] += 1
        color = FAMILIES[list(families).index(family) % len(FAMILIES)]
        line(
            ax, norm.steps, factor, color=color, linestyle=DASHES[member % len(DASHES)], label=role_name(name)
        )
        ends.append((float(factor[np.isfinite(factor)][-1]), role_name(name), color))
    steps, model = grids.model("norm")
    if len(steps) > 1 and steps[0] == norm.steps[0] and model[0] > 0:
        line(ax, steps, model / model[0], color=INK, linewidth=2.0, label="model")
        ends.append((float(model[-1] / model[0]), "model", INK))
    if min(ends)[0] > 0 and max(ends)[0] / min(ends)[0] > 20:
        ax.set_yscale("log")
    else:
        value_axis(ax)
    ax.axhline(1, color=GRAY, linewidth=0.6, zorder=0)
    ax.set_ylabel(f"norm relative to step {norm.steps[0]:,}")
    step_axis(ax, [int(step) for step in norm.steps])
    label_ends(ax, ends)
    if left_out := ", ".join(label(name) for name in factors if name not in drawn):
        note = f"not drawn (norm at the first step is zero or not finite): {left_out}"
        figure.supxlabel(note, fontsize=7, color=GRAY, parse_math=False, wrap=True)
    return figure


@drawing("Growth with and without embeddings")
def figure_embeddings(trace: Trace) -> "Figure | None":
    """Two panels: the norm of all counted parameters, and the norm without embeddings, positions and the head.

    None if the trace does not count them; `trace --include all` does.
    """
    from matplotlib.figure import Figure

    grids = Grids(trace)
    roles = grids.of("role", "norm")
    inside = [name not in OUTSIDE for name in roles.names]
    if len(roles.steps) < 2 or all(inside) or not any(inside):
        return None
    panels = {
        "with embeddings": np.sqrt((roles.values**2).sum(axis=1)),
        "without embeddings": np.sqrt((roles.values[:, inside] ** 2).sum(axis=1)),
    }
    figure = Figure(figsize=(7.2, 2.9))
    for ax, (title, norms) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        line(ax, roles.steps, norms, color=INK)
        factor = f" (×{times(norms[-1] / norms[0])})" if norms[0] > 0 else ""
        ax.set_title(f"{title}{factor}", parse_math=False)
        ax.set_ylabel(LABELS["norm"])
        value_axis(ax, zero_below=LENGTHS["norm"])
        step_axis(ax, [int(step) for step in roles.steps])
    return figure


FIGURES = {
    "norm_direction": figure_norm_direction,
    "alignment_step": figure_alignment_step,
    "angle": figure_angle,
    "budget": budget.figure_budget,
    "roles": figure_roles,
    "embeddings": figure_embeddings,
    "scalars": figure_scalars,
}


def _over_steps(
    trace: Trace,
    grids: Grids,
    quantities: Sequence[str],
    overlay: Sequence[Trace],
    fitted: FittedLaw | None = None,
) -> "Figure | None":
    """A row for each quantity; the model on the left, the layers on the right, a panel for each stack."""
    levels = ("model", grids.layer_level)
    quantities = [q for q in quantities if any(grids.of(level, q).drawable() for level in levels)]
    if not quantities:
        return None
    others = list(map(Grids, overlay))
    scale = Scale.of(grids, others)
    layers = Layers(grids.of(grids.layer_level, quantities[0]), published=trace.published and bool(others))
    own, theirs_color = (GRAY, BLUE) if trace.published and others else (INK, GRAY)
    columns = 1 + len(layers.stacks)
    figure, axes = panels(
        (3.9, 7.2, 9.4, 11.6)[columns - 1],
        0.3 + 2.35 * len(quantities),
        len(quantities),
        columns,
        squeeze=False,
        sharex=True,
    )
    for row, quantity in zip(axes, quantities, strict=True):
        # Quantities that do not grow with the number of parameters share an axis.
        comparable = row[1:] if quantity in LENGTHS else row
        for ax in comparable[1:]:
            ax.sharey(comparable[0])
            ax.tick_params(labelleft=False)
        model, grid = (grids.of(level, quantity) for level in levels)
        for i, other in enumerate(others):  # behind this run, in gray, with different dashes
            (level, name), dashes = other.lead, DASHES[i % len(DASHES)]
            theirs = other.of(level, quantity)
            xy = scale.x(other, theirs.steps), scale.y(other, quantity, theirs.curve(name))
            line(row[0], *xy, color=theirs_color, linestyle=dashes, label=label(other.run))
        xy = scale.x(grids, model.steps), scale.y(grids, quantity, model.curve("model"))
        line(row[0], *xy, color=own, label=label(grids.run) if others else "model")
        if quantity == "norm" and grids.matrices_lead:
            parts = grids.of("part", "norm")
            xy = scale.x(grids, parts.steps), scale.y(grids, quantity, parts.curve(MATRICES))
            line(row[0], *xy, color=own, linestyle=DASHES[1], label=MATRICES)
        if quantity == "norm" and fitted is not None:
            xy = scale.x(grids, fitted.steps), scale.y(grids, "norm", fitted.norms)
            row[0].plot(*xy, color=ORANGE, linewidth=1.2, linestyle=(0, (4, 2)), label=label(fitted.label))
        if quantity == quantities[0] and len(row[0].lines) > 1:
            row[0].legend(loc="upper left" if others and quantity == "norm" else "best")
        for ax, names in zip(row[1:], layers.stacks.values(), strict=True):
            width = 1.2 if len(names) <= 16 else 0.8
            for name in names:
                x, color = scale.x(grids, grid.steps), layers.color(name)
                line(ax, x, grid.curve(name), color=color, linewidth=width, label=name)
        row[0].set_ylabel(scale.label(quantity))
        for ax in row:
            value_axis(ax, zero_below=LENGTHS.get(quantity, 0.0))
            if quantity == "alignment":
                ax.axhline(0, color=GRAY, linewidth=0.6, zorder=0)
    axes[0, 0].set_title(label(model_title(trace.selection)), parse_math=False)
    for ax, stack in zip(axes[0, 1:], layers.stacks, strict=True):
        whose = stack if columns > 2 else grids.run if others else ""
        by = f"by layer{grids.of_layers}"
        ax.set_title(f"{label(whose)}, {by}" if whose else by, parse_math=False)
    for ax in axes[-1]:
        scale.axis(ax, grids)
    if columns > 1:
        layers.key(figure, list(axes[:, 1:].ravel()))
    figure.align_ylabels(axes[:, 0])
    return figure


@dataclass(frozen=True)
class Scale:
    """Common axes of overlaid runs: relative to each run if the runs differ much in length or norm."""

    share: bool  # steps as a share of the run
    relative: bool  # norms and step sizes divided by the norm at the first step
    tracked: bool = False  # all runs measure single optimizer steps

    @staticmethod
    def of(grids: Grids, others: Sequence[Grids]) -> "Scale":
        runs = [run for run in (grids, *others) if run.steps]
        if len(runs) < 2:
            return Scale(False, False, grids.tracked)
        ends = [run.steps[-1] for run in runs]
        sizes = [float(norms.max()) for run in runs if len(norms := _lead_norms(run))]
        return Scale(max(ends) > 5 * min(ends), len(sizes) == len(runs) and max(sizes) > 5 * min(sizes))

    def x(self, run: Grids, steps: NDArray[Any]) -> NDArray[Any]:
        return steps / max(run.steps[-1], 1) if self.share else steps

    def y(self, run: Grids, quantity: str, values: NDArray[Any]) -> NDArray[Any]:
        return values / _lead_norms(run)[0] if self.relative and quantity in LENGTHS else values

    def label(self, quantity: str) -> str:
        first = {"norm": "norm ‖θ‖ / ‖θ₀‖", "step_size": "step size ‖δ‖ / ‖θ₀‖\nbetween checkpoints"}
        if self.relative and quantity in LENGTHS:
            return first[quantity]
        return TRACKED.get(quantity, LABELS[quantity]) if self.tracked else LABELS[quantity]

    def axis(self, ax: "Axes", run: Grids) -> None:
        if self.share:
            ax.set_xlim(-0.02, 1.02)
            ax.set_xlabel("share of the run")
        else:
            step_axis(ax, run.steps)


def _lead_norms(grids: Grids) -> NDArray[np.float64]:
    """The finite norms of the matrices if they lead, else of the model."""
    level, name = grids.lead
    grid = grids.of(level, "norm")
    norms = grid.curve(name) if name in grid.names else np.zeros(0)
    return norms[np.isfinite(norms)]


def _one_step(grids: Grids, title: str) -> "Figure | None":
    """The norm of each layer at the only checkpoint."""
    grid = grids.of(grids.layer_level, "norm")
    if not grid.drawable():
        return None
    figure, ax = panels(4.6, 2.9)
    for position, names in Layers(grid).side_by_side(ax):
        values = np.array([grid.curve(name)[-1] for name in names])
        ax.plot(
            position,
            values,
            "o-",
            color=GRAY,
            linewidth=0.8,
            markersize=4,
            markerfacecolor=INK,
            markeredgewidth=0,
        )
    ax.set_ylabel(f"{LABELS['norm']}{grids.of_layers}")
    value_axis(ax, zero_below=1.0)
    model = grids.model("norm")[1]
    whole = f"; norm of the {label(title)}: {number(model[0])}" if len(model) else ""
    ax.set_title(f"step {grids.steps[0]:,}{whole}", parse_math=False)
    return figure
