"""Tensors whose values are not contiguous in a file: views with gaps or repeats, or negated views."""

from typing import NamedTuple

import numpy as np


class Gathered(NamedTuple):
    """A tensor in one file that is copied to row-major order when it is read."""

    file: str  # relative to the checkpoint's root; "" if the root is the file
    offset: int  # of its first value
    numel: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in values; 0 where values repeat
    negated: bool = False

    @property
    def extent(self) -> int:
        """The number of stored values from its first to its last."""
        return (
            1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) if self.numel else 0
        )

    def copied(self, stored: np.ndarray, dtype: str) -> np.ndarray:
        """The raw bits of the tensor, flat. stored: the bits of its extent."""
        strides = [s * stored.itemsize for s in self.strides]
        view = np.lib.stride_tricks.as_strided(stored, self.shape, strides, writeable=False)
        bits = np.ascontiguousarray(view).reshape(-1)
        if not self.negated:
            return bits
        if dtype[0] not in "FB" or dtype == "BOOL":
            return np.negative(bits)
        unsigned = bits.view(f"u{bits.itemsize}")
        return (unsigned ^ unsigned.dtype.type(1 << (8 * bits.itemsize - 1))).view(bits.dtype)
