"""Tensors whose values do not lie together in a file: views with gaps, with repeats, or of the other sign."""

from typing import NamedTuple

import numpy as np


class Gathered(NamedTuple):
    """A tensor of one file that is read by a copy, row-major."""

    file: str  # below the checkpoint's root; "" where the root is the file
    offset: int  # of its first value
    numel: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in values; 0 where values repeat
    negated: bool = False

    @property
    def extent(self) -> int:
        """From its first value to its last, how many values of the file."""
        return (
            1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) if self.numel else 0
        )

    def copied(self, stored: np.ndarray, dtype: str) -> np.ndarray:
        """Its raw bits, flat, given those of its extent."""
        strides = [s * stored.itemsize for s in self.strides]
        view = np.lib.stride_tricks.as_strided(stored, self.shape, strides, writeable=False)
        bits = np.ascontiguousarray(view).reshape(-1)
        if not self.negated:
            return bits
        if dtype[0] not in "FB" or dtype == "BOOL":
            return np.negative(bits)
        unsigned = bits.view(f"u{bits.itemsize}")
        return (unsigned ^ unsigned.dtype.type(1 << (8 * bits.itemsize - 1))).view(bits.dtype)
