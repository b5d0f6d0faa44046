"""Sample a tensor's values and classify them."""

from collections.abc import Callable
from math import prod

import numpy as np
from numpy.typing import NDArray

from normgrowth.checkpoints.checkpoint import (
    STORAGE,
    Checkpoint,
    Chunked,
    Strided,
    Tensor,
    assemble,
    decode,
)
from normgrowth.moments.moments import Floats

DENSE = 1 << 22  # larger tensors are classified as buffers by their sample only


def places(numel: int, count: int) -> NDArray[np.int64]:
    """Return `count` flat indices of a tensor, evenly spread but with jitter so that they do not align with rows."""
    if numel <= count:
        return np.arange(numel, dtype=np.int64)
    at = np.arange(count, dtype=np.int64)
    start = at * numel // count
    room = (at + 1) * numel // count - start
    return start + (at * 2654435761 >> 7) % room


def sample(checkpoint: Checkpoint, name: str, count: int) -> Floats:
    """Return the sampled values of a tensor as float64; from mapped files, only these values are copied."""
    tensor, pieces = checkpoint.tensors[name], checkpoint.pieces(name)
    at = places(tensor.numel, count)
    match tensor.layout:
        case Strided(strides):
            where = np.unravel_index(at, tensor.shape)
            bits = pieces[0][sum(i * s for i, s in zip(where, strides, strict=True))]
        case Chunked(boxes):
            where = np.unravel_index(at, tensor.shape)
            bits = np.zeros(len(at), STORAGE[tensor.dtype])
            for (corner, shape), piece in zip(boxes, pieces, strict=True):
                inside = [i - c for i, c in zip(where, corner, strict=True)]
                held = np.all([(i >= 0) & (i < n) for i, n in zip(inside, shape, strict=True)], axis=0)
                if prod(shape) and held.any():
                    bits[held] = piece[np.ravel_multi_index([i[held] for i in inside], shape)]
        case _:
            bits = assemble(tensor, pieces)[at]
    values = decode(tensor.dtype, bits)
    checkpoint.check_whole()
    return values


def pattern(values: Floats) -> str:
    """Return the initialization pattern that the values fit: a constant, a normal or a uniform distribution, or ""."""
    if values.size < 2 or not np.isfinite(values).all():
        return ""
    if values.min() == values.max():
        return {0.0: "zeros", 1.0: "ones"}.get(float(values[0]), "constant")
    if values.size < 256:
        return ""
    with np.errstate(all="ignore"):
        centered = values - values.mean()
        variance = float(np.mean(centered**2))
        kurtosis = float(np.mean(centered**4)) / variance**2 if variance > 0 else np.nan
    # Tolerances: four standard errors for the mean, five for the kurtosis of a normal distribution.
    if values.mean() ** 2 > 16 * variance / values.size:
        return ""
    if abs(kurtosis - 1.8) < 0.1:
        return "uniform"
    return "normal" if abs(kurtosis - 3) < 5 * np.sqrt(24 / values.size) else ""


def buffer_like(tensor: Tensor, values: Floats, whole: Callable[[], NDArray[np.generic]]) -> str:
    """Return why the values look like a buffer (mask, indices, frequencies, table of sines), or "".

    values: a sample. whole: returns all stored bits, row-major; called only if the sample is not enough.
    """
    if values.size < 1 or np.isnan(values).any():
        return ""
    distinct = np.unique(values)
    low, high = float(distinct[0]), float(distinct[-1])
    if len(distinct) == 1:
        # Gains of 1, biases of 0 and layer scales are also constant, but only a mask filler is this large.
        return f"every value is {low:g}, as in the filler of a mask" if abs(low) >= 1e3 else ""
    if len(distinct) == 2 and high == 0 and low <= -1e3:
        return f"its values are 0 and {low:g}, as in a mask that is added"
    if (distinct == np.round(distinct)).all() and low >= 0 and values.size >= 4:
        return "zeros and ones, as in a mask" if high == 1 else "whole numbers, as in a table of indices"
    if len(tensor.shape) == 1 and 4 <= tensor.numel == values.size and low > 0:
        ratios = np.diff(np.log(values))
        if np.ptp(ratios) < 0.02 and abs(ratios.sum()) > 1:
            return "a geometric sequence, as of rotary frequencies"
    bounded = low >= -1 - 1e-3 and 0.9 < high <= 1 + 1e-3
    if bounded and len(tensor.shape) > 1 and tensor.numel <= DENSE:
        rows = decode(tensor.dtype, whole()).reshape(-1, tensor.shape[-1])
        at = np.arange(len(rows))
        if min(rows.shape) < 4:
            return ""
        if np.allclose(np.mean(rows**2, axis=1), 0.5, atol=5e-3):
            return "sines and cosines of one phase in each row, as in a table of positions"
        if any(np.allclose(rows[:, 0], wave(at), atol=2e-2) for wave in (np.cos, np.sin)):
            return "a wave in each column, as in a rotary cache"
    return ""
