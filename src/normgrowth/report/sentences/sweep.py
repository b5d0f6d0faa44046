"""What a sweep shows, in sentences."""

from math import log10
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.report.numbers import number
from normgrowth.report.sweep_grid import SweepGrid

if TYPE_CHECKING:
    from normgrowth.lab.sweep_result import Sweep


def sentences(result: "Sweep") -> list[str]:
    found = SweepGrid(result)
    grows, diverged = found.log_factor > 0, found.diverged
    trained = int(np.isfinite(found.cell("steps")).sum())
    gone = f", of which {count} diverged" if (count := int(diverged.sum())) else ""
    said = [
        f"{trained} of {found.shape[0] * found.shape[1]} cells were trained; the norm grew in "
        f"{int((grows | diverged).sum()) or 'none'}{gone}."
    ]
    if lost := int(found.lost.sum()):
        said.append(
            f"Cells lost (killed or out of memory): {lost}. Whether they grow is unknown, and edges are interpolated "
            "between trained cells; run the same command again to train them."
        )
    if timed_out := int((found.cell("timed_out") == 1).sum()):
        limit = f" of {result.time_limit:g} seconds" if result.time_limit else ""
        said.append(f"Cells that reached the time limit{limit} and stopped early: {timed_out}.")
    if rounded := _without_decay(found):
        said.append(
            f"Cells in which weight decay had no effect: {rounded}; in float32, 1 − ηλ rounds to 1 if ηλ < 3·10⁻⁸."
        )
    return said + _said_of_edges(found) if len(found.records.where(level="column")) else said


def _without_decay(found: SweepGrid) -> int:
    """The number of cells with weight decay that moved but whose decay was lost to rounding."""
    axes = (found.x.setting, found.y.setting)
    given = found.result.settings.weight_decay or 0.0
    decay = found.cell("weight_decay") if "weight_decay" in axes else np.full(found.shape, given)
    return int(((decay > 0) & (found.cell("growth_decay") == 0) & (found.cell("growth") != 0)).sum())


def _said_of_edges(found: SweepGrid) -> list[str]:
    edge, predicted, said = found.column("edge"), found.column("edge_predicted"), []
    inside = np.isfinite(edge) & (edge > 0)
    both = inside & np.isfinite(predicted) & (predicted > 0)
    if inside.any():
        said.append(
            f"Growth ends at {found.y.setting} {_span(edge[inside])}, in {int(inside.sum())} of "
            f"{found.shape[0]} columns."
        )
    elif np.isinf(edge).any():
        said.append(f"Growth does not end within this range of {found.y.setting}.")
    if found.x.setting == "lr" and (fitted := inside & (np.array(found.x.values) > 0)).sum() > 2:
        rates = np.array(found.x.values)[fitted]
        slope = np.polyfit(np.log10(rates), np.log10(edge[fitted]), 1)[0]
        random = " (random gradients: η^1.00)" if both.any() else ""
        said.append(f"This edge of growth scales with the learning rate as η^{slope:.2f}{random}.")
    if both.any():
        ratio = edge[both] / predicted[both]
        span = _span(ratio)
        median = f" (median {number(float(np.median(ratio)), 3)})" if " to " in span else ""
        said.append(f"The edge is {span} times λ*, the edge for random gradients{median}.")
    again = found.column("once") == 0
    for columns, what in (
        (again & (edge > 0), "Growth changes its sign more than once"),
        (again & (edge == 0), f"The norm falls at the smallest {found.y.setting} but grows at a larger one,"),
    ):
        if columns.any():
            values = [found.x.values[i] for i in np.flatnonzero(columns)]
            said.append(f"{what} at {found.x.setting} {', '.join(map(short_value, values))}.")
    return said


def _span(values: NDArray[np.float64]) -> str:
    """The smallest and the largest value; one number if they are equal as written."""
    ends = dict.fromkeys(number(float(end), 3) for end in (values.min(), values.max()))
    return " to ".join(ends)


def edge_in_words(value: float) -> str:
    return (
        "below all"
        if value == 0
        else "above all"
        if value == np.inf
        else ""
        if np.isnan(value)
        else number(value, 3)
    )


def edges_in_words(found: SweepGrid) -> list[str]:
    """How often growth ends in each column: "1", "none" within the grid, "several"."""
    edges, once = found.column("edge"), found.column("once") == 1
    return [
        "several"
        if not single and edge > 0
        else "several (falls first)"
        if not single
        else ""
        if np.isnan(edge)
        else "none"
        if edge in (0, np.inf)
        else "1"
        for edge, single in zip(edges, once, strict=True)
    ]


def short_value(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if value == 0 or -3 <= log10(abs(value)) < 4 else f"{value:.2g}"
