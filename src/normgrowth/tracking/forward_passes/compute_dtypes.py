"""The dtypes of forward passes, which autocast and FSDP2's `mp_policy` make coarser than those of the weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class ComputeDtypes:
    """Collects the dtypes of the outputs of all modules with parameters, until `take`.

    Outputs also have the dtype of an autocast region inside the model, as accelerate makes it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._found: set[torch.dtype] = set()
        self._compiled = False
        # A compiler calls it once, while it compiles, and does not see what it reads and writes.
        self._add = torch.compiler.assume_constant_result(self._adding())
        hooked = [] if _may_have_fast_path(model) else filter(_computes, model.modules())
        self._hooks = [part.register_forward_hook(self) for part in hooked]

    def __reduce__(self) -> "tuple[Callable[[], ComputeDtypes], tuple[()]]":
        """Copies of the model, pickled or deep, are not watched."""
        return _unwatched, ()

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:  # noqa: ARG002
        first = output[0] if isinstance(output, tuple) and output else output
        if torch.is_grad_enabled() and isinstance(first, Tensor) and first.is_floating_point():
            self._add(first.dtype, torch.compiler.is_compiling())

    def take(self) -> set[torch.dtype]:
        """Return the dtypes of the forward passes so far; if there were any, later ones are not watched."""
        if self._found and not self._compiled:  # without its hooks, a compiled model would be compiled again
            self.remove()
        return self._found

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _adding(self) -> Callable[[torch.dtype, bool], None]:
        def add(dtype: torch.dtype, compiling: bool) -> None:
            self._found.add(dtype)
            self._compiled = self._compiled or compiling

        return add


def _computes(part: nn.Module) -> bool:
    own = next(part.parameters(recurse=False), None)
    return own is not None and not isinstance(part, torch.jit.ScriptModule)


def _may_have_fast_path(model: nn.Module) -> bool:
    """Return whether hooks may change rounding: they disable the fast path of a frozen `nn.MultiheadAttention`."""
    return any(
        not any(p.requires_grad for p in part.parameters())
        for part in model.modules()
        if isinstance(part, nn.MultiheadAttention)
    )


def _unwatched() -> ComputeDtypes:
    return ComputeDtypes(nn.Module())
