"""Where growth ends in each column of a sweep: measured, and predicted for random gradients.

At the edge, the terms of the budget cancel: alignment + steps = −decay. For AdamW with random gradients, the edge is at
λ* = ηC/(2‖θ₀‖²) for any β₁. But with β₁ = 0.9, ‖δ‖² compensates only 5% of the decay and ⟨θ,δ⟩ the other 95%, because
the moving average in Adam's step contains gradients that are already part of θ.
"""

from collections.abc import Collection, Mapping
from math import exp, inf, isfinite, log, nan

from normgrowth.dynamics.equilibrium import stationary_decay
from normgrowth.errors import InputError
from normgrowth.lab.cells.axis import Axis
from normgrowth.lab.cells.cell import Outcome
from normgrowth.lab.cells.edge_search import Cell, Change, changes
from normgrowth.lab.settings import TrainSettings


def edges(
    settings: TrainSettings,
    x: Axis,
    y: Axis,
    outcomes: Mapping[Cell, Outcome],
    grows: Mapping[Cell, bool],
    lost: Collection[Cell] = (),
) -> list[dict[str, float]]:
    """Return for each column:

    edge                     where the norm neither grows nor falls, interpolated between two rows; 0 or inf if outside
                             the grid; NaN if lost cells may hide it
    edge_below, edge_above   these two rows: the last that grows, the first that falls
    once                     1 if no trained cell contradicts a single edge
    edge_predicted           λ* for random gradients (only for learning rate × weight decay with a constant schedule)
    edge_alignment, _steps   contributions of alignment and steps at the edge, as fractions of the loss to decay
    """
    found = []
    for i, change in enumerate(changes(grows, len(x.values), len(y.values), lost)):
        below, above = (outcomes.get((i, row)) for row in (change.below, change.above))
        weight = _weight(below, above)
        row = {
            x.setting if x.numbers else "column": float(x.values[i]) if x.numbers else float(i),
            "edge": nan if _unknown(i, change, len(y.values), lost) else _between(y, change, weight),
            "edge_below": float(y.values[change.below]) if change.below >= 0 else 0.0,
            "edge_above": float(y.values[change.above]) if change.above < len(y.values) else inf,
            "once": float(change.once),
            "edge_predicted": _predicted(settings, x, y, i, below or above),
        }
        terms = {
            term: _at(f"growth_{term}", below, above, weight) for term in ("alignment", "steps", "decay")
        }
        for term in ("alignment", "steps"):
            row[f"edge_{term}"] = terms[term] / -terms["decay"] if terms["decay"] < 0 else nan
        found.append(row)
    return found


def _unknown(i: int, change: Change, rows: int, lost: Collection[Cell]) -> bool:
    """Whether a lost cell may be the other side of the change."""
    beyond = [row for column, row in lost if column == i and change.below < row < change.above]
    return bool(beyond) and (change.below < 0 or change.above >= rows)


def _weight(below: Outcome | None, above: Outcome | None) -> float:
    """Return the position of zero growth between the rows, from 0 (below) to 1 (above), by linear interpolation."""
    if below is None or above is None or below.diverged or not below.growth > above.growth:
        return nan
    return below.growth / (below.growth - above.growth)


def _at(quantity: str, below: Outcome | None, above: Outcome | None, weight: float) -> float:
    if below is None or above is None:
        return nan
    low, high = getattr(below, quantity), getattr(above, quantity)
    return low + weight * (high - low)


def _between(y: Axis, change: Change, weight: float) -> float:
    if change.below < 0:
        return 0.0
    if change.above >= len(y.values):
        return inf
    low, high = float(y.values[change.below]), float(y.values[change.above])
    weight = weight if isfinite(weight) else 0.5
    return exp(log(low) + weight * (log(high) - log(low))) if low > 0 else low + weight * (high - low)


def _predicted(settings: TrainSettings, x: Axis, y: Axis, i: int, outcome: Outcome | None) -> float:
    if (x.setting, y.setting) != ("lr", "weight_decay") or outcome is None or outcome.norm_start <= 0:
        return nan
    if settings.optimizer not in ("adamw", "sgd") or settings.schedule != "constant" or settings.warmup:
        return nan
    try:
        return stationary_decay(
            outcome.norm_start,
            settings.optimizer,
            lr=float(x.values[i]),
            numel=outcome.numel,
            gradient_norm=outcome.gradient_norm if settings.optimizer == "sgd" else None,
            momentum=settings.momentum,
        )
    except InputError:
        return nan
