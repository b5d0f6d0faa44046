"""Run several language models of the same shape as one model: their weights are stacked, and all read the same tokens.

A small network spends most of its time on launching operations; here one operation serves K networks. The code of the
encoder runs unchanged, on copies of its modules whose linear maps and norms hold K weights each, so a block has only
one definition. In between, states have the shape (K·B, T, D): attention treats the networks as additional sequences.
(`vmap` over the plain modules gives the same result; in a first trial, it took 1.0 to 1.6 times as long.)

For wide networks, computation and memory dominate: K networks do not fit into a cache that holds one. Logits over the
vocabulary would be the largest tensor. So the head and the loss are one operation, which processes one piece at a time
and computes gradients while the piece is in the cache.

Shapes: K networks, B sequences, T tokens, D width, N real places, V words.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from normgrowth.errors import InputError
from normgrowth.network.models.encoders import LanguageModel

PIECE = 1 << 18  # logits per piece: they fit into the cache of a core
ROWS = 64  # smallest number of places per piece, because matrix products with fewer rows are slow


class Stacked(nn.Module):
    """K copies of a causal language model that are trained separately; `losses` returns the loss of each.

    flat: all weights, (K, numel). The parameters are views of it, in the order of `names`, so `flat[k]` is the whole
    network k and can have its own optimizer.
    """

    def __init__(self, model: LanguageModel, count: int, names: Sequence[str] | None = None) -> None:
        super().__init__()
        if model.config.leaking or not model.config.causal:
            raise InputError("only causal models without a leaking mask can be stacked")
        self.count = count
        parameters = dict(model.named_parameters())
        self.names = list(names or parameters)
        shapes = [parameters[name].shape for name in self.names]
        self.sizes = [shape.numel() for shape in shapes]
        self.flat = torch.cat([parameters[name].detach().reshape(-1) for name in self.names]).repeat(count, 1)
        pieces = self.flat.split(self.sizes, 1)
        views = {
            id(parameters[name]): nn.Parameter(piece.view(count, *shape))
            for name, piece, shape in zip(self.names, pieces, shapes, strict=True)
        }
        # The memo of deepcopy replaces the parameters by the stacked ones, so tied parameters stay tied.
        self.model: Any = _exchanged(deepcopy(model, dict(views)))
        self.stacked = [views[id(parameters[name])] for name in self.names]

    def losses(self, ids: Tensor, real: Tensor) -> Tensor:
        """Return the sum over tokens of −log p(token | previous tokens) for each network, (K)."""
        encoder, head = self.model.encoder, self.model.head
        rows, length = ids.shape[0], ids.shape[1] - 1
        tokens = encoder.token_embedding.weight.index_select(1, ids[:, :-1].reshape(-1))  # (K, B·T, D)
        positions = encoder.position_embedding.weight[:, None, :length]  # (K, 1, T, D)
        x = (tokens.view(self.count, rows, length, -1) + positions).flatten(0, 1)  # (K·B, T, D)
        for block in encoder.blocks:
            x = block(x, None)
        x = encoder.final_norm(x)
        counted = real[:, 1:].reshape(-1)
        places = counted.nonzero()[:, 0]
        states = x.reshape(self.count, rows * length, -1).index_select(1, places)  # (K, N, D)
        return _Loss.apply(states, head.weight, head.bias, ids[:, 1:].reshape(-1)[counted])  # type: ignore[return-value]

    def gradients(self, losses: Tensor, out: Tensor) -> None:
        """Write the gradients to `out`, laid out like `flat`. Networks are independent: one backward pass suffices."""
        found = torch.autograd.grad(losses.sum(), self.stacked)
        torch.cat([gradient.flatten(1) for gradient in found], 1, out=out)


class _Linear(nn.Module):
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias  # (K, out, in), (K, out)

    def forward(self, x: Tensor) -> Tensor:
        y = x.reshape(len(self.weight), -1, x.shape[-1])  # (K·B, T, in) -> (K, B·T, in)
        y = (
            torch.bmm(y, self.weight.mT)
            if self.bias is None
            else torch.baddbmm(self.bias[:, None], y, self.weight.mT)
        )
        return y.view(*x.shape[:-1], -1)


class _Norm(nn.Module):
    def __init__(self, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = weight, bias, eps  # (K, D)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.layer_norm(x, x.shape[-1:], eps=self.eps).view(len(self.weight), -1, x.shape[-1])
        gain = self.weight[:, None]
        y = y * gain if self.bias is None else torch.addcmul(self.bias[:, None], y, gain)
        return y.view(x.shape)


def _exchanged(module: nn.Module) -> nn.Module:
    """Replace each linear map and norm of the module by its stacked version; return the module."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, _Linear(child.weight, child.bias))
        elif isinstance(child, nn.LayerNorm) and child.elementwise_affine:
            setattr(module, name, _Norm(child.weight, child.bias, child.eps))
        else:
            _exchanged(child)
    return module


class _Loss(torch.autograd.Function):
    """Cross-entropy of a linear head for each network. The forward pass also computes the gradients (softmax − target).

    A piece is several networks, or several places of one network: about PIECE logits are in memory at a time.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:  # type: ignore[override]
        losses = states.new_zeros(len(states))
        by_states = torch.empty_like(states)
        by_weight = torch.zeros(weight.shape, dtype=weight.dtype)
        by_bias = None if bias is None else torch.zeros(bias.shape, dtype=bias.dtype)
        for networks, places in _pieces(len(states), len(targets), weight.shape[1]):
            x, w = states[networks, places], weight[networks]
            logits = x @ w.mT if bias is None else torch.baddbmm(bias[networks, None], x, w.mT)
            values = functional.log_softmax(logits, -1)
            target = targets[places].expand(x.shape[:2])[..., None]
            losses[networks] -= values.gather(-1, target).sum((1, 2))
            values = values.exp_().scatter_add_(-1, target, values.new_full(target.shape, -1.0))
            torch.bmm(values, w, out=by_states[networks, places])
            by_weight[networks].baddbmm_(values.mT, x)
            if by_bias is not None:
                by_bias[networks] += values.sum(1)
        ctx.save_for_backward(by_states, by_weight, by_bias)
        return losses

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        by_states, by_weight, by_bias = ctx.saved_tensors
        scale = gradient[:, None, None]
        return by_states * scale, by_weight * scale, None if by_bias is None else by_bias * scale[:, 0], None


def _pieces(networks: int, places: int, words: int) -> Iterator[tuple[slice, slice]]:
    """Yield the networks and the places of each piece."""
    several = max(1, PIECE // (places * words))
    part = places if places * words <= PIECE else max(ROWS, PIECE // words)
    for i in range(0, networks, several):
        for j in range(0, places, part):
            yield slice(i, i + several), slice(j, j + part)
