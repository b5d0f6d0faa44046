"""What an optimizer says of each parameter: its learning rate, its decay, where the two would settle.

Decoupled decay (AdamW) takes ηλθ from the weights, beside the gradient's step, so that a measured step can
be split. Coupled decay (SGD, Adam) adds λθ to the gradient, and what becomes of it depends on momentum and
on the second moments: no part of the step is its own, and the split is NaN, unless there is no decay.
"""

from collections.abc import Sequence
from math import isfinite, nan
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim import Optimizer

from normgrowth.dynamics.equilibrium import equilibrium
from normgrowth.errors import InputError
from normgrowth.schedules import OptimizerGroup
from normgrowth.tracking.measured_step import Owned


class UpdateRule(NamedTuple):
    """What holds for one parameter at one step.

    decay: ηλ, the fraction that one step takes from the weights; NaN where decay goes through the gradient.
    norm_per_sqrt_numel, norm_per_gradient: the equilibrium's norm, over √numel (AdamW) or the gradient's norm (SGD).
    """

    learning_rate: float = nan
    decay: float = 0.0
    norm_per_sqrt_numel: float = nan
    norm_per_gradient: float = nan
    angle: float = nan


NO_UPDATE = UpdateRule()  # of a parameter that this step does not touch


def read_rules(optimizer: Optimizer, owned: Sequence[Owned], moved: Sequence[bool]) -> NDArray[np.float64]:
    """A row of `UpdateRule` for each parameter; `moved` says which have a gradient, since others are left alone."""
    known = {id(group): _rule(optimizer, group) for group in optimizer.param_groups}
    rows = []
    for own, moves in zip(owned, moved, strict=True):
        rule = known.get(id(own.group), NO_UPDATE)
        rows.append(rule if moves else NO_UPDATE._replace(learning_rate=rule.learning_rate))
    return np.array(rows, np.float64).reshape(len(owned), len(UpdateRule._fields))


def describe_groups(optimizer: Optimizer) -> list[OptimizerGroup]:
    """What the optimizer was given for each group of parameters."""
    found = []
    for group in optimizer.param_groups:
        betas, momentum = group.get("betas"), group.get("momentum")
        found.append(
            OptimizerGroup(
                parameters=sum(p.numel() for p in group["params"]),
                weight_decay=_number(group.get("weight_decay", 0.0)),
                decoupled=_decoupled(optimizer, group),
                betas=(float(betas[0]), float(betas[1])) if betas is not None and len(betas) == 2 else None,
                momentum=None if momentum is None else float(momentum),
            )
        )
    return found


def unwrap_optimizer(optimizer: Any) -> Optimizer:
    """The optimizer inside wrappers such as accelerate's: a wrapper may leave a step out, and only it knows."""
    if type(optimizer).__module__.partition(".")[0] == "deepspeed":
        raise InputError(
            f"{type(optimizer).__name__}: DeepSpeed's ZeRO steps flat partitions that are not the model's parameters; "
            "use DDP or FSDP2 (torch.distributed.fsdp.fully_shard)"
        )
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


def _rule(optimizer: Optimizer, group: dict[str, Any]) -> UpdateRule:
    # schedule-free optimizers keep the rate that they warmed up to beside the one that was given
    rate = _number(group.get("scheduled_lr", group.get("lr")))
    decay = _number(group.get("weight_decay", 0.0))
    decoupled = _decoupled(optimizer, group)
    settled = UpdateRule(rate, 0.0 if decay == 0 else rate * decay if decoupled else nan)
    if decay == 0:
        return settled
    try:
        if isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW) and decoupled and not group["amsgrad"]:
            betas = (float(group["betas"][0]), float(group["betas"][1]))
            e = equilibrium("adamw", lr=rate, weight_decay=decay, numel=1, betas=betas)
            return settled._replace(norm_per_sqrt_numel=_finite(e.norm), angle=e.rotation)
        if isinstance(optimizer, torch.optim.SGD) and not (group["nesterov"] or group["dampening"]):
            momentum = float(group["momentum"])
            e = equilibrium("sgd", lr=rate, weight_decay=decay, gradient_norm=1.0, momentum=momentum)
            return settled._replace(norm_per_gradient=_finite(e.norm), angle=e.rotation)
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
