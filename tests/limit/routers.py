"""Arithmetic in which scaled networks keep the order of values that float64 rounds to equal ones."""

from typing import Any

import torch
from limit.architectures import Double


class OrderedSigmoid(Double):
    """A sigmoid with its limits and its order, whose distance from them falls slowly enough for float64.

    Near 1 by a logarithm; near 0 by a power, times an exponential of the value relative to the largest one, so that of
    several that vanish the largest is left, as it should, and none is rounded to 0.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "sigmoid":
            growth = torch.log1p(args[0].abs())
            rate = 300 / args[0].abs().amax().clamp(min=300)
            return torch.where(args[0] >= 0, 1 - 1e-7 / (1 + growth), torch.exp(args[0] * rate - 8 * growth))
        return super().__torch_function__(func, types, args, kwargs)


class OrderedRouter(OrderedSigmoid):
    """Also a softmax over experts with its limit and its order: shares fall by a high power, not exponentially.

    Of the sigmoids of experts that vanish, each is smaller than the next larger one by a factor of exp(-40).
    """

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.experts = experts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "sigmoid" and args[0].shape[-1] == self.experts:
            found, below = super().__torch_function__(func, types, args, kwargs), args[0].clamp(max=0.0)
            ranks = (below.unsqueeze(-2) > below.unsqueeze(-1)).sum(-1)  # the number of larger values
            vanishing = torch.exp(-8 * torch.log1p(-below.amin(-1, keepdim=True)) - 40 * ranks)
            return torch.where(args[0] < 0, vanishing, found)
        if getattr(func, "__name__", "") == "softmax" and args[0].shape[-1] == self.experts:
            behind = args[0].amax(-1, keepdim=True) - args[0]
            shares = torch.exp(-12 * torch.log1p(behind))
            return shares / shares.sum(-1, keepdim=True)
        return super().__torch_function__(func, types, args, kwargs)
