"""Copies of the weights before a step, in memory that is used again at each measured step.

Taking memory from the system costs more than the copy: the system clears each page at its first access, and a virtual
machine may have returned free memory to its host. With fresh memory 5 s after its release, a copy of 436 MB took 140 to
890 ms of CPU time in a virtual machine, and 23 to 33 ms in memory that was kept.
"""

import mmap
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

ALIGNMENT = 64  # bytes; alignment of the copies


class WeightCopies:
    """Memory for copies of weights on a CPU. Between measured steps, the system may take its pages back if memory is
    short (MADV_FREE, on Linux and macOS); until then they count as resident memory of the process."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def copy(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copies of flat tensors, on their devices, valid until `release`."""
        here = [i for i, tensor in enumerate(tensors) if tensor.device.type == "cpu"]
        sizes = [-(-tensors[i].nbytes // ALIGNMENT) * ALIGNMENT for i in here]
        ends = accumulate(sizes)
        self._take(sum(sizes))
        found = list(tensors)
        for i, size, end in zip(here, sizes, ends, strict=True):
            part = self._buffer[end - size :][: tensors[i].nbytes]
            found[i] = part.view(tensors[i].dtype).copy_(tensors[i])
        return [copy.clone() if copy is tensor else copy for copy, tensor in zip(found, tensors, strict=True)]

    def release(self) -> None:
        """Let the system take the pages of the copies when it needs memory."""
        if self._memory is not None and hasattr(mmap, "MADV_FREE"):
            self._memory.madvise(mmap.MADV_FREE)

    def _take(self, size: int) -> None:
        """Make the buffer at least this large, with large pages if possible. Raises MemoryError."""
        if size <= len(self._buffer):
            return
        self._memory, self._buffer = (
            None,
            torch.empty(0, dtype=torch.uint8),
        )  # the old memory, before the new one
        try:
            if hasattr(mmap, "MAP_PRIVATE"):
                self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            else:
                self._memory = mmap.mmap(-1, size)
        except OSError as error:
            raise MemoryError(str(error)) from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._buffer = torch.frombuffer(self._memory, dtype=torch.uint8)
