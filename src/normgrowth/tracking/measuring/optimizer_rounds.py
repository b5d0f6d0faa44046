"""Hooks on `optimizer.step()` of one or several optimizers: a training step is one round of their calls."""

import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch.optim import Optimizer

from normgrowth.errors import InputError


class RoundListener(Protocol):
    """What is told about the rounds."""

    def begin(self, optimizers: Sequence[Optimizer]) -> None:
        """Before the first call of a round."""

    def before(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Before each call. closure: it computes the gradients itself."""

    def end(self, optimizers: Sequence[Optimizer], stepped: set[int]) -> None:
        """After the last call of a round. stepped: ids of the optimizers that were called."""

    def incomplete(self, missing: Sequence[Optimizer]) -> None:
        """Before `end`, if a call shows that the round before it was not complete."""


class OptimizerRounds:
    """Groups the calls of optimizers into rounds, in the order of the list. Does not keep the optimizers alive."""

    def __init__(self, optimizers: Sequence[Optimizer], steps: RoundListener) -> None:
        self._steps = steps
        self._optimizers = [weakref.ref(one) for one in optimizers]
        self._order = {id(one): i for i, one in enumerate(optimizers)}
        self._stepped: set[int] = set()  # ids of the optimizers that have stepped in the current round
        # A compiled step calls the hooks eagerly, because they cannot be compiled.
        as_it_is: Any = torch.compiler.disable
        self._hooks: list[Any] = []
        for one in optimizers:
            self._hooks.append(one.register_step_pre_hook(as_it_is(self._before)))
            self._hooks.append(one.register_step_post_hook(as_it_is(self._after)))

    def remove(self) -> None:
        """Remove the hooks, and end the current round if an optimizer was not called in it."""
        if self._stepped:
            self._end()
        for hook in self._hooks:
            hook.remove()

    @torch.no_grad()
    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            raise InputError(
                "optimizer.step() is captured in a CUDA graph, whose replays the tracker cannot see; capture only the "
                "forward and backward pass, or close the tracker"
            )
        if any(self._order[other] >= self._order[id(optimizer)] for other in self._stepped):
            self._steps.incomplete([one for one in self._present() if id(one) not in self._stepped])
            self._end()
        if not self._stepped:
            self._steps.begin(self._present())
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        self._steps.before(optimizer, closure=closure is not None)

    @torch.no_grad()
    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        self._stepped.add(id(optimizer))
        if len(self._stepped) == len(self._optimizers):
            self._end()

    @torch.no_grad()
    def _end(self) -> None:
        stepped, self._stepped = self._stepped, set()
        self._steps.end(self._present(), stepped)

    def _present(self) -> list[Optimizer]:
        return [one for reference in self._optimizers if (one := reference()) is not None]
