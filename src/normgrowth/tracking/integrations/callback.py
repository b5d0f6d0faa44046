"""Shared code of the callbacks for other libraries: options, and trackers made from them."""

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from normgrowth.tracking.due import Every
from normgrowth.tracking.logger_values import LOGGED
from normgrowth.tracking.tracker import NormTracker


class TrackerCallback:
    """quantities, levels: the logged values, as {"normgrowth/norm/layer.03": ...}; the trace has all values.

    resume_step=0: a run that restarts in its old folder replaces the old records. options: options of `NormTracker`.
    """

    def __init__(
        self,
        *,
        every: Every = 10,
        out: str | None = None,
        quantities: Sequence[str] = LOGGED,
        levels: Sequence[str] = ("model", "layer"),
        prefix: str = "normgrowth/",
        resume_step: int | None = None,
        **options: Any,
    ) -> None:
        self.every, self.out, self.prefix = every, out, prefix
        self.quantities, self.levels = tuple(quantities), tuple(levels)
        self.resume_step, self.options = resume_step, options

    def new_tracker(
        self, model: nn.Module, optimizer: Optimizer, out: str | None, step: int | None
    ) -> NormTracker:
        """A tracker with the options of this callback. step: where a run resumes; 0 or None at the start."""
        step = step or self.resume_step
        return NormTracker(model, optimizer, every=self.every, out=out, resume_step=step, **self.options)

    def latest(self, tracker: NormTracker, prefix: str) -> dict[str, float]:
        values = tracker.latest(self.quantities, self.levels)
        return {f"{prefix}{name}": value for name, value in values.items()}
