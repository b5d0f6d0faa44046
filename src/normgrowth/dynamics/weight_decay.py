"""Weight decay: its effect on the weights for each optimizer, and the equilibrium of random gradients for a run."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite, nan, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from normgrowth.dynamics.equilibrium import Decay, Equilibrium, Optimizer, equilibrium, stationary_decay
from normgrowth.dynamics.prediction import holding_decay
from normgrowth.errors import InputError
from normgrowth.schedules import OptimizerGroup, Schedule
from normgrowth.text import one_line

ADAM = re.compile(r"(Fused|Paged)?AdamW?(8bit|32bit)?")  # classes whose equilibrium is that of "adamw"


@dataclass(frozen=True)
class OptimizerSettings:
    """The optimizer of a run: arguments of `equilibrium`. decay: None for PyTorch's default; numel: None if unknown.

    optimizer: "other" if there is no closed form for the optimizer of a tracked run or for its settings.
    """

    optimizer: Optimizer | Literal["other"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.0
    gradient_norm: float | None = None
    decay: Decay | None = None
    invariant: bool = False
    numel: int | None = None

    def has_equilibrium(self, weight_decay: float) -> bool:
        """Whether an equilibrium can be computed: adamw needs numel, sgd a gradient norm or a weight decay."""
        if self.optimizer == "other":
            return False
        if self.optimizer == "adamw":
            return self.numel is not None
        return self.gradient_norm is not None or weight_decay > 0


@dataclass(frozen=True)
class EquilibriumAt:
    """The equilibrium at one learning rate of a run.

    step, lr: a step of the run and its learning rate. stationary_decay: λ*, whose equilibrium is the run's first norm.
    holding_decay: the λ that keeps the norm constant under Assumption 1 with misaligned steps. reached: the run's last
    norm over the norm of the equilibrium.
    """

    __repr__ = one_line

    step: int
    lr: float
    equilibrium: Equilibrium
    stationary_decay: float
    holding_decay: float
    reached: float


Recorded = tuple[float | None, OptimizerSettings, tuple[str, ...]]  # weight decay, settings, notes


def as_recorded(
    groups: Sequence[OptimizerGroup],
    optimizer: str,
    weight_decay: float | None,
    settings: OptimizerSettings,
    gradient_norm: float | None,
) -> Recorded:
    """Return weight decay and settings, and the reason if there is no equilibrium, as a note.

    Values that are not given come from the largest recorded parameter group. optimizer: its class; "" if unknown.
    gradient_norm: the recorded √E‖g‖²; None: not recorded.
    """
    largest = max(groups, key=lambda group: group.parameters)
    known = isfinite(largest.weight_decay)
    if weight_decay is None and known:
        weight_decay = largest.weight_decay
    if settings != OptimizerSettings():
        return weight_decay, settings, ()
    decay: Decay = "decoupled" if largest.decoupled else "coupled"
    named = optimizer or "the optimizer"
    adam = largest.betas is not None and (not optimizer or ADAM.fullmatch(optimizer) is not None)
    if adam and largest.betas is not None:
        settings = replace(settings, betas=largest.betas)
        if largest.decoupled or not weight_decay:
            return weight_decay, settings, ()
        problem = f"the decay of {named} is coupled, and its effect depends on the gradients"
    elif largest.momentum is not None and optimizer in ("", "SGD"):
        settings = replace(settings, optimizer="sgd", momentum=largest.momentum, decay=decay)
        if not weight_decay:
            return weight_decay, settings, ()
        if gradient_norm is not None and not largest.options.get("nesterov"):
            return weight_decay, replace(settings, gradient_norm=gradient_norm), ()
        nesterov = largest.options.get("nesterov")
        problem = "SGD with Nesterov momentum" if nesterov else "no gradient norm was recorded"
    elif largest.betas is None and largest.momentum is None and not optimizer:
        return weight_decay, settings, ()
    elif not weight_decay:
        return weight_decay, replace(settings, optimizer="other", decay=decay), ()
    else:
        problem = f"there is no closed form for {named}"
    note = f"the equilibrium under weight decay {weight_decay:g} is not computed: {problem}"
    return weight_decay, replace(settings, optimizer="other", decay=decay), (note,)


def equilibria(
    steps: ArrayLike,
    norms: ArrayLike,
    schedule: Schedule,
    weight_decay: float,
    settings: OptimizerSettings,
    kappa: float,
) -> tuple[EquilibriumAt, ...]:
    """Return the equilibria at the largest and at the last learning rate of a run. kappa: κ of misaligned dynamics.

    The result is empty if the optimizer settings do not determine an equilibrium, see
    `OptimizerSettings.has_equilibrium`.
    """
    if not settings.has_equilibrium(weight_decay):
        return ()
    at, n = np.asarray(steps, np.int64), np.asarray(norms, np.float64)
    n = n[np.isfinite(n) & (n > 0)]
    if not len(n) or at[-1] < 1:
        raise InputError(f"an equilibrium needs a finite norm > 0 after step 0; the last step is {at[-1]}")
    first, last = int(at[0]), int(at[-1]) - 1
    corners = [int(min(max(knot, first), last)) for knot in schedule.knots()]
    highest = max([first, *corners, last], key=schedule)
    way = "eq3" if settings.decay == "eq3" else "decoupled"
    options: dict[str, Any] = asdict(settings)
    rows = []
    for step in [highest, last] if schedule(highest) > schedule(last) else [last]:
        lr = schedule(step)
        found = equilibrium(lr=lr, weight_decay=weight_decay, **options)
        rows.append(
            EquilibriumAt(
                step,
                lr,
                found,
                stationary_decay(float(n[0]), lr=lr, **options),
                holding_decay(kappa, lr, decay=way) / decoupled_equivalent(1.0, settings),
                float(n[-1] / found.norm) if found.norm > 0 else nan,
            )
        )
    return tuple(rows)


def decoupled_equivalent(weight_decay: float, settings: OptimizerSettings) -> float:
    """Return the λ of a decoupled decay (or eq3) that shrinks the weights at the same rate; NaN if it is unknown.

    SGD's momentum multiplies a coupled λ by 1/(1 − μ); Adam divides it by the rms of the gradient.
    """
    if settings.optimizer == "other":
        return nan if weight_decay and settings.decay == "coupled" else weight_decay
    if settings.optimizer == "sgd" and settings.decay in (None, "coupled"):
        if not 0 <= settings.momentum < 1:
            raise InputError(f"momentum must be >= 0 and < 1, got {settings.momentum}")
        return weight_decay / (1 - settings.momentum)
    if settings.optimizer == "adamw" and settings.decay == "coupled":
        size, numel = settings.gradient_norm, settings.numel
        if size is None or numel is None:
            lacking = "gradient_norm" if size is None else "numel, the number of weights"
            raise InputError(f"adamw with coupled decay needs {lacking}")
        if not size > 0:
            raise InputError(f"gradient_norm must be > 0, got {size}")
        return weight_decay * sqrt(numel) / size
    return weight_decay
