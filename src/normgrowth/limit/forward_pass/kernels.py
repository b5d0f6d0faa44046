"""Settings of PyTorch under which every operation is seen: no whole layers in one kernel, no cached casts."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def no_cached_weights() -> Iterator[None]:
    """Autocast keeps casts of weights from pass to pass: those of a plain pass do not grow, ours must not stay."""
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


@contextmanager
def unfused_kernels(modules: Iterable[tuple[str, nn.Module]]) -> Iterator[None]:
    """Kernels that do a whole layer at once hide what is inside: off, and back as they were.

    oneDNN has one for recurrent layers only; elsewhere it stays, since matrix products in bfloat16 need it.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    onednn = torch._C._get_mkldnn_enabled()
    recurrent = any(isinstance(module, nn.RNNBase) for _, module in modules)
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        # Not torch.backends.mkldnn.flags, which also sets TF32 and warns that this CPU has none.
        torch._C._set_mkldnn_enabled(onednn and not recurrent)
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        torch._C._set_mkldnn_enabled(onednn)
