"""A tracker in the Trainer of transformers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from transformers import TrainerCallback

from normgrowth.tracking.due import Every
from normgrowth.tracking.tracker import LOGGED, NormTracker

if TYPE_CHECKING:
    from transformers import Trainer


class NormCallback(TrainerCallback):
    """Track the runs of a Trainer from their first step; `tracker.trace` has the numbers::

        trainer = Trainer(..., callbacks=[NormCallback(every=10, out="runs/first/norms")])
        trainer.add_callback(NormCallback(every=10, out="runs/first/norms").log_to(trainer))

    The second form also gives the values to every reporter of the Trainer. Steps are the Trainer's `global_step`. A run
    that is resumed continues its records; one that starts again in its old folder is refused, unless resume_step=0
    allows to replace these. quantities, levels: what is logged; the trace has everything. options: as of `NormTracker`.
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
        self.tracker: NormTracker | None = None
        self._trainer: Trainer | None = None

    def log_to(self, trainer: "Trainer") -> Self:
        """Log through this Trainer, which gives callbacks no way to do so by themselves."""
        self._trainer = trainer
        return self

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: the options, and nothing of a run."""
        return {**self.__dict__, "tracker": None, "_trainer": None}

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if self.tracker is not None:  # of a run that was interrupted
            self.tracker.close()
        step = state.global_step or self.resume_step
        self.tracker = NormTracker(
            parts["model"],
            parts["optimizer"],
            every=self.every,
            out=self.out,
            resume_step=step,
            **self.options,
        )

    def on_step_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if self.tracker is not None:
            self.tracker.step = state.global_step  # which also counts steps that a gradient scaler skips

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if self.tracker is None or self._trainer is None:
            return
        if values := self.tracker.latest(self.quantities, self.levels):
            # The Trainer takes any log for its own, and would leave that of this step out.
            due = control.should_log
            self._trainer.log({f"{self.prefix}{name}": value for name, value in values.items()})
            control.should_log = self._trainer.control.should_log = due

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if self.tracker is not None:
            self.tracker.close()
