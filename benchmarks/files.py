"""Make checkpoints for the benchmarks: random weights with the names of a transformer, once per run."""

from pathlib import Path

import numpy as np
from safetensors.torch import save_file

LAYERS = 48  # many tensors come from experts, not from thousands of layers


def make_pair(folder: Path, megabytes: int, *, tensors: int = 96, dtype: str = "float32") -> list[Path]:
    """Write two checkpoints of about this size, a small step apart; both are then in the page cache."""
    import torch

    if folder.exists():
        return sorted(folder.iterdir())
    folder.mkdir(parents=True)
    kind = getattr(torch, dtype)
    each = int(megabytes * 1e6 / kind.itemsize / tensors)
    random = np.random.default_rng(0)
    first: dict[str, torch.Tensor] = {}
    for i in range(tensors):
        values = torch.from_numpy(random.standard_normal(each, dtype=np.float32))
        first[f"model.layers.{i % LAYERS}.mlp.experts.{i // LAYERS}.weight"] = values
    for step in (0, 1):
        state = {name: (values * (1 + 0.01 * step)).to(kind) for name, values in first.items()}
        save_file(state, folder / f"step_{step}.safetensors")
    return sorted(folder.iterdir())
