"""One measured training step: copies of the weights before it, and the sums after it.

Only weights that an optimizer may change are copied. PyTorch's optimizers have hooks around a whole step, not around a
group of parameters, so all copies of an optimizer's weights exist at the same time.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from math import nan
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from normgrowth.moments.moments import product_square
from normgrowth.tracking.live_adapters import LiveAdapter
from normgrowth.tracking.measuring.weight_copies import WeightCopies
from normgrowth.tracking.tensor_sums import (
    REF_DOT,
    REF_SQUARE,
    add_over_ranks,
    apart_over_ranks,
    local,
    local_gradient,
    plain_sums,
    squares,
    tensor_sums,
    to_double,
    whole,
)
from normgrowth.tracking.tracked_parameters import memory_key


class Owned(NamedTuple):
    """The parameters of an optimizer that share the memory of one tracked tensor, and their settings."""

    parameters: list[Tensor]
    optimizer: Optimizer
    group: dict[str, Any]

    @property
    def gradients(self) -> list[Tensor]:
        return [p.grad for p in self.parameters if p.grad is not None]


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


class MeasuredStep:
    """A training step of one optimizer, or of several that step one after the other.

    Call `before` before the step of each optimizer, and `after` once, after the last one.
    If a rank runs out of memory, its sums are NaN. It still takes part in the reduction, because the others wait.
    """

    def __init__(
        self, tensors: Sequence[Tensor], copies: dict[int, WeightCopies], *, optimizer_state: bool
    ) -> None:
        """copies: memory for the copies of each optimizer, by its id; kept from step to step."""
        self._tensors, self._copies = tensors, copies
        self._optimizer_state = optimizer_state
        self.owned: list[Owned | None] = [None] * len(tensors)  # None: no optimizer that steps has the tensor
        self.used = [False] * len(tensors)  # whether the tensor has a gradient that its optimizer uses
        self._gradients: list[tuple[list[int], Tensor]] = []  # Σg² of these tensors, and Σgθ on request
        self._later: list[int] = []  # tensors whose gradients the step itself computes
        self._weights: list[Tensor] = []  # copies for the tensors that change; empty if there was no memory
        with surviving_out_of_memory():
            self._weights = [local(p) for p in tensors]
        self._failed = not self._weights

    def before(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Keep the weights, and sum the gradients, which some optimizers change. closure: the step computes them."""
        mine = self._owned_by(optimizer)
        self.owned = [own if own is not None else new for own, new in zip(self.owned, mine, strict=True)]
        rows = [i for i, own in enumerate(self.owned) if own is not None and own.optimizer is optimizer]
        done = False
        with surviving_out_of_memory():
            copies = self._copies.setdefault(id(optimizer), WeightCopies())
            if not self._failed:
                for i, copy in zip(rows, copies.copy([self._weights[i] for i in rows]), strict=True):
                    self._weights[i] = copy
            done = True
        self._failed |= not done
        if closure:
            self._later += rows
        else:
            self._sum_gradients(rows, getattr(optimizer, "grad_scale", None))

    def after(self, first: Sequence[Tensor] | None) -> Tensor:
        """The sums of the step over all ranks. first: the weights before the first step.

        The columns of `tensor_sums` are followed by Σg² and, with `optimizer_state`, by Σgθ and by Σm² and Σv of Adam's
        moments. The last column is that of `apart_over_ranks`.
        """
        self._sum_gradients(self._later, None)
        width = 3 + 3 * (2 if first else 1) + (4 if self._optimizer_state else 1)
        columns = torch.full((len(self._tensors), width), nan, dtype=torch.float64)
        if not self._failed:
            with surviving_out_of_memory():
                weights = [local(p) for p in self._tensors]
                sums = tensor_sums(weights, self._weights, *([first] if first else []))
                gradients = sums.new_zeros(len(sums), 2 if self._optimizer_state else 1)
                for rows, part in self._gradients:
                    gradients[rows] = part.to(sums.device)
                parts = [sums, gradients]
                if self._optimizer_state:
                    parts.append(self._moments().to(sums.device))
                columns = torch.cat(parts, dim=1)
        self._weights = []
        for copies in self._copies.values():
            copies.release()
        apart = apart_over_ranks(columns, self._tensors)
        add_over_ranks(columns, self._tensors)
        return torch.cat([columns, apart[:, None]], dim=1)

    def _owned_by(self, optimizer: Optimizer) -> list[Owned | None]:
        found: dict[Hashable, Owned] = {}
        for group in optimizer.param_groups:
            for p in group["params"]:
                found.setdefault(memory_key(p), Owned([], optimizer, group)).parameters.append(p)
        return [found.get(memory_key(tensor)) for tensor in self._tensors]

    def _sum_gradients(self, rows: Sequence[int], scale: Tensor | None) -> None:
        """Add the sums of the gradients of these tensors. scale: a gradient scaler's, by which the step divides."""
        summed = False
        with surviving_out_of_memory():
            pairs: dict[int, tuple[Tensor, Tensor]] = {}
            for i in rows:
                own = self.owned[i]
                if own is not None and (gradients := own.gradients):
                    self.used[i] = True
                    # With `local` alone if there was no memory: other ranks wait for partial sums of gradients.
                    weights = self._weights[i] if self._weights else local(self._tensors[i])
                    pairs[i] = _beside(gradients, self._tensors[i], weights)
            if pairs:
                gradients = [gradient for gradient, _ in pairs.values()]
                if self._optimizer_state:
                    found = tensor_sums([theta for _, theta in pairs.values()], gradients)
                    # The columns for θ with reference g are Σg² and Σg(θ − g), and Σgθ is their sum.
                    sums = torch.stack([found[:, REF_SQUARE], found[:, REF_SQUARE] + found[:, REF_DOT]], 1)
                else:
                    sums = squares(gradients)[:, None]
                if scale is not None:
                    sums = (
                        sums / torch.stack([scale.to(sums) ** 2, scale.to(sums)]).flatten()[: sums.shape[1]]
                    )
                self._gradients.append((list(pairs), sums))
            summed = True
        self._failed |= not summed

    def _moments(self) -> Tensor:
        """Σm² and Σv of Adam's first and second moments; NaN for optimizers without moments."""
        first: dict[int, Tensor] = {}
        second: dict[int, Tensor] = {}
        for i, (own, tensor) in enumerate(zip(self.owned, self._tensors, strict=True)):
            state = own.optimizer.state.get(own.parameters[0], {}) if own else {}
            m, v = state.get("exp_avg"), state.get("exp_avg_sq")
            if m is not None and v is not None:
                first[i], second[i] = local_gradient(m, tensor), local_gradient(v, tensor)
        if not first:
            return torch.full((len(self.owned), 2), nan, dtype=torch.float64)
        of_first = squares(list(first.values()))
        sums = torch.full((len(self.owned), 2), nan, dtype=torch.float64, device=of_first.device)
        sums[list(first)] = torch.stack([of_first, plain_sums(list(second.values())).to(of_first.device)], 1)
        return sums


def start(tensors: Sequence[Tensor]) -> Tensor:
    """The sums of the weights before the first step, over all ranks; NaN where a rank ran out of memory."""
    sums = torch.full((len(tensors), 3), nan, dtype=torch.float64)
    with surviving_out_of_memory():
        sums = tensor_sums([local(p) for p in tensors])
    add_over_ranks(sums, tensors)
    return sums


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
