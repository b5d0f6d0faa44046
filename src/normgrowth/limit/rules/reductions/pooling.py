"""Rules for max pooling."""

from typing import Any

import torch
from torch import Tensor

from normgrowth.limit.dispatch import Operation, rule
from normgrowth.limit.power_series import Series
from normgrowth.limit.rules.comparisons import ranks

DIMENSIONS = {
    "max_pool2d_with_indices": 2,
    "max_pool3d_with_indices": 3,
    "adaptive_max_pool2d": 2,
    "adaptive_max_pool3d": 3,
}


@rule(*DIMENSIONS)
def largest_of_windows(operation: Operation, x: Series, *args: Any, **kwargs: Any) -> tuple[Series, Tensor]:
    """Max pooling of the ranks gives the positions of the largest values."""
    first = len(x.shape) - DIMENSIONS[operation.name]
    flat = x.move(lambda value: value.reshape(*x.shape[:first], -1))
    ranked, *_ = ranks(flat, -1)
    _, places = operation(ranked.reshape(x.shape).to(torch.float64), *args, **kwargs)

    def picked(value: Tensor) -> Tensor:
        return value.gather(-1, places.reshape(*places.shape[:first], -1)).reshape(places.shape)

    return flat.move(picked), places
