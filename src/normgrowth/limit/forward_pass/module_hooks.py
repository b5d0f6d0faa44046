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
    key = object()
    hooked: list[Any] = []
    try:
        for name, module in without_wrappers(modules):

            def enter(_: nn.Module, __: Any, name: str = name) -> None:
                context.path.append(name)
                context.entered[name] += 1

            def leave(module: nn.Module, args: Any, result: Any, name: str = name) -> None:
                context.path.pop()
                saw(name, module, args, result)

            hooked.append(module)
            _hook(module, key, enter, leave)
        yield
    finally:
        for module in hooked:
            module._forward_pre_hooks.pop(key, None)
            module._forward_hooks.pop(key, None)
            module._forward_hooks_always_called.pop(key, None)


def _hook(module: Any, key: object, enter: Any, leave: Any) -> None:
    """What `register_forward_pre_hook` and `register_forward_hook` do, without their handles.

    Those of a small model take as long as its forward pass.
    """
    before = module._forward_pre_hooks
    before[key] = enter
    if len(before) > 1:
        before.move_to_end(key, last=False)
    module._forward_hooks[key] = leave
    module._forward_hooks_always_called[key] = True  # also after an error
