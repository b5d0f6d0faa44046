"""Figures of dynamics: norms of checkpoints and as predicted, alignment, budget, and which steps make the norm grow."""

from typing import TYPE_CHECKING

import numpy as np

from normgrowth.dynamics.result import Dynamics
from normgrowth.report.figures.budget import stack_or_lines
from normgrowth.report.figures.style import (
    BLUE,
    GRAY,
    INK,
    ORANGE,
    drawing,
    label,
    line,
    panels,
    step_axis,
    value_axis,
)
from normgrowth.report.numbers import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {"aligned": BLUE, "misaligned": ORANGE}
FAR = 1.5  # times the largest measured norm: larger predictions are cut, since they would hide the measured growth


@drawing("Norms of the checkpoints and as predicted")
def figure_prediction(d: Dynamics) -> "Figure | None":
    """The measured norm, and the predictions of both models."""
    d = d.leading
    if d.aligned is None or d.misaligned is None:
        return None
    figure, ax = _axes(d)
    line(ax, d.steps, np.array(d.norms), color=INK, label="checkpoints")
    highest = FAR * np.nanmax(d.norms)
    for fit in (d.misaligned, d.aligned):
        predicted = np.array(fit.predicted)
        said = f"{fit.model}, κ = {fit.kappa if d.kappa is None else d.kappa:.3g}"
        if predicted[-1] > highest:
            said += f" (off the scale: {number(predicted[-1], 3)} at the end)"
        shown = np.where(predicted <= highest, predicted, np.nan)
        line(ax, d.steps, shown, color=COLORS[fit.model], linestyle=(0, (4, 2)), label=said)
    ax.set_ylabel("norm ‖θ‖")
    grown = np.nanmin(d.norms) <= 0.5 * np.nanmax(d.norms)
    value_axis(ax, zero_below=0.5 if grown else 0.0)
    figure.set_figheight(3.5)
    figure.legend(loc="outside lower center")
    return figure


@drawing("Alignment of the steps with the weights")
def figure_alignment(d: Dynamics) -> "Figure | None":
    """The cosine of each step with the weights."""
    d = d.leading
    if not np.isfinite(d.alignments).any():
        return None
    figure, ax = _axes(d)
    line(ax, d.steps[-len(d.alignments) :], np.array(d.alignments), color=INK)
    ax.axhline(0, color=GRAY, linewidth=0.6, zorder=0)
    ax.set_ylabel("alignment cos(δ, θ)")
    value_axis(ax)
    return figure


@drawing("Where the growth of the squared norm comes from")
def figure_budget(d: Dynamics) -> "Figure | None":
    """The growth of ‖θ‖² and its two terms: alignment with the weights, and size of the steps."""
    d = d.leading
    curves = []
    for quantity in ("total_growth", "total_growth_alignment", "total_growth_steps"):
        if not len(d.records.where(level=d.level, name=d.name, quantity=quantity)):
            return None
        steps, values = d.records.series(quantity, level=d.level, name=d.name)
        curves.append(np.concatenate([[0.0], values]))
    b = d.budget
    figure, ax = _axes(d)
    at = np.concatenate([d.steps[:1], steps])
    stack_or_lines(ax, at, curves, (b.growth, b.by_alignment * b.growth, b.by_steps * b.growth))
    ax.set_ylabel(f"growth of ‖θ‖² since step {d.steps[0]:,}")
    value_axis(ax, zero_below=1.0)
    return figure


@drawing("Which steps make the norm grow")
def figure_plane(d: Dynamics) -> "Figure | None":
    """Each interval as a point (‖δ‖, ⟨θ,δ⟩): the norm grows above the curve −½‖δ‖² and falls below it."""
    d = d.leading
    rows = d.records.where(level=d.level, name=d.name, quantity="growth_alignment")
    if not len(rows):
        return None
    ends, twice = rows.series("growth_alignment", level=d.level, name=d.name)
    size = dict(zip(d.steps[1:], d.step_sizes, strict=True))
    sizes = np.array([size.get(end, np.nan) for end in ends.tolist()])
    figure, ax = panels(4.6, 3.2)
    points = ax.scatter(sizes, twice / 2, c=ends, s=14, cmap="viridis_r", linewidths=0, zorder=3)
    low, high = np.nanmin(sizes), np.nanmax(sizes)
    at = np.linspace(0 if low < 0.5 * high else 0.95 * low, 1.05 * high, 200)
    ax.plot(at, -(at**2) / 2, color=GRAY, linewidth=1.0, linestyle=(0, (4, 2)), label="−½‖δ‖²: no growth")
    ax.axhline(0, color=GRAY, linewidth=0.6, zorder=0)
    ax.set_xlim(at[0], at[-1])
    ax.set_xlabel("step size ‖δ‖ between checkpoints")
    ax.set_ylabel("⟨θ, δ⟩")
    ax.set_title(_title(d), parse_math=False)
    ax.legend()
    value_axis(ax)
    figure.colorbar(points, ax=ax, label="training step", pad=0.02, format="{x:,.0f}")
    return figure


FIGURES = {
    "prediction": figure_prediction,
    "alignment": figure_alignment,
    "budget": figure_budget,
    "plane": figure_plane,
}


def _title(d: Dynamics) -> str:
    return label(d.run if d.level == "model" else f"{d.run}: {d.name}")


def _axes(d: Dynamics) -> "tuple[Figure, Axes]":
    figure, ax = panels(4.6, 3.0)
    ax.set_title(_title(d), parse_math=False)
    step_axis(ax, d.steps)
    return figure, ax
