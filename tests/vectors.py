"""Training reduced to its dynamics: vectors that take steps of a known size, for tests to hold against."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

PARTS = ("transformer.h.0.mlp.c_fc.weight", "transformer.h.1.mlp.c_fc.weight")


def simulate(
    schedule, kappa, steps, *, model="misaligned", norm0=1.0, dims=10_000, p=1.0, weight_decay=0.0,
    decay="decoupled", start=0, alignment=0.0, seed=0,
):  # fmt: skip
    """θ after each step from `start` on, (steps + 1, dims): δ of length κη‖θ‖^p along θ or in a random direction.

    alignment: for misaligned steps, a part along θ that they have nevertheless.
    """
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal(dims)
    theta *= norm0 / np.linalg.norm(theta)
    path = [theta]
    for t in range(start, start + steps):
        eta, norm = schedule(t), np.linalg.norm(theta)
        along = theta / norm
        if model == "aligned":
            way = along
        else:
            way = rng.standard_normal(dims)
            way -= along * (along @ way)
            way *= np.sqrt(1 - alignment**2) / np.linalg.norm(way)
            way += alignment * along
        lost = weight_decay * (1.0 if decay == "eq3" else eta)
        theta = (1 - lost) * theta + kappa * eta * norm**p * way
        path.append(theta)
    return np.array(path)


def norms(path):
    return np.sqrt((path**2).sum(axis=1))


def write_path(folder, path, every):
    """Each `every`-th θ as a checkpoint of two layers."""
    Path(folder).mkdir(parents=True)
    for step in range(0, len(path), every):
        halves = np.split(path[step], 2)
        state = {
            name: half.reshape(-1, 10).astype(np.float64) for name, half in zip(PARTS, halves, strict=True)
        }
        save_file(state, Path(folder) / f"step_{step}.safetensors")
    return folder
