"""Rules for products along a dimension."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from normgrowth.limit.dispatch import Operation, rule
from normgrowth.limit.exponentials import element_product
from normgrowth.limit.power_series import Series, combine


@rule("prod")
def total_product(operation: Operation, x: Series, *args: Any, **kwargs: Any) -> Series:
    """The product along a dimension by repeated halving."""
    given = operation.named(args, kwargs)
    dim, keep = given.get("dim"), bool(given.get("keepdim", False))
    if given.get("dtype") is not None:
        x = x.map(lambda value: value.to(given["dtype"]))
    if dim is None:
        x, dim = x.move(lambda value: value.reshape(-1)), 0
    if not x.shape:
        return x
    if not x.shape[dim]:
        return x.map(lambda value: value.prod(dim, keepdim=keep))
    while (count := x.shape[dim]) > 1:
        half = count // 2
        first, second, odd = (_narrowed(x, dim, *part) for part in _parts(half, count))
        x = element_product(operation.orders, first, second)
        if count % 2:
            x = combine(lambda a, b: torch.cat([a, b], dim), x, odd, moves=True)
    return x if keep else x.move(lambda value: value.squeeze(dim))


def _parts(half: int, count: int) -> tuple[tuple[int, int], ...]:
    return (0, half), (half, half), (2 * half, count % 2)


def _narrowed(x: Series, dim: int, start: int, length: int) -> Series:
    return x.move(lambda value: value.narrow(dim, start, length))


@rule("cumprod")
def running_product(operation: Operation, x: Series, dim: int, dtype: torch.dtype | None = None) -> Series:
    if dtype is not None:
        x = x.map(lambda value: value.to(dtype))
    return accumulated(x, dim, partial(element_product, operation.orders))


def accumulated(x: Series, dim: int, f: Callable[[Series, Series], Series]) -> Series:
    """The cumulative values of an associative function, by doubling: with the element 1, 2, 4, ... positions before."""
    if not x.shape:
        return x
    count, step = x.shape[dim], 1

    def joined(a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([a, b], dim)

    while step < count:
        before, here = _narrowed(x, dim, 0, count - step), _narrowed(x, dim, step, count - step)
        x = combine(joined, _narrowed(x, dim, 0, step), f(before, here), moves=True)
        step *= 2
    return x
