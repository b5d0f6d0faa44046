"""The tracker as a callback of the transformers Trainer."""

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

    The second form also logs the values to the reporters of the Trainer (TensorBoard, W&B, MLflow, trackio, ...), but
    not to its `log_history` and console. Steps are the Trainer's `global_step`. A resumed run continues its records. A
    run that restarts in its old folder raises an error, unless resume_step=0 allows it to replace the records.
    quantities, levels: the logged values; the trace has all values. options: options of `NormTracker`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.tracker: NormTracker | None = None
        self._trainer: Trainer | None = None

    def log_to(self, trainer: "Trainer") -> Self:
        """Log values to the reporters of this Trainer, which callbacks cannot access by themselves."""
        self._trainer = trainer
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Only the options are pickled, not the state of a run."""
        return {**self.__dict__, "tracker": None, "_trainer": None}

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if self.tracker is not None:  # from an interrupted run
            self.tracker.close()
        self.tracker = self.new_tracker(parts["model"], parts["optimizer"], self.out, state.global_step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if self.tracker is not None:
            self.tracker.step = state.global_step  # which also counts steps that a gradient scaler skips

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if self.tracker is None or self._trainer is None:
            return
        if values := self.latest(self.tracker, self.prefix):
            # Trainer.log would also write to log_history and the console, and replace the loss of this step.
            for reporter in self._trainer.callback_handler.callbacks:
                if isinstance(reporter, REPORTERS):
                    reporter.on_log(args, state, control, logs=dict(values), **parts)

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if self.tracker is not None:
            self.tracker.close()
