"""How far a network is from itself with hard attention: only softmax is taken to its limit, not the weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from normgrowth.limit.module_names import place
from normgrowth.limit.pass_log import Tie
from normgrowth.limit.saturated import saturated


@dataclass(frozen=True)
class HardHeads:
    """Cosines between soft and hard, for each block and the model: their mean over tokens, and the least."""

    model: str
    rows: list[dict[str, Any]]  # module, class, cosine, least, tokens
    ties: list[Tie]

    def facts(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "modules": self.rows,
            "ties": [dict(vars(tie)) for tie in self.ties],
        }


def hard_heads(model: nn.Module, *args: Any, tolerance: float = 256, **inputs: Any) -> HardHeads:
    """Run a model with soft and with hard heads, and compare what its blocks return, token by token."""
    soft: dict[str, Tensor] = {}
    hard: dict[str, Tensor] = {}
    with torch.no_grad(), _kept(model, soft):
        model(*args, **inputs)
    limit = saturated(model, tolerance=tolerance, attention_only=True)
    with _kept(model, hard):
        limit(*args, **inputs)
    modules = dict(model.named_modules())
    rows = []
    for name, value in soft.items():
        cosines = torch.cosine_similarity(value.double(), hard[name].double(), dim=-1).flatten()
        row = {"module": name, "class": type(modules[name]).__name__}
        row |= {"cosine": float(cosines.mean()), "least": float(cosines.min()), "tokens": cosines.numel()}
        rows.append(row)
    return HardHeads(type(model).__name__, rows, limit.ties)


@contextmanager
def _kept(model: nn.Module, kept: dict[str, Tensor]) -> Iterator[None]:
    """What each block returns, and the model; of a block that runs several times, the last."""
    handles: list[Any] = []
    try:
        for name, module in model.named_modules():
            where = place(name)
            if name and (where.block is None or where.rest):
                continue

            def leave(_: nn.Module, __: Any, result: Any, name: str = name) -> None:
                for leaf in pytree.tree_leaves(result):
                    if isinstance(leaf, Tensor) and leaf.is_floating_point():
                        kept[name] = leaf.detach().clone()
                        return

            handles.append(module.register_forward_hook(leave))
        yield
    finally:
        for handle in handles:
            handle.remove()
