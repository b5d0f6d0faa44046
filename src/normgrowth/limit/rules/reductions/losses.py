"""Rules for losses that are not composed of other operations."""

from typing import Any

import torch

from normgrowth.limit.dispatch import Operation, rule
from normgrowth.limit.exponentials import element_product, times_constant
from normgrowth.limit.power_series import Series, product
from normgrowth.limit.rules.arithmetic import as_series, sum_of_series
from normgrowth.limit.rules.elementwise.logarithms import log_sum_of_two

REDUCTIONS = {0: lambda value: value, 1: torch.mean, 2: torch.sum}  # as ATen numbers them


@rule("nll_loss_forward", "nll_loss2d_forward")
def negative_log_likelihood(operation: Operation, x: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Negative log-likelihood, linear in the log-probabilities; the second result is the sum of class weights."""
    if not isinstance(x, Series) or isinstance(operation.named(args, kwargs).get("weight"), Series):
        raise operation.refuse("no rule for class weights that grow")
    _, weights = operation(x.top.value, *args, **kwargs)
    return x.map(lambda value: operation(value, *args, **kwargs)[0]), weights


@rule("mse_loss")
def squared_error(operation: Operation, x: Any, target: Any, reduction: int = 1) -> Series:
    away = sum_of_series(operation, as_series(x), as_series(target), -1)
    return product(torch.mul, away, away, operation.orders).map(REDUCTIONS[reduction])


@rule("soft_margin_loss")
def soft_margin(operation: Operation, x: Any, target: Any, reduction: int = 1) -> Series:
    """log(1 + exp(-target · x)); torch's decomposition takes the exponential first, which has no limit."""
    margin = element_product(operation.orders, as_series(x), as_series(target))
    logaddexp = Operation(torch.ops.aten.logaddexp.default, operation.context, arguments=operation.arguments)
    return log_sum_of_two(logaddexp, as_series(0.0, margin), times_constant(margin, -1)).map(
        REDUCTIONS[reduction]
    )
