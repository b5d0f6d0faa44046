"""A tracker in the Trainer of transformers."""

from typing import TYPE_CHECKING, Any, Self

from transformers import TrainerCallback
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from normgrowth.tracking.integrations.callback import TrackerCallback
from normgrowth.tracking.tracker import NormTracker

if TYPE_CHECKING:
    from transformers import Trainer

REPORTERS = tuple(INTEGRATION_TO_CALLBACK.values())


class NormCallback(TrackerCallback, TrainerCallback):
    """Track the runs of a Trainer from their first step; `tracker.trace` has the numbers::

        trainer = Trainer(..., callbacks=[NormCallback(every=10, out="runs/first/norms")])
        trainer.add_callback(NormCallback(every=10, out="runs/first/norms").log_to(trainer))

    The second form also gives the values to the reporters of the Trainer (TensorBoard, W&B, MLflow, trackio, ...), and
    not to its `log_history` and console. Steps are the Trainer's `global_step`. A run that is resumed continues its
    records; one that starts again in its old folder is refused, unless resume_step=0 allows to replace these.
    quantities, levels: what is logged; the trace has everything. options: as of `NormTracker`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.tracker: NormTracker | None = None
        self._trainer: Trainer | None = None

    def log_to(self, trainer: "Trainer") -> Self:
        """Give values to the reporters of this Trainer, which callbacks cannot find by themselves."""
        self._trainer = trainer
        return self

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: the options, and nothing of a run."""
        return {**self.__dict__, "tracker": None, "_trainer": None}

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if self.tracker is not None:  # of a run that was interrupted
            self.tracker.close()
        self.tracker = self.new_tracker(parts["model"], parts["optimizer"], self.out, state.global_step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if self.tracker is not None:
            self.tracker.step = state.global_step  # which also counts steps that a gradient scaler skips

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if self.tracker is None or self._trainer is None:
            return
        if values := self.latest(self.tracker, self.prefix):
            # Trainer.log would fill log_history and the console, and take the place of the loss of this step.
            for reporter in self._trainer.callback_handler.callbacks:
                if isinstance(reporter, REPORTERS):
                    reporter.on_log(args, state, control, logs=dict(values), **parts)

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if self.tracker is not None:
            self.tracker.close()
