"""Compiled models: the original modules, run eagerly.

Dynamo would trace the rules instead of the network, and its wrappers put `_orig_mod.` into every name.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

WRAPPED = "_orig_mod"  # attribute of torch.compile(module) with the original module


def unwrapped(model: nn.Module) -> nn.Module:
    while WRAPPED in model._modules:
        model = getattr(model, WRAPPED)
    return model


def plain_name(name: str) -> str:
    """The name of a parameter or module without torch.compile."""
    return ".".join(part for part in name.split(".") if part != WRAPPED)


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module under its name without torch.compile, without the wrappers."""
    return without_compiled_wrappers(model.named_modules())


def without_compiled_wrappers(modules: Iterable[tuple[str, nn.Module]]) -> Iterator[tuple[str, nn.Module]]:
    for name, module in modules:
        if WRAPPED not in module._modules:
            yield (plain_name(name) if WRAPPED in name else name), module


@contextmanager
def run_eagerly() -> Iterator[None]:
    """Run compiled modules and functions eagerly."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and importing dynamo takes seconds
        yield
        return
    stance: Any = torch.compiler.set_stance
    with stance("force_eager"):
        yield
