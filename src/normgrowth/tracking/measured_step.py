"""One measured step: copies of the weights before it, and the sums after it.

Only weights that the optimizer may change are copied. PyTorch's optimizers have hooks around a whole step, not around
a group of parameters, so all copies exist at the same time.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from math import nan
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from normgrowth.moments.moments import product_square
from normgrowth.tracking.live_adapters import LiveAdapter
from normgrowth.tracking.tensor_sums import (
    REF_DOT,
    REF_SQUARE,
    SQUARE,
    add_over_ranks,
    apart_over_ranks,
    local,
    local_gradient,
    plain_sums,
    tensor_sums,
    to_double,
    whole,
)
from normgrowth.tracking.tracked_parameters import memory_key

ALIGNMENT = 64  # bytes; alignment of the copies


class Owned(NamedTuple):
    """The optimizer's parameters that share the memory of one tracked tensor, and their settings."""

    parameters: list[Tensor]
    group: dict[str, Any] | None  # None: the optimizer does not hold it

    @property
    def gradients(self) -> list[Tensor]:
        return [p.grad for p in self.parameters if p.grad is not None]


class Gradients(NamedTuple):
    """Σg² of each parameter, Σgθ on request, and which parameters have a gradient that the optimizer uses."""

    sums: Tensor | None  # None if there was no memory for them
    used: list[bool]


class BeforeStep(NamedTuple):
    """The weights before a step, and other values that exist only before it."""

    weights: list[Tensor] | None  # None if there was no memory for a copy
    gradients: Gradients | None  # None if the step itself computes them
    scale: Tensor | None  # the factor of a gradient scaler that a fused optimizer divides by
    owned: list[Owned]


@contextmanager
def surviving_out_of_memory() -> Iterator[None]:
    """Suppress out-of-memory errors of the measurement, so that training continues."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        pass
    except RuntimeError as error:  # the CPU allocator has no error class of its own
        if "not enough memory" not in str(error):
            raise


def owned_by(optimizer: Optimizer, tensors: Sequence[Tensor]) -> list[Owned]:
    """The optimizer's parameters for each tensor."""
    found: dict[Hashable, Owned] = {}
    for group in optimizer.param_groups:
        for p in group["params"]:
            found.setdefault(memory_key(p), Owned([], group)).parameters.append(p)
    return [found.get(memory_key(tensor)) or Owned([], None) for tensor in tensors]


def capture(
    optimizer: Optimizer, tensors: Sequence[Tensor], *, closure: bool, optimizer_state: bool = False
) -> BeforeStep:
    """The state before a step. closure: the step computes the gradients itself; otherwise gradients are summed now,
    because some optimizers change them.
    """
    owned, weights = owned_by(optimizer, tensors), None
    with surviving_out_of_memory():
        # Tensors that the optimizer does not have do not change, so they need no copy.
        flat = [local(p) for p in tensors]
        moved = [i for i, own in enumerate(owned) if own.parameters]
        for i, copy in zip(moved, _copies([flat[i] for i in moved]), strict=True):
            flat[i] = copy
        weights = flat
    found = None if closure else _gradients(owned, tensors, weights, dot=optimizer_state)
    return BeforeStep(weights, found, getattr(optimizer, "grad_scale", None), owned)


def start(tensors: Sequence[Tensor]) -> Tensor:
    """The sums of the weights before the first step, over all ranks; NaN where a rank ran out of memory."""
    sums = torch.full((len(tensors), 3), nan, dtype=torch.float64)
    with surviving_out_of_memory():
        sums = tensor_sums([local(p) for p in tensors])
    add_over_ranks(sums, tensors)
    return sums


def measure_step(
    before: BeforeStep,
    optimizer: Optimizer,
    tensors: Sequence[Tensor],
    first: Sequence[Tensor] | None,
    *,
    optimizer_state: bool = False,
) -> tuple[Tensor, list[bool]]:
    """The sums of the step over all ranks, and which parameters have a gradient that it used.

    The columns of `tensor_sums` are followed by Σg² and, with `optimizer_state`, by Σgθ and by Σm² and Σv of Adam's
    moments. The last column is that of `apart_over_ranks`.
    If a rank runs out of memory, its sums are NaN. It still takes part in the reduction, because the others wait.
    """
    references = 2 if first else 1
    width = 3 + 3 * references + (4 if optimizer_state else 1)
    columns = torch.full((len(tensors), width), nan, dtype=torch.float64)
    gradients = before.gradients or _gradients(before.owned, tensors, before.weights, dot=optimizer_state)
    if before.weights is not None and gradients.sums is not None:
        with surviving_out_of_memory():
            sums = tensor_sums([local(p) for p in tensors], before.weights, *([first] if first else []))
            parts = [sums, gradients.sums.to(sums.device)]
            if before.scale is not None and before.gradients is not None:
                scale = before.scale.to(sums)
                parts[1] = parts[1] / torch.stack([scale**2, scale]).flatten()[: parts[1].shape[1]]
            if optimizer_state:
                parts.append(_moments(optimizer, before.owned, tensors).to(sums.device))
            columns = torch.cat(parts, dim=1)
    apart = apart_over_ranks(columns, tensors)
    add_over_ranks(columns, tensors)
    return torch.cat([columns, apart[:, None]], dim=1), gradients.used


def update_squares(adapters: Sequence[LiveAdapter]) -> Tensor:
    """‖scale·BA‖² of each adapter, on every rank the same; NaN where there was no memory for it."""
    squares: list[Tensor] = []
    for one in adapters:
        square = torch.tensor(nan, dtype=torch.float64)
        factors = whole(one.up), whole(one.down)  # with nothing caught: other ranks wait for this one
        with surviving_out_of_memory():
            up, down = (to_double(factor.flatten(1)) for factor in factors)
            square = one.scale**2 * product_square(up, down)
        squares.append(square)
    # They stay on their device until all are done: one transfer.
    return (
        torch.stack([square.to(squares[0].device) for square in squares]).cpu() if squares else torch.empty(0)
    )


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies of flat tensors.

    Copies on a CPU share one numpy array, which uses large pages: the first access to each 4 kB page of new memory
    takes longer than the copy itself.
    """
    here = [i for i, tensor in enumerate(tensors) if tensor.device.type == "cpu"]
    ends = np.cumsum([-(-tensors[i].nbytes // ALIGNMENT) * ALIGNMENT for i in here], dtype=np.int64).tolist()
    buffer = torch.from_numpy(np.empty(ends[-1] if ends else 0, np.uint8))
    found = list(tensors)
    for i, begin in zip(here, [0, *ends[:-1]], strict=True):
        found[i] = buffer[begin : begin + tensors[i].nbytes].view(tensors[i].dtype).copy_(tensors[i])
    return [copy.clone() if copy is tensor else copy for copy, tensor in zip(found, tensors, strict=True)]


def _gradients(
    owned: Sequence[Owned], tensors: Sequence[Tensor], weights: Sequence[Tensor] | None, *, dot: bool
) -> Gradients:
    """The sums of the gradients that this step uses. Parameters of other optimizers may also have gradients."""
    used, sums = [bool(own.gradients) for own in owned], None
    with surviving_out_of_memory():
        pairs = [
            _beside(own.gradients, tensor, local(tensor) if weights is None else weights[i])
            for i, (own, tensor) in enumerate(zip(owned, tensors, strict=True))
        ]
        gradients = [gradient for gradient, _ in pairs]
        if dot:
            found = tensor_sums([theta for _, theta in pairs], gradients)
            # The columns for θ with reference g are Σg² and Σg(θ − g), and Σgθ is their sum.
            sums = torch.stack([found[:, REF_SQUARE], found[:, REF_SQUARE] + found[:, REF_DOT]], 1)
        else:
            sums = tensor_sums(gradients)[:, :1]
    return Gradients(sums, used)


def _beside(gradients: Sequence[Tensor], parameter: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient and its weights, both flat.

    Parameters that share memory have several gradients, which are concatenated, as in a norm of all gradients.
    """
    if not gradients:
        return weights[:0], weights[:0]
    if len(gradients) == 1 and gradients[0].is_sparse:
        sparse = gradients[0].coalesce()
        rows = weights.reshape(parameter.shape)[tuple(sparse.indices())]
        return local(sparse), rows.reshape(-1)
    parts = [local_gradient(gradient, parameter) for gradient in gradients]
    return (parts[0], weights) if len(parts) == 1 else (torch.cat(parts), weights.repeat(len(parts)))


def _moments(optimizer: Optimizer, owned: Sequence[Owned], tensors: Sequence[Tensor]) -> Tensor:
    """Σm² and Σv of Adam's first and second moments; NaN if the optimizer has no moments."""
    first: dict[int, Tensor] = {}
    second: dict[int, Tensor] = {}
    for i, (own, tensor) in enumerate(zip(owned, tensors, strict=True)):
        state = optimizer.state.get(own.parameters[0], {}) if own.parameters else {}
        m, v = state.get("exp_avg"), state.get("exp_avg_sq")
        if m is not None and v is not None:
            first[i], second[i] = local_gradient(m, tensor), local_gradient(v, tensor)
    if not first:
        return torch.full((len(owned), 2), nan, dtype=torch.float64)
    squares = tensor_sums(list(first.values()))[:, SQUARE]
    sums = torch.full((len(owned), 2), nan, dtype=torch.float64, device=squares.device)
    sums[list(first)] = torch.stack([squares, plain_sums(list(second.values())).to(squares.device)], 1)
    return sums
