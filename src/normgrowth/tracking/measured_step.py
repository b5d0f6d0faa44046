"""One measured step: what is kept from before it until it is done, and the sums that come of it.

Weights are copied where the optimizer may move them, and nowhere else. PyTorch's optimizers have hooks around
a whole step and not around a group of parameters, so that all copies are there at once.
"""

from collections.abc import Hashable, Sequence
from contextlib import suppress
from math import nan
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from normgrowth.tracking.tensor_sums import add_over_ranks, local, local_gradient, summed
from normgrowth.tracking.tracked_parameters import place


class Gradients(NamedTuple):
    """Σg² of each parameter, and which ones have a gradient that the optimizer uses."""

    squares: Tensor
    there: list[bool]


class Held(NamedTuple):
    """The weights before a step, and what is known only then."""

    before: list[Tensor] | None  # None if there was no memory for a copy
    gradients: Gradients | None  # None where the step itself computes them
    scale: Tensor | None  # what a gradient scaler leaves to a fused optimizer to divide by


def hold(optimizer: Optimizer, tensors: Sequence[Tensor], *, closure: bool) -> Held:
    """closure: the step computes the gradients itself. Else they are summed now: some optimizers change them."""
    moves = {place(p) for group in optimizer.param_groups for p in group["params"]}
    try:
        # What the optimizer does not hold stays as it is, and is its own copy.
        before = [local(p).clone() if place(p) in moves else local(p) for p in tensors]
    except torch.OutOfMemoryError:
        before = None
    found = None if closure else _gradients(optimizer, tensors)
    return Held(before, found, getattr(optimizer, "grad_scale", None))


def start(tensors: Sequence[Tensor]) -> Tensor:
    """The sums of the weights before the first step, over all ranks; NaN where a rank ran out of memory."""
    sums = torch.full((len(tensors), 3), nan, dtype=torch.float64)
    with suppress(torch.OutOfMemoryError):
        sums = summed([local(p) for p in tensors])
    add_over_ranks(sums, tensors)
    return sums


def done(
    held: Held, optimizer: Optimizer, tensors: Sequence[Tensor], first: Sequence[Tensor] | None
) -> tuple[Tensor, list[bool]]:
    """The sums of the step over all ranks, Σg² behind the kernel's columns; and which parameters it moved.

    Where a rank ran out of memory all sums are NaN. It still takes part in the reduction: others wait for it.
    """
    references = 2 if first else 1
    sums = torch.full((len(tensors), 3 + 3 * references), nan, dtype=torch.float64)
    if held.before is not None:
        with suppress(torch.OutOfMemoryError):
            sums = summed([local(p) for p in tensors], held.before, *([first] if first else []))
    squares, there = held.gradients or _gradients(optimizer, tensors)
    if held.scale is not None and held.gradients is not None:
        squares = squares / held.scale.to(squares) ** 2
    columns = torch.cat([sums, squares.to(sums.device)[:, None]], dim=1)
    add_over_ranks(columns, tensors)
    return columns, there


def _gradients(optimizer: Optimizer, tensors: Sequence[Tensor]) -> Gradients:
    """Of what another optimizer moves, or none, a gradient may lie about: this step does not use it."""
    used: dict[Hashable, list[Tensor]] = {}
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                used.setdefault(place(p), []).append(p.grad)
    found = [used.get(place(p), []) for p in tensors]
    values = [_together(p, gradients) for p, gradients in zip(tensors, found, strict=True)]
    return Gradients(summed(values)[:, 0], [bool(gradients) for gradients in found])


def _together(parameter: Tensor, gradients: Sequence[Tensor]) -> Tensor:
    """More than one where parameters share their memory: as a norm of all gradients has them, side by side."""
    parts = [local_gradient(gradient, parameter) for gradient in gradients]
    if not parts:
        return local(parameter)[:0]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
