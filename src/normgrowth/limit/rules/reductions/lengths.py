"""Rules for the lengths of vectors: norms, distances, weights of a given length."""

import math
from typing import Any

import torch

from normgrowth.limit.dispatch import Operation, rule
from normgrowth.limit.exponentials import times_constant
from normgrowth.limit.power_series import Series, product
from normgrowth.limit.rules.arithmetic import as_series, sum_of_series
from normgrowth.limit.rules.comparisons import extreme
from normgrowth.limit.rules.elementwise.powers import division, power

aten = torch.ops.aten


@rule("linalg_vector_norm")
def vector_norm(
    operation: Operation, x: Series, order: float = 2, dim: Any = None, keepdim: bool = False, **_: Any
) -> Any:
    dims = list(range(len(x.shape))) if dim is None else [dim] if isinstance(dim, int) else dim
    return length(operation, x, float(order), dims, keepdim)


def length(operation: Operation, x: Series, order: float, dims: list[int], keepdim: bool = False) -> Any:
    """(sum of |x|^p)^(1/p)."""

    def total(y: Series) -> Series:
        return y.map(lambda value: value.sum(dims, keepdim=keepdim))

    if order == 2 and not x.top.value.is_complex():
        return power(operation, total(product(torch.mul, x, x, operation.orders)), 0.5)
    size = modulus(operation, x) if x.top.value.is_complex() else times_constant(x, x.sign())
    if order == 0:
        return (size.sign() != 0).sum(dims, keepdim=keepdim).to(size.top.value.dtype)
    if math.isinf(order):
        most = Operation(aten.amax.default if order > 0 else aten.amin.default, operation.context)
        return extreme(most, size, dims, keepdim)
    return total(size) if order == 1 else power(operation, total(power(operation, size, order)), 1 / order)


def modulus(operation: Operation, x: Series) -> Series:
    """The absolute value of complex numbers."""
    return length(operation, x.map(lambda value: torch.view_as_real(value.resolve_conj())), 2.0, [-1])


@rule("_cdist_forward")
def distances(operation: Operation, a: Any, b: Any, order: float, *_: Any) -> Any:
    """Distances between all rows of a and all rows of b."""
    a = as_series(a).move(lambda value: value.unsqueeze(-2))
    b = as_series(b).move(lambda value: value.unsqueeze(-3))
    return length(operation, sum_of_series(operation, a, b, -1), float(order), [-1])


@rule("_euclidean_dist")
def euclidean_distances(operation: Operation, a: Any, b: Any) -> Any:
    return distances(operation, a, b, 2.0)


@rule("_weight_norm_interface")
def weight_norm(operation: Operation, direction: Any, size: Any, dim: int = 0) -> tuple[Any, Any]:
    """size · direction / |direction|, with the norm over all dimensions but one."""
    direction, size = as_series(direction), as_series(size)
    others = [d for d in range(len(direction.shape)) if d != dim]
    lengths = length(operation, direction, 2.0, others, keepdim=True)
    factor = division(operation, size, lengths)
    return product(torch.mul, direction, factor, operation.orders), lengths
