"""Hooks that track the running module and its output."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from normgrowth.limit.forward_pass.compiled import without_compiled_wrappers
from normgrowth.limit.pass_log import Context


@contextmanager
def watched(
    modules: Iterable[tuple[str, nn.Module]],
    saw: Callable[[str, nn.Module, Any, Any], None],
    context: Context,
) -> Iterator[None]:
    """Track the running module in `context`; calls `saw` with name, module, arguments and result of every module."""
    key = object()
    hooked: list[Any] = []
    try:
        for name, module in without_compiled_wrappers(modules):

            def enter(_: nn.Module, __: Any, name: str = name) -> None:
                context.path.append(name)
                context.entered[name] += 1

            def leave(module: nn.Module, args: Any, kwargs: Any, result: Any, name: str = name) -> None:
                context.path.pop()
                saw(name, module, (args, kwargs), result)

            hooked.append(module)
            _hook(module, key, enter, leave)
        yield
    finally:
        for module in hooked:
            module._forward_pre_hooks.pop(key, None)
            module._forward_hooks.pop(key, None)
            module._forward_hooks_with_kwargs.pop(key, None)
            module._forward_hooks_always_called.pop(key, None)


def _hook(module: Any, key: object, enter: Any, leave: Any) -> None:
    """Register a forward pre-hook and a forward hook without handles.

    In a small model, creating the handles takes as long as the forward pass.
    """
    before = module._forward_pre_hooks
    before[key] = enter
    if len(before) > 1:
        before.move_to_end(key, last=False)
    module._forward_hooks[key] = leave
    module._forward_hooks_with_kwargs[key] = True
    module._forward_hooks_always_called[key] = True  # also after an error
