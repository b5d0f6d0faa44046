"""Rules for normalization: only the direction of a growing vector remains."""

from typing import Any

import torch
from torch import Tensor

from normgrowth.limit.dispatch import Operation, rule
from normgrowth.limit.exponentials import element_product
from normgrowth.limit.power_series import (
    ZERO,
    Series,
    Term,
    all_nonzero,
    decided,
    highest,
    without_zeros,
)
from normgrowth.limit.rules.arithmetic import add, as_series, shortened_series, sum_of_series
from normgrowth.limit.rules.elementwise.powers import power

FLAT = (
    64  # a row that deviates from its mean by at most this many units of rounding is constant up to rounding
)


def normalized(operation: Operation, x: Series, dims: list[int], eps: float, center: bool) -> Series:
    """(x - mean) / sqrt(variance + eps), where eps is a term of degree 0."""
    if len(x.terms) == 1 and x.top.degree > 0 and not x.zero:
        value = x.top.value
        middle = value.mean(dims, keepdim=True) if center else value.new_zeros(())
        away = value - middle if center else value
        size = away.square().mean(dims, keepdim=True)
        flat = size <= (FLAT * operation.context.eps(value.dtype)) ** 2 * middle.square()
        if not bool(flat.any()):
            below = None if x.rest is None else x.rest - x.top.degree
            return Series((Term(ZERO, away * size.rsqrt(), x.top.sources),), below)
    if center:
        x = _centered(operation, x, dims)
    squares = element_product(operation.orders, x, x)
    variance = squares.map(lambda value: value.mean(dims, keepdim=True))
    eps_term = as_series(torch.full((), eps, dtype=variance.top.value.dtype), variance)
    return element_product(operation.orders, x, power(operation, add(variance, eps_term), -0.5))


def distance_from_mean(x: Series, dims: list[int]) -> Series:
    return add(x, x.map(lambda value: value.mean(dims, keepdim=True)), -1)


def _centered(operation: Operation, x: Series, dims: list[int]) -> Series:
    """x minus its mean; exactly 0 for rows of equal values, in spite of rounding."""
    if (short := shortened_series(x, operation.orders)) is not x:
        away, rows = _distances(operation, short, dims)
        if not away.zero and rows is None and decided([term.value for term in away.terms]):
            return away
    away, lost = _distances(operation, x, dims)
    if lost is not None and x.rest is not None:  # a row that is constant here may vary in an omitted order
        for term in away.terms:
            if term.degree > x.rest:
                lost = lost & (term.value == 0).all(dims, keepdim=True)
        if count := int(lost.sum()):
            operation.context.cancelled[operation.context.module] += count
    return away


def _distances(operation: Operation, x: Series, dims: list[int]) -> tuple[Series, Tensor | None]:
    """Differences from the mean of each row, and the rows in which some order is constant; None if there are none."""
    away = distance_from_mean(x, dims)
    if away.zero:
        return away, None
    terms, lost = [], None
    leads: Tensor | bool = True  # rows in which no higher order varies
    for original in x.terms:
        value = away.at(original.degree)
        size = original.value.abs().amax(dims, keepdim=True)
        if value is None:  # constant in every row
            flat = torch.ones_like(size, dtype=torch.bool)
        else:
            noise = FLAT * operation.context.eps(value.dtype) * size
            flat = value.abs().amax(dims, keepdim=True) <= noise
        if bool(flat.any()):
            _count_nearly_constant(operation, original.value, dims, flat & leads)
            gone = flat & (size > 0)
            lost = gone if lost is None else lost | gone
            value = None if value is None else value.masked_fill(flat, 0.0)
        leads = flat & leads
        if value is not None:
            terms.append(Term(original.degree, value, original.sources))
    return without_zeros(terms, away.rest), lost


def _count_nearly_constant(operation: Operation, value: Tensor, dims: list[int], flat: Tensor) -> None:
    """Count rows that are constant up to rounding but not exactly: a real difference may be that small."""
    varies = value.amax(dims, keepdim=True) != value.amin(dims, keepdim=True)
    operation.context.doubtful += int((flat & varies).sum())


def gained(operation: Operation, x: Series, gain: Any, bias: Any) -> Series:
    if gain is not None:
        x = element_product(operation.orders, x, as_series(gain))
    return x if bias is None else sum_of_series(operation, x, as_series(bias))


@rule("native_layer_norm")
def layer_norm(operation: Operation, x: Any, shape: list[int], gain: Any, bias: Any, eps: float) -> Any:
    dims = list(range(-len(shape), 0))
    x, gain = as_series(x), None if gain is None else as_series(gain)
    found = _by_kernel(operation, x, shape, gain)
    if found is None:
        found = gained(operation, normalized(operation, x, dims, eps, center=True), gain, None)
    if bias is not None and not (bias := as_series(bias)).zero:
        found = sum_of_series(operation, found, bias)
    return found, torch.zeros(0), torch.zeros(0)  # mean and deviation are only for the gradient


def _by_kernel(operation: Operation, x: Series, shape: list[int], gain: Series | None) -> Series | None:
    """The leading order from the network's own kernel; None if a row is constant or an element has no leading term."""
    if x.zero or x.top.degree <= 0 or (operation.orders > 1 and len(x.terms) > 1):
        return None
    if gain is not None and (gain.zero or len(gain.terms) > 1):
        return None
    weight = None if gain is None else gain.top.value
    value, mean, scale = torch.native_layer_norm(x.top.value, shape, weight, None, 0.0)
    varies = (
        scale * (mean.abs() * (FLAT * torch.finfo(value.dtype).eps)) < 1
    )  # a row of zeros gives NaN, which compares False
    if not bool(varies.all()) or (len(x.terms) > 1 and not all_nonzero(value)):
        return None
    below = highest(x.rest, *(term.degree for term in x.terms[1:2]))
    rest = None if below is None else below - x.top.degree
    if gain is None:
        return Series((Term(ZERO, value, x.top.sources),), rest)
    rest = highest(None if rest is None else rest + gain.top.degree, gain.rest)
    return Series((Term(gain.top.degree, value, x.top.sources | gain.top.sources),), rest)


@rule("_fused_rms_norm")
def rms_norm(operation: Operation, x: Any, shape: list[int], gain: Any, eps: float | None) -> Any:
    x = as_series(x)
    eps = torch.finfo(x.top.value.dtype).eps if eps is None else eps
    dims = list(range(-len(shape), 0))
    return gained(operation, normalized(operation, x, dims, eps, center=False), gain, None), torch.zeros(0)


@rule("native_group_norm")
def group_norm(
    operation: Operation, x: Any, gain: Any, bias: Any, n: int, _: int, __: int, groups: int, eps: float
) -> Any:
    x = as_series(x)
    shape, columns = x.shape, (1, -1, *[1] * (len(x.shape) - 2))
    flat = x.map(lambda value: value.reshape(n, groups, -1))
    found = normalized(operation, flat, [-1], eps, center=True).map(lambda value: value.reshape(shape))
    gain, bias = (None if p is None else as_series(p).map(lambda v: v.view(columns)) for p in (gain, bias))
    return gained(operation, found, gain, bias), torch.zeros(0), torch.zeros(0)


@rule("_native_batch_norm_legit_no_training")
def batch_norm(
    operation: Operation, x: Any, gain: Any, bias: Any, mean: Tensor, variance: Tensor, _: float, eps: float
) -> Any:
    """Batch norm in evaluation mode: its statistics are buffers of degree 0, so the degree of x stays."""
    x = as_series(x)
    columns = (1, -1, *[1] * (len(x.shape) - 2))
    away = sum_of_series(operation, x, as_series(mean.view(columns)), -1)
    scale = (variance + eps).rsqrt().view(columns)
    gain, bias = (None if p is None else as_series(p).map(lambda v: v.view(columns)) for p in (gain, bias))
    found = gained(operation, away.map(lambda value: value * scale), gain, bias)
    return found, torch.zeros(0), torch.zeros(0)


@rule("native_batch_norm", "_native_batch_norm_legit")
def either_batch_norm(operation: Operation, *args: Any) -> Any:
    *tensors, training, momentum, eps = args
    if not training:
        return batch_norm(operation, *tensors, momentum, eps)
    x, gain, bias, *statistics = tensors
    if any(value is not None for value in statistics):
        raise operation.refuse("batch norm is in training mode; call model.eval() first")
    x = as_series(x)  # without running statistics: instance norm, also in evaluation mode
    columns = (1, -1, *[1] * (len(x.shape) - 2))
    dims = [0, *range(2, len(x.shape))]
    found = normalized(operation, x, dims, eps, center=True)
    gain, bias = (None if p is None else as_series(p).map(lambda v: v.view(columns)) for p in (gain, bias))
    return gained(operation, found, gain, bias), torch.zeros(0), torch.zeros(0)


@rule("var_mean", "std_mean")
def spread_and_mean(operation: Operation, x: Series, dim: Any = None, **kwargs: Any) -> tuple[Series, Series]:
    dims = list(range(len(x.shape))) if dim is None else [dim] if isinstance(dim, int) else dim
    keep = bool(kwargs.get("keepdim", False))
    return spread(operation, x, dim, **kwargs), x.map(lambda value: value.mean(dims, keepdim=keep))


@rule("var", "std")
def spread(operation: Operation, x: Series, dim: Any = None, **kwargs: Any) -> Series:
    dims = list(range(len(x.shape))) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    count = 1
    for d in dims:
        count *= x.shape[d]
    correction = kwargs.get("correction", 1)
    away = _centered(operation, x, dims)
    squares = element_product(operation.orders, away, away)
    keep = bool(kwargs.get("keepdim", False))
    found = squares.map(
        lambda value: value.sum(dims, keepdim=keep) / (count - (1 if correction is None else correction))
    )
    return power(operation, found, 0.5) if "std" in operation.func._schema.name else found
