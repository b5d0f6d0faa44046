"""What an optimizer says of each parameter: its learning rate, its decay, where the two would settle.

Decoupled decay (AdamW) takes ηλθ from the weights, beside the gradient's step, so that a measured step can
be split. Coupled decay (SGD, Adam) adds λθ to the gradient, and what becomes of it depends on momentum and
on the second moments: no part of the step is its own, and the split is NaN, unless there is no decay.
"""

from collections.abc import Hashable, Sequence
from math import isfinite, nan
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from normgrowth.dynamics.equilibrium import equilibrium
from normgrowth.errors import InputError
from normgrowth.tracking.tracked_parameters import place


class Rule(NamedTuple):
    """What holds for one parameter at one step.

    decay: ηλ, the fraction that one step takes from the weights; NaN where decay goes through the gradient.
    per_root: the equilibrium's norm, divided by √numel (AdamW); per_gradient: by the gradient's norm (SGD).
    """

    learning_rate: float = nan
    decay: float = 0.0
    per_root: float = nan
    per_gradient: float = nan
    angle: float = nan


STILL = Rule()  # a parameter that this step does not touch


def rules(optimizer: Optimizer, parameters: Sequence[Tensor], moved: Sequence[bool]) -> NDArray[np.float64]:
    """A row of `Rule` for each parameter; `moved` says which have a gradient, since others are left alone."""
    found: dict[Hashable, Rule] = {}
    for group in optimizer.param_groups:
        rule = _rule(optimizer, group)
        found |= dict.fromkeys(map(place, group["params"]), rule)
    of_each = [found.get(place(p), STILL) for p in parameters]
    rows = [
        rule if has else STILL._replace(learning_rate=rule.learning_rate)
        for rule, has in zip(of_each, moved, strict=True)
    ]
    return np.array(rows, np.float64).reshape(len(parameters), len(Rule._fields))


def innermost(optimizer: Optimizer) -> Optimizer:
    """Wrappers such as accelerate's may leave a step out; the optimizer within knows which ones it does."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


def _rule(optimizer: Optimizer, group: dict[str, Any]) -> Rule:
    rate, decay = _number(group.get("lr")), _number(group.get("weight_decay", 0.0))
    decoupled = _decoupled(optimizer, group)
    settled = Rule(rate, 0.0 if decay == 0 else rate * decay if decoupled else nan)
    if decay == 0:
        return settled
    try:
        if isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW) and decoupled and not group["amsgrad"]:
            betas = (float(group["betas"][0]), float(group["betas"][1]))
            e = equilibrium("adamw", lr=rate, weight_decay=decay, numel=1, betas=betas)
            return settled._replace(per_root=_finite(e.norm), angle=e.rotation)
        if isinstance(optimizer, torch.optim.SGD) and not (group["nesterov"] or group["dampening"]):
            momentum = float(group["momentum"])
            e = equilibrium("sgd", lr=rate, weight_decay=decay, gradient_norm=1.0, momentum=momentum)
            return settled._replace(per_gradient=_finite(e.norm), angle=e.rotation)
    except InputError:
        return settled  # these settings have no equilibrium, such as a decay of everything at once: NaN, as documented
    return settled


def _decoupled(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    kinds = tuple(
        getattr(torch.optim, name) for name in ("AdamW", "Muon", "Adafactor") if hasattr(torch.optim, name)
    )
    return bool(group.get("decoupled_weight_decay", isinstance(optimizer, kinds)))


def _number(setting: Any) -> float:
    """NaN where the optimizer finds its own: the Adafactor of transformers has a learning rate of None."""
    return nan if setting is None else float(setting)


def _finite(value: float) -> float:
    return value if isfinite(value) else nan
