"""The optimizer's settings for each parameter: learning rate, decay, and the equilibrium they predict.

Decoupled decay (AdamW) subtracts ηλθ from the weights, separately from the gradient's step, so a measured step can be
split into two parts. Coupled decay (SGD, Adam) adds λθ to the gradient, and its effect depends on momentum and on the
second moments. Then the step cannot be split, and the parts are NaN, unless there is no decay.
"""

from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite, nan
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim import Optimizer

from normgrowth.dynamics.equilibrium import equilibrium
from normgrowth.errors import InputError
from normgrowth.schedules import OptimizerGroup
from normgrowth.tracking.measuring.measured_step import Owned

# Settings of a group that have fields of their own, or do not affect the steps.
ELSEWHERE = {
    *("params", "param_names", "lr", "initial_lr", "weight_decay", "decoupled_weight_decay"),
    *("betas", "momentum", "foreach", "fused", "capturable", "differentiable"),
}


class UpdateRule(NamedTuple):
    """The settings of one parameter at one step.

    decay: ηλ, the fraction of the weights that one step removes; NaN for coupled decay.
    norm_per_sqrt_numel, norm_per_gradient: the equilibrium norm divided by √numel (AdamW) or by the gradient's (SGD).
    """

    learning_rate: float = nan
    decay: float = 0.0
    norm_per_sqrt_numel: float = nan
    norm_per_gradient: float = nan
    angle: float = nan


NO_UPDATE = UpdateRule()  # for a parameter that this step does not change


def read_rules(owned: Sequence[Owned | None], moved: Sequence[bool]) -> NDArray[np.float64]:
    """A row of `UpdateRule` for each parameter. moved: which parameters this step updates."""
    known: dict[int, UpdateRule] = {}
    rows = []
    for own, moves in zip(owned, moved, strict=True):
        rule = NO_UPDATE
        if own is not None:
            if (key := id(own.group)) not in known:
                known[key] = _rule(own.optimizer, own.group)
            rule = known[key]
        rows.append(rule if moves else NO_UPDATE._replace(learning_rate=rule.learning_rate))
    return np.array(rows, np.float64).reshape(len(owned), len(UpdateRule._fields))


def describe_groups(optimizers: Sequence[Optimizer]) -> list[OptimizerGroup]:
    """The settings of each parameter group of the optimizers."""
    found = []
    for optimizer, group in ((one, group) for one in optimizers for group in one.param_groups):
        betas, momentum = group.get("betas"), group.get("momentum")
        found.append(
            OptimizerGroup(
                parameters=sum(p.numel() for p in group["params"]),
                weight_decay=_number(group.get("weight_decay", 0.0)),
                decoupled=_decoupled(optimizer, group),
                betas=(float(betas[0]), float(betas[1])) if betas is not None and len(betas) == 2 else None,
                momentum=None if momentum is None else float(momentum),
                options=_options(group),
            )
        )
    return found


def _options(group: dict[str, Any]) -> dict[str, bool | float | str]:
    """Return the settings without a field of their own that affect the steps; None and tuples as text."""
    known = {name: value for name, value in group.items() if name not in ELSEWHERE}
    return {
        name: str(value) if value is None or isinstance(value, tuple) else value
        for name, value in known.items()
        if isinstance(value, bool | float | int | str | tuple | None)
    }


def plain_groups(groups: Sequence[OptimizerGroup]) -> list[dict[str, Any]]:
    """The groups as JSON values."""
    return [
        {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(group).items()}
        for group in groups
    ]


def changed_settings(before: Sequence[OptimizerGroup], after: Sequence[OptimizerGroup]) -> dict[str, str]:
    """What changed, by setting and group: {"weight_decay 0": "weight_decay of group 0 is 0.5 (before: 0.1)"}."""
    if len(before) != len(after):
        return {"groups": f"the optimizer has {len(after)} parameter groups (before: {len(before)})"}
    found = {}
    for i, (old, new) in enumerate(zip(map(asdict, before), map(asdict, after), strict=True)):
        for name in old:
            # The options of some optimizers contain counters.
            if name != "options" and old[name] != new[name]:
                found[f"{name} {i}"] = f"{name} of group {i} is {new[name]} (before: {old[name]})"
    return found


def unwrap_optimizers(given: Any) -> list[Optimizer]:
    """The given optimizer, or each of several, inside wrappers such as accelerate's: a wrapper may skip steps."""
    optimizers = [_unwrapped(one) for one in (given if isinstance(given, list | tuple) else [given])]
    for one in optimizers:
        if not hasattr(one, "register_step_post_hook"):
            raise InputError(
                f"optimizer must be a torch optimizer or a list of them, got {type(one).__name__}"
            )
    if not optimizers or len({id(one) for one in optimizers}) < len(optimizers):
        raise InputError(f"optimizer must be a list of different optimizers, got {len(optimizers)}")
    return optimizers


def _unwrapped(optimizer: Any) -> Any:
    if type(optimizer).__module__.partition(".")[0] == "deepspeed":
        raise InputError(
            f"{type(optimizer).__name__}: DeepSpeed's ZeRO updates flat partitions, not the model's parameters; "
            "use DDP or FSDP2 (torch.distributed.fsdp.fully_shard)"
        )
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


def _rule(optimizer: Optimizer, group: dict[str, Any]) -> UpdateRule:
    # schedule-free optimizers store the warmed-up rate in addition to the given rate
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
        return settled  # settings without an equilibrium, such as ηλ >= 1: NaN, as documented
    return settled


def _decoupled(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    kinds = tuple(
        getattr(torch.optim, name) for name in ("AdamW", "Muon", "Adafactor") if hasattr(torch.optim, name)
    )
    return bool(group.get("decoupled_weight_decay", isinstance(optimizer, kinds)))


def _number(setting: Any) -> float:
    """The setting as a number; NaN for None, which is the learning rate of transformers' Adafactor."""
    return nan if setting is None else float(setting)


def _finite(value: float) -> float:
    return value if isfinite(value) else nan
