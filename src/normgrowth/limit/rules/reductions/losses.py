"""Rules for losses, as far as they are not made of other operations."""

from typing import Any

import torch

from normgrowth.limit.dispatch import Operation, rule
from normgrowth.limit.power_series import Series, product
from normgrowth.limit.rules.arithmetic import series, summed

REDUCTIONS = {0: lambda value: value, 1: torch.mean, 2: torch.sum}  # as ATen numbers them


@rule("nll_loss_forward", "nll_loss2d_forward")
def negative_log_likelihood(operation: Operation, x: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Linear in the log-probabilities; the second result is a sum of the weights of classes."""
    if not isinstance(x, Series) or isinstance(operation.named(args, kwargs).get("weight"), Series):
        raise operation.refuse("weights of classes that grow have no rule")
    _, weights = operation(x.top.value, *args, **kwargs)
    return x.map(lambda value: operation(value, *args, **kwargs)[0]), weights


@rule("mse_loss")
def squared_error(operation: Operation, x: Any, target: Any, reduction: int = 1) -> Series:
    away = summed(operation, series(x), series(target), -1)
    return product(torch.mul, away, away, operation.orders).map(REDUCTIONS[reduction])
