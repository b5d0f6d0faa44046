"""PyTorch settings under which every operation is visible: no fused layers, no cached casts."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def no_cached_weights() -> Iterator[None]:
    """Clear autocast's cache of cast weights: casts from a plain pass have no degree, and casts from a limit must not
    stay in the cache.
    """
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


@contextmanager
def unfused_kernels(modules: Iterable[tuple[str, nn.Module]]) -> Iterator[None]:
    """Disable kernels that fuse whole layers, which hide their operations; restores the settings.

    oneDNN is disabled only if there are recurrent layers, which it fuses; matrix products in bfloat16 need it.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    onednn = torch._C._get_mkldnn_enabled()
    recurrent = any(isinstance(module, nn.RNNBase) for _, module in modules)
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        # torch.backends.mkldnn.flags also sets TF32 and warns on CPUs without it, so it is not used.
        torch._C._set_mkldnn_enabled(onednn and not recurrent)
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        torch._C._set_mkldnn_enabled(onednn)
