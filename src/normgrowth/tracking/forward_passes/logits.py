"""Magnitudes of attention logits before the softmax and of the network's outputs, on request.

At steps that will be measured, forward passes run under a mode that intercepts `scaled_dot_product_attention` and
softmaxes of scores (rows, heads, queries, keys) and records the largest magnitude that is not masked. Fused attention
does not return its scores, so they are recomputed: attention costs about twice as much at a measured step.

A frozen `nn.MultiheadAttention` in eval mode has a fast path with different rounding, which any mode would disable. For
such a model, only the outputs are measured.
"""

from collections.abc import Callable
from dataclasses import replace
from math import nan, sqrt
from typing import Any

import torch
from torch import Tensor, nn

from normgrowth.network.attention_capture import AttentionTap, Fused
from normgrowth.tracking.distributed import is_parallel
from normgrowth.tracking.tensor_sums import local, to_double

HIDDEN = -1e8  # masks are below this (minus infinity, the minimum of a dtype, or -1e9), scores are not


class Logits:
    """Measures the forward passes of a model until it is removed."""

    def __init__(self, model: nn.Module, due: Callable[[], bool]) -> None:
        self._due = due
        self._scores = _Scores()
        self._outputs: list[tuple[Tensor, int, Tensor]] = []  # sum of squares, values, largest
        self.blind = False  # whether the last `take` had no scores and no outputs
        self._hooks = [
            model.register_forward_pre_hook(self._enter),
            model.register_forward_hook(self._leave, always_call=True),
        ]
        self._depth = 0  # nesting of calls within a measured pass, because a model may call itself
        self._watches = False

    def __reduce__(self) -> "tuple[Callable[[], Logits], tuple[()]]":
        """Copies of the model, pickled or deep, are not measured."""
        return _unwatched, ()

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def take(self) -> tuple[float, float, float]:
        """The largest attention logit, and RMS and largest magnitude of the outputs, since the last call; all ranks."""
        largest = [value.max() for value in self._scores.found]
        outputs, self._scores.found, self._outputs = self._outputs, [], []
        self.blind = not (largest or outputs)
        top = torch.stack([to_double(x) for x in largest]).max().item() if largest else nan
        square = sum(s.item() for s, _, _ in outputs)
        count = sum(n for _, n, _ in outputs)
        high = max((m.item() for *_, m in outputs), default=nan)
        if is_parallel():
            top, square, count, high = _over_ranks(top, square, count, high)
        return top, sqrt(square / count) if count else nan, high

    def _enter(self, model: nn.Module, _: Any) -> None:
        if self._depth:
            self._depth += 1
        elif (
            torch.is_grad_enabled() and self._due()
        ):  # forward passes without gradients are evaluation, and are not measured
            self._depth, self._watches = 1, not _has_fast_path(model)
            if self._watches:
                self._scores.__enter__()

    def _leave(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if self._depth != 1:
            self._depth = max(self._depth - 1, 0)
            return
        self._depth = 0
        if self._watches:
            self._scores.__exit__(None, None, None)
        logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
        if isinstance(logits, Tensor) and logits.dim() and logits.numel():  # a scalar is a loss
            values = to_double(local(logits))
            self._outputs.append((values.square().sum(), values.numel(), values.abs().max()))


def _has_fast_path(model: nn.Module) -> bool:
    return any(
        not (module.training or any(p.requires_grad for p in module.parameters()))
        for module in model.modules()
        if isinstance(module, nn.MultiheadAttention)
    )


def _unwatched() -> Logits:
    copy = Logits.__new__(Logits)
    copy._due, copy._depth, copy._hooks = bool, 0, []  # bool() is False: never due
    return copy


class _Scores(AttentionTap):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Tensor] = []

    def fused(self, attention: Fused, compute: Callable[[], Tensor]) -> Tensor:
        query, key = attention.query, attention.key
        if query.numel() and key.numel():
            with torch.no_grad():
                self._keep(replace(attention, query=query.detach(), key=key.detach()).scores())
        return compute()

    def softmax(self, scores: Tensor, dim: int | None, compute: Callable[[], Tensor]) -> Tensor:  # noqa: ARG002
        if scores.dim() == 4 - self.in_heads:  # nn.MultiheadAttention merges rows and heads
            with torch.no_grad():
                self._keep(scores)
        return compute()

    def _keep(self, scores: Tensor) -> None:
        scores = local(scores)
        hidden = scores < max(torch.finfo(scores.dtype).min / 4, HIDDEN)
        self.found.append(scores.masked_fill(hidden, 0.0).abs().amax())


def _over_ranks(top: float, square: float, count: int, high: float) -> tuple[float, float, int, float]:
    """Sums and largest values over all processes; NaN (no values) is ignored."""
    sums = torch.tensor([square, float(count)], dtype=torch.float64)
    largest = torch.tensor([top, high], dtype=torch.float64).nan_to_num(nan=-1.0)
    backend = torch.distributed.get_backend()
    if "nccl" in backend:
        sums, largest = sums.cuda(), largest.cuda()
    torch.distributed.all_reduce(sums)
    torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
    square, count = float(sums[0]), int(sums[1])
    top, high = (float(x) if x >= 0 else nan for x in largest)
    return top, square, count, high
