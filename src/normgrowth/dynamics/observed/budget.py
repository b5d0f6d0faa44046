"""The growth budget of a trace: the parts of 2⟨θ,δ⟩ and ‖δ‖² in the growth of ‖θ‖², summed over intervals."""

from math import nan

import numpy as np
from numpy.typing import NDArray

from normgrowth.dynamics.observed.intervals import Floats, value_at
from normgrowth.dynamics.prediction import Decay, Rate, schedule_sums
from normgrowth.dynamics.result import GrowthBudget
from normgrowth.records import Records


def growth_budget(
    rows: Records,
    level: str,
    steps: NDArray[np.int64],
    norms: Floats,
    schedule: Rate | None,
    weight_decay: float | None,
    decay: Decay,
) -> GrowthBudget:
    """Return the growth budget. rows: comparisons between neighboring checkpoints, from `intervals_of`."""
    until = _until(rows, level, int(steps[-1]))
    total, aligned, stepped = (
        value_at(rows, until, quantity, level)
        for quantity in ("total_growth", "total_growth_alignment", "total_growth_steps")
    )
    moved = value_at(rows, until, "step_size", level, "first")
    summed = steps <= until
    taken = nan
    if schedule is not None and weight_decay is not None:
        taken = _taken_by_decay(schedule, steps[summed], norms[summed], weight_decay, decay)
    return GrowthBudget(
        until, total, _over(aligned, total), _over(stepped, total), taken, _over(moved * moved, stepped)
    )


def _until(rows: Records, level: str, last: int) -> int:
    """Return the last step at which the summed budget is finite; `last` if there is no budget."""
    if not len(rows.where(quantity="total_growth")):
        return last
    steps, total = rows.series("total_growth", level=level)
    known = steps[np.isfinite(total)]
    return int(known[-1]) if len(known) else last


def _over(a: float, b: float) -> float:
    return a / b if b else nan


def _taken_by_decay(
    schedule: Rate, steps: NDArray[np.int64], norms: Floats, weight_decay: float, decay: Decay
) -> float:
    """Return 2λΣη‖θ‖², with the mean of ‖θ‖² at both ends of each interval."""
    at = steps.astype(np.float64)
    once = np.diff(at if decay == "eq3" else schedule_sums(schedule, at, 1))
    return float(np.nansum(weight_decay * once * (norms[1:] ** 2 + norms[:-1] ** 2)))
