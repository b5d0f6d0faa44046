"""Where two runs diverge: a heat map of their differences, and how the differences of each stage grow."""

from typing import TYPE_CHECKING

import numpy as np

from normgrowth.compare.result import Comparison
from normgrowth.errors import InputError
from normgrowth.report.difference_grid import FULL, IDENTICAL, TITLES, difference_grid
from normgrowth.report.figures.style import GRAY, INK, drawing, label, line, panels, step_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS, COLUMNS = 60, 400


@drawing("Relative differences of two runs by tensor and step")
def heat_map(result: Comparison, stage: str | None = None) -> "Figure | None":
    """The relative difference of each tensor at each step in one stage (default: that of the earliest difference)."""
    if stage is not None and stage not in TITLES:
        raise InputError(f"unknown stage {stage!r}; known: {', '.join(TITLES)}")
    grid = difference_grid(result, stage, most_rows=ROWS, most_columns=COLUMNS)
    if grid is None:
        return None
    figure, ax = panels(7.2, 1.4 + 0.14 * len(grid.names))
    shown = np.where(np.isnan(grid.values), np.nan, grid.over_floor)
    look = {"cmap": "RdBu_r", "vmin": -FULL, "vmax": FULL, "interpolation": "nearest"}
    image = ax.imshow(shown, aspect="auto", **look)
    for parting in result.partings:
        if parting.stage == grid.stage and parting.name in grid.names:
            column = int(np.searchsorted(grid.steps, parting.step))
            ax.plot(
                column,
                grid.names.index(parting.name),
                "o",
                markersize=7,
                markerfacecolor="none",
                markeredgecolor=INK,
            )
    ax.set_yticks(range(len(grid.names)), [label(name) for name in grid.names], parse_math=False)
    ax.tick_params(axis="y", labelsize=6, length=0)
    every = max(1, len(grid.steps) // 8)
    ax.set_xticks(
        range(0, len(grid.steps), every), [f"{step:,}" for step in grid.steps[::every]], parse_math=False
    )
    ax.set_xlabel("training step")
    ax.set_title(f"relative difference of the {TITLES[grid.stage]}")
    bar = figure.colorbar(image, ax=ax, pad=0.02)
    bar.set_ticks([-3, -2, -1, 0, 1, 2, 3], labels=["≤ 0.001", "0.01", "0.1", "1", "10", "100", "≥ 1,000"])
    bar.set_label("difference / noise floor\n(red: more than rounding explains)")
    return figure


@drawing("Growth of the differences of two runs")
def growth(result: Comparison) -> "Figure | None":
    """The largest relative difference of each stage at each step, and the noise floor of the main stage."""
    if not result.alignment.stages:
        return None
    figure, ax = panels(7.2, 3.2)
    steps: list[int] = []
    for place, stage in enumerate(result.alignment.stages):
        grid = result.matrix(stage, by=result.alignment.level, run="difference")
        steps = [int(step) for step in grid.steps]
        largest = np.fmax.reduce(grid.values, axis=1)
        line(ax, grid.steps, np.maximum(largest, IDENTICAL), color=f"C{place}", label=TITLES[stage])
    floor = result.matrix(result.main_stage, by="model", run="floor")
    line(
        ax,
        floor.steps,
        floor.values[:, 0],
        color=GRAY,
        linestyle="--",
        marker="",
        label=f"floor, {TITLES[result.main_stage]}",
    )
    for step in sorted({parting.step for parting in result.partings})[:1]:
        ax.axvline(step, color=INK, linewidth=0.6)
    ax.set_yscale("log")
    ax.set_ylabel("largest relative difference")
    step_axis(ax, steps)
    figure.legend(loc="outside right upper")
    return figure


FIGURES = {"heat_map": heat_map, "growth": growth}
