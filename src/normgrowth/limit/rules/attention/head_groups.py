"""Attention for a few heads at a time: ties of a row of scores depend only on rows of the same head.

Most rows have one largest score and no other score near it. Their weights need one pass over the scores, without a copy
of all scores and without lower orders.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from normgrowth.limit.power_series import Series

GROUP = 1 << 18  # scores per group of heads, unless one head has more
ROWS = 1 << 18  # scores per block of rows, which fit into the cache
Place = tuple[slice, slice]  # slices of a group: batch, heads
WHOLE: Place = (slice(None), slice(None))


def groups(shape: torch.Size) -> list[Place]:
    """The groups of a tensor (batch, heads, queries, keys) in order: whole batch entries, or some heads of one."""
    batch, heads, one = shape[0], shape[1], max(1, shape[2] * shape[3])
    if not batch * heads or batch * heads * one <= GROUP:
        return [WHOLE]
    if heads * one <= GROUP:
        return [(rows, slice(None)) for rows in _steps(batch, GROUP // max(1, heads * one))]
    return [(slice(b, b + 1), part) for b in range(batch) for part in _steps(heads, max(1, GROUP // one))]


def _steps(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def at(value: Tensor, place: Place) -> Tensor:
    """The part of a tensor for a group; broadcast dimensions are kept."""
    if place is WHOLE:
        return value
    return value[
        tuple(part if size > 1 else slice(None) for part, size in zip(place, value.shape, strict=False))
    ]


def part_of(x: Series, place: Place) -> Series:
    found = x.move(lambda value: at(value, place))
    if x.scales is None:
        return found
    outer = x.shape[:2]
    scales = {d: at(s.reshape(outer), place) for d, s in x.scales.items() if s.numel() == outer.numel()}
    return replace(found, scales=scales)


def four_dimensional(value: Tensor) -> Tensor:
    """A view with the dimensions batch, heads, queries, keys; missing leading dimensions get size 1."""
    return value[(None,) * (4 - value.dim())] if value.dim() < 4 else value


def one_hot(
    scores: Tensor, shares: Tensor, unit: float, hiding: Tensor | None, least: Tensor | None = None
) -> bool:
    """Fill `shares` with 1 at the largest score of each row; returns False if some row has another score near it.

    The tolerance is at least that of the exact rule, which decides those rows. Also returns False if a row has no
    finite score. hiding: an additive mask with minus infinity for hidden keys. unit: the tolerance relative to the
    largest absolute score of a row, or to `least` if that is larger.
    """
    count, step = scores.shape[2], max(1, ROWS // max(1, scores.shape[0] * scores.shape[1] * scores.shape[3]))
    for part in _steps(count, step):
        rows, found = scores[:, :, part], shares[:, :, part]
        low = rows.amin(-1, keepdim=True)
        if hiding is not None:
            rows += hiding[:, :, part] if hiding.shape[2] > 1 else hiding
        elif bool(torch.isneginf(low).any()):
            low = torch.nan_to_num(rows, nan=torch.nan, posinf=torch.inf, neginf=0.0).amin(-1, keepdim=True)
        high = rows.amax(-1, keepdim=True)
        size = torch.maximum(-low, high)
        if least is not None:
            size = torch.maximum(size, least)
        torch.ge(rows, high - size * unit, out=found)
        if bool((found.sum(-1) != 1).any()):
            return False
    return True
