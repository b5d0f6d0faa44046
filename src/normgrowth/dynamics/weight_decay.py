"""Decay: the equilibrium of random gradients, set beside the norms of a run."""

from dataclasses import dataclass
from math import isfinite, nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from normgrowth.dynamics.equilibrium import Equilibrium, boundary, equilibrium
from normgrowth.dynamics.prediction import holding_decay
from normgrowth.errors import InputError
from normgrowth.schedules import Schedule


@dataclass(frozen=True)
class Settling:
    """The equilibrium at one learning rate of a run.

    step, lr: where the run had this learning rate. boundary: λ*, whose equilibrium is the run's first norm.
    reached: the run's last norm over that of the equilibrium.
    """

    step: int
    lr: float
    equilibrium: Equilibrium
    boundary: float
    reached: float


def settling(
    steps: ArrayLike, norms: ArrayLike, schedule: Schedule, weight_decay: float, **setting: Any
) -> list[Settling]:
    """Equilibria at the largest learning rate of a run and at its last; setting: as for `equilibrium`."""
    at, n = np.asarray(steps, np.int64), np.asarray(norms, np.float64)
    n = n[np.isfinite(n) & (n > 0)]
    if not len(n) or at[-1] < 1:
        raise InputError("an equilibrium is set beside norms after step 0; there are none")
    first, last = int(at[0]), int(at[-1]) - 1
    corners = [int(min(max(knot, first), last)) for knot in schedule.knots()]
    highest = max([first, *corners, last], key=schedule)
    rows = []
    for step in [highest, last] if schedule(highest) > schedule(last) else [last]:
        lr = schedule(step)
        found = equilibrium(lr=lr, weight_decay=weight_decay, **setting)
        reached = float(n[-1] / found.norm) if found.norm > 0 else nan
        rows.append(Settling(step, lr, found, boundary(float(n[0]), lr=lr, **setting), reached))
    return rows


def felt_decay(weight_decay: float, setting: dict[str, Any]) -> float:
    """The λ of a decoupled decay (or eq3) that shrinks weights as fast as this one does.

    A coupled λ passes through SGD's momentum, 1/(1 − μ) times as much, or through Adam's division by the
    gradient's rms.
    """
    optimizer, way = setting["optimizer"], setting.get("decay")
    if optimizer == "sgd" and way in (None, "coupled"):
        momentum = setting.get("momentum", 0.0)
        if not 0 <= momentum < 1:
            raise InputError(f"momentum must be at least 0 and less than 1, not {momentum}")
        return weight_decay / (1 - momentum)
    if optimizer == "adamw" and way == "coupled":
        size, numel = setting.get("gradient_norm"), setting.get("numel")
        if size is None or numel is None:
            lacking = "gradient_norm" if size is None else "numel, the number of weights"
            raise InputError(f"adamw with coupled decay depends on {lacking}: it is needed")
        if not size > 0:
            raise InputError(f"gradient_norm must be more than 0, not {size}")
        return weight_decay * sqrt(numel) / size
    return weight_decay


def lacking(weight_decay: float, setting: dict[str, Any]) -> str | None:
    """Why `settling` has nothing to say, where that is no fault of whoever asks."""
    if setting["optimizer"] == "adamw" and setting["numel"] is None:
        return "There is no count of the weights here, and so no equilibrium of adamw to set beside them."
    if setting["optimizer"] == "sgd" and setting["gradient_norm"] is None and not weight_decay:
        return "With λ = 0 there is no equilibrium; λ*, which would hold the first norm, depends on the gradient norm."
    return None


def sentences(rows: list[Settling], weight_decay: float, kappa: float, setting: dict[str, Any]) -> list[str]:
    """What the equilibria say; kappa: that of misaligned dynamics, for the threshold under Assumption 1."""
    said = []
    for row in rows:
        at, found = f"At η = {row.lr:.3g} (step {row.step:,})", row.equilibrium
        if row.lr == 0:
            said.append(f"{at} nothing but the decay moves: there is no equilibrium of random gradients.")
            continue
        if not isfinite(found.norm):
            said.append(
                f"{at} and λ = 0 there is no equilibrium: random gradients grow the norm without end."
            )
        else:
            said.append(
                f"{at} random gradients settle at a norm of {found.norm:.4g} and turn by {found.rotation:.3g} radians "
                f"a step; the distance falls by e in {found.time:,.0f} steps. The last norm is {row.reached:.3g} of it."
            )
        way = "eq3" if setting.get("decay") == "eq3" else "decoupled"
        hold = holding_decay(kappa, row.lr, decay=way) / felt_decay(1.0, setting)
        said.append(
            f"λ* = {row.boundary:.3g} would hold the first norm against random gradients (here λ = {weight_decay:g}); "
            f"under Assumption 1, misaligned, λ = {hold:.3g} would hold any."
        )
    return said
