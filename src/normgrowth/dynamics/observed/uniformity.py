"""Uniformity: do all layers, roles or tensors grow at the same rate?

Proposition 1 (§4) needs every parameter to grow at the same rate. The share of each part in ‖θ‖² then stays constant.
"""

from dataclasses import dataclass
from math import nan

import numpy as np

from normgrowth.errors import InputError
from normgrowth.records import Block, Matrix, Records


@dataclass(frozen=True)
class Uniformity:
    """How evenly the layers, roles or tensors grow from the first step to the last.

    first_share, last_share: the share of each part in the sum of ‖θ‖². factor: last norm over first norm.
    spread: largest factor over smallest factor; 1 if uniform. moved: half the sum of absolute changes of the shares;
    0 if uniform, at most 1. by_steps, by_alignment: the two terms Σ‖δ‖² and Σ2⟨θ,δ⟩ whose sum is the growth of ‖θ‖² of
    each part; empty for tensors, and if the records lack them.
    """

    level: str
    names: tuple[str, ...]
    first_step: int
    last_step: int
    first_share: tuple[float, ...]
    last_share: tuple[float, ...]
    factor: tuple[float, ...]
    spread: float
    moved: float
    by_steps: tuple[float, ...] = ()
    by_alignment: tuple[float, ...] = ()


def uniformity(records: Records, *, level: str = "layer") -> Uniformity:
    """Return the growth factor of each layer, role or tensor, and its share in ‖θ‖² at the first and last step."""
    norm = _norms(records, level)
    share = _shares(norm)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = norm.values[-1] / norm.values[0]
    known = factor[np.isfinite(factor) & (factor > 0)]
    return Uniformity(
        level,
        tuple(norm.names),
        int(norm.steps[0]),
        int(norm.steps[-1]),
        tuple(share[0].tolist()),
        tuple(share[-1].tolist()),
        tuple(factor.tolist()),
        float(known.max() / known.min()) if len(known) else nan,
        float(np.abs(share[-1] - share[0]).sum() / 2),
        *(_term(records, level, norm, name) for name in ("steps", "alignment")),
    )


def _term(records: Records, level: str, norm: Matrix, name: str) -> tuple[float, ...]:
    """A term of the growth of ‖θ‖² of each part at the last step."""
    if level == "tensor":  # verbs read only the norms of tensors
        return ()
    grown = records.matrix(f"total_growth_{name}", level=level)
    if not len(grown.steps) or grown.steps[-1] != norm.steps[-1]:
        return ()
    return tuple(float(grown.curve(part)[-1]) for part in norm.names)


def shares(records: Records, *, level: str = "layer") -> Block:
    """Return the share of each part in ‖θ‖² at each step, as rows with the quantity "share"."""
    norm = _norms(records, level)
    none = [None] * len(norm.names)
    return Block(level, norm.names, norm.layers, none, norm.steps.tolist(), {"share": _shares(norm)})


def _norms(records: Records, level: str) -> Matrix:
    rows = records.where(level=level, quantity="norm")
    if not len(rows):
        raise InputError(f"no norms at level {level}; known levels: {', '.join(records.distinct('level'))}")
    rows.single_run()
    return rows.matrix("norm", level=level)


def _shares(norm: Matrix) -> np.ndarray:
    """Return shares (steps, parts)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return norm.values**2 / (norm.values**2).sum(axis=1, keepdims=True)
