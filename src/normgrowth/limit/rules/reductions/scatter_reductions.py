"""The rule for `scatter_reduce`: sums, means and extremes of groups of values given by an index."""

from typing import Any

import torch
from torch import Tensor

from normgrowth.limit.dispatch import Operation, rule
from normgrowth.limit.power_series import Series, combine
from normgrowth.limit.rules.arithmetic import as_series
from normgrowth.limit.rules.comparisons import ranks
from normgrowth.limit.rules.data_movement import choose, sum_of_two


@rule("scatter_reduce")
def scatter_reduce(
    operation: Operation,
    x: Any,
    dim: int,
    index: Tensor,
    source: Any,
    reduce: str,
    *,
    include_self: bool = True,
) -> Series:
    x, source = as_series(x), as_series(source)
    if reduce in ("sum", "mean"):  # jointly linear in both arguments

        def reduced(a: Tensor, b: Tensor) -> Tensor:
            return operation(a, dim, index, b, reduce, include_self=include_self)

        return sum_of_two(operation, reduced, x, source)
    if reduce not in ("amax", "amin"):
        raise operation.refuse(f"no rule for scatter_reduce with reduce={reduce!r}")
    if not index.numel():
        return x
    dim = dim % len(x.shape)
    if any(x.shape[d] != size for d, size in enumerate(index.shape) if d != dim):
        raise operation.refuse("no rule for an index that is smaller than the tensor")
    source = source.move(lambda value: value[tuple(slice(size) for size in index.shape)])
    return _extremes(x, dim, index, source, 1 if reduce == "amax" else -1, include_self)


def _extremes(x: Series, dim: int, index: Tensor, source: Series, side: int, include_self: bool) -> Series:
    """The extremes of values, at the positions of the extreme ranks."""
    both = combine(lambda a, b: torch.cat([a, b], dim), x, source, moves=True)
    ranked = ranks(both, dim)[0] * side
    own, given = ranked.split([x.shape[dim], index.shape[dim]], dim)
    if not include_self:
        own = torch.full_like(own, -both.shape[dim])  # below every rank
    best = own.scatter_reduce(dim, index, given, "amax")
    last = index.shape[dim]
    places = torch.arange(last, device=index.device).view(*(-1 if d == dim else 1 for d in range(own.dim())))
    hit = given == best.gather(dim, index)
    first = torch.full_like(own, last).scatter_reduce(dim, index, torch.where(hit, places, last), "amin")
    chosen = source.move(lambda value: value.gather(dim, first.clamp(max=last - 1)))
    return choose((first == last) | (own == best), x, chosen)
