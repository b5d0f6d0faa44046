"""Small checkpoints that tests write: a transformer's names, known numbers, any format."""

from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import save_file


def tiny_state(seed: int = 0, layers: int = 2, width: int = 8) -> dict[str, torch.Tensor]:
    """Names of a GPT-2 with an embedding, blocks and a head; float32."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    state = {"transformer.wte.weight": random(11, width)}
    for i in range(layers):
        state[f"transformer.h.{i}.ln_1.weight"] = 1 + 0.1 * random(width)
        state[f"transformer.h.{i}.attn.c_attn.weight"] = random(width, 3 * width)
        state[f"transformer.h.{i}.attn.c_proj.weight"] = random(width, width)
        state[f"transformer.h.{i}.mlp.c_fc.weight"] = random(width, 4 * width)
        state[f"transformer.h.{i}.mlp.c_fc.bias"] = torch.zeros(4 * width)
    state["lm_head.weight"] = random(11, width)
    return state


def moved(state: dict[str, torch.Tensor], seed: int, size: float = 0.1) -> dict[str, torch.Tensor]:
    """The weights a random step later."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: tensor + size * torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
        for name, tensor in state.items()
    }


def walk(count: int, seed: int = 0, **options: int) -> list[dict[str, torch.Tensor]]:
    """A random walk of weights."""
    states = [tiny_state(seed, **options)]
    for i in range(1, count):
        states.append(moved(states[-1], seed + i))
    return states


def write_series(folder: Path, states: list[dict[str, torch.Tensor]], every: int = 100) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for i, state in enumerate(states):
        save_file(state, folder / f"step_{i * every}.safetensors")
    return folder


def counted(state: dict[str, torch.Tensor]) -> np.ndarray:
    """The default level as one float64 vector, the obvious way."""
    blocks = [tensor for name, tensor in state.items() if ".h." in name]
    return torch.cat([tensor.double().flatten() for tensor in blocks]).numpy()


__all__ = ["counted", "moved", "save_file", "save_numpy", "tiny_state", "walk", "write_series"]
