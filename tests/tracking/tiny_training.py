"""A tiny transformer with everything that makes tracking hard, and slow references for what is tracked."""

import math
from functools import partial

import numpy as np
import torch
from torch import nn

from normgrowth.tracking.tracker import NormTracker

# Where a test checks the numbers of a whole model, embeddings too, whatever its parameters are called.
WholeTracker = partial(NormTracker, include="all")


class Tiny(nn.Module):
    """An embedding tied to the head, two blocks, a parameter that is frozen."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 12, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.scale = nn.Parameter(torch.full((width,), 1.5), requires_grad=False)
        self.head = nn.Linear(width, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x * self.scale)


def tiny(seed: int = 0, dtype: torch.dtype = torch.float32) -> Tiny:
    torch.manual_seed(seed)
    model = Tiny()
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.1, 0.3)  # torch starts biases at 0, which has no direction
    return model.to(dtype)


def backward(model: nn.Module, step: int) -> float:
    """Gradients of a batch that depends on the step alone."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(11, (4, 6), generator=generator)
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
    loss.backward()
    return loss.item()


def groups_of(model: nn.Module, decay: float = 0.1, **second: float) -> list[dict]:
    """Matrices decay, vectors do not: two groups, as everybody trains."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0, **second},
    ]


def values(tensor: torch.Tensor | None, like: torch.Tensor) -> np.ndarray:
    return np.zeros(like.numel()) if tensor is None else tensor.detach().double().flatten().numpy().copy()


def angle_between(a: np.ndarray, b: np.ndarray) -> float:
    """Kahan's: exact for small angles, and not the way that the package goes."""
    a, b = a / np.linalg.norm(a), b / np.linalg.norm(b)
    return 2 * math.atan2(np.linalg.norm(a - b), np.linalg.norm(a + b))


def expected(
    before: list[np.ndarray], after: list[np.ndarray], gradient: list[np.ndarray], decay: list[float]
) -> dict[str, float]:
    """What one step does to some tensors taken together, the obvious way. decay: ηλ of each."""
    a, b, g = np.concatenate(before), np.concatenate(after), np.concatenate(gradient)
    shrinking = np.concatenate([-d * x for d, x in zip(decay, before, strict=True)])
    step = b - a
    norm = np.linalg.norm
    radial = step @ a / norm(a)
    return {
        "norm": norm(b),
        "rms": np.sqrt(np.mean(b**2)),
        "largest": np.abs(b).max(),
        "numel": len(b),
        "nonfinite": 0,
        "step_size": norm(step),
        "relative_step": norm(step) / norm(a),
        "angle": angle_between(a, b),
        "radial": radial,
        "tangential": norm(step - radial * a / norm(a)),
        "growth_alignment": 2 * a @ step,
        "growth_steps": step @ step,
        "growth": 2 * a @ step + step @ step,
        "gradient_norm": norm(g),
        "decay_step": norm(shrinking),
        "gradient_step": norm(step - shrinking),
    }


def row_of(records, step: int, level: str, name: str) -> dict[str, float]:
    rows = records.where(step=step, level=level, name=name).table.to_pylist()
    return {_key(row): row["value"] for row in rows}


def _key(row) -> str:
    """Quantity, and what it is compared with unless that is the step before: "angle to first"."""
    return row["quantity"] + ("" if row["reference"] in (None, "previous") else f" to {row['reference']}")


def members(model: nn.Module, level: str, name: str) -> list[str]:
    """The tensors of Tiny that a row is about, from what the model is and not from its names' reading."""
    names = [n for n, _ in model.named_parameters()]  # ties counted once
    if level == "model":
        return names
    if level == "part":
        return [n for n, p in model.named_parameters() if (p.ndim > 1) == (name == "matrices")]
    if level in ("layer", "layer_matrices"):
        inside = [n for n in names if n.startswith(f"layers.{name.removeprefix('layer.')}.")]
        matrices = {n for n, p in model.named_parameters() if p.ndim > 1}
        return [n for n in inside if level == "layer" or n in matrices]
    roles = {
        "embedding": ("embedding.weight",),
        "attention.qkv": ("in_proj",),
        "attention.output": ("out_proj",),
        "feedforward": ("linear",),
        "norm": ("norm",),
        "other": ("scale",),
    }
    if level == "role":
        return [n for n in names if any(word in n for word in roles[name])]
    return [name]
