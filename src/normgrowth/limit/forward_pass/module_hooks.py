"""Hooks that say in which module a pass is, and what came out of it."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from normgrowth.limit.forward_pass.compiled import without_wrappers
from normgrowth.limit.pass_log import Context


@contextmanager
def watched(
    modules: Iterable[tuple[str, nn.Module]],
    saw: Callable[[str, nn.Module, Any, Any], None],
    context: Context,
) -> Iterator[None]:
    """While this lasts, `context` knows the module; `saw` gets its name, itself, its arguments and its result."""
    handles: list[Any] = []
    try:
        for name, module in without_wrappers(modules):

            def enter(_: nn.Module, __: Any, name: str = name) -> None:
                context.path.append(name)
                context.entered[name] += 1

            def leave(module: nn.Module, args: Any, result: Any, name: str = name) -> None:
                context.path.pop()
                saw(name, module, args, result)

            handles.append(module.register_forward_pre_hook(enter, prepend=True))
            handles.append(module.register_forward_hook(leave, always_call=True))  # also after an error
        yield
    finally:
        for handle in handles:
            handle.remove()
