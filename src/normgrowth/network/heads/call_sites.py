"""Position of a forward pass in a model: the running modules, their inputs, and how often each has attended."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from normgrowth.errors import InputError


class Where(NamedTuple):
    """The innermost module, and the number of its earlier attentions in this pass."""

    module: str
    call: int


@dataclass
class Frame:
    name: str
    module: nn.Module
    given: tuple[Any, Any]  # args, kwargs
    calls: int = 0


class Path:
    """The running modules, outermost first, and how often each has attended in this pass."""

    def __init__(self, began: Callable[[], None]) -> None:
        self.began = began
        self.frames, self.calls = list[Frame](), dict[str, int]()

    def enter(self, frame: Frame) -> None:
        if not self.frames:
            self.calls = {}
            self.began()
        self.frames.append(frame)

    @property
    def module(self) -> nn.Module | None:
        """The innermost."""
        return self.frames[-1].module if self.frames else None

    def next_call(self) -> tuple[Where, Frame, int]:
        """Location of the next attention, its frame, and its number within that frame."""
        if not self.frames:
            raise InputError("attention was called outside of every module, so its layer is unknown")
        frame = self.frames[-1]
        number = self.calls.get(frame.name, 0)
        self.calls[frame.name] = number + 1
        frame.calls += 1
        return Where(frame.name, number), frame, frame.calls - 1


@contextmanager
def following(model: nn.Module, began: Callable[[], None] = lambda: None) -> Iterator[Path]:
    path, handles = Path(began), []
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        # The fused kernel of a whole layer hides its attention.
        torch.backends.mha.set_fastpath_enabled(False)
        for name, module in model.named_modules():

            def enter(module: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
                path.enter(Frame(name, module, (args, kwargs)))

            def leave(*_: Any) -> None:
                path.frames.pop()

            handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(module.register_forward_hook(leave, always_call=True))
        yield path
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for handle in handles:
            handle.remove()
