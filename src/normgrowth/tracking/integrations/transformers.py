"""A tracker in the Trainer of transformers: one line, and every reporter that the Trainer has gets the values."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from normgrowth.tracking.due import Every
from normgrowth.tracking.tracker import LOGGED, NormTracker

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback


def track(
    trainer: "Trainer",
    every: Every = 10,
    out: str | None = None,
    *,
    quantities: Sequence[str] = LOGGED,
    levels: Sequence[str] = ("model", "layer"),
    prefix: str = "normgrowth/",
    **options: Any,
) -> "TrainerCallback":
    """Track this Trainer's runs from their first step; returns the callback, whose `tracker` has the records::

        normgrowth.tracking.integrations.transformers.track(trainer, every=10, out="runs/first/norms")
        trainer.train()

    Steps are those of the optimizer, so gradient accumulation changes nothing. A run that is resumed goes on with
    its records; one that begins again in its old folder is refused, unless step=0 says that those may go.
    quantities, levels: what is logged; the records have everything. options: as of `NormTracker`.
    """
    from transformers import TrainerCallback

    anew = options.pop("step", None)

    class NormCallback(TrainerCallback):
        tracker: NormTracker | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            if self.tracker is not None:  # of a run that was interrupted
                self.tracker.close()
            step = state.global_step or anew
            self.tracker = NormTracker(parts["model"], parts["optimizer"], every, out, step=step, **options)

        def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            if self.tracker is not None and (values := self.tracker.news(quantities, levels)):
                # The Trainer takes any log for its own, and would leave that of this step out.
                due = control.should_log
                trainer.log({f"{prefix}{name}": value for name, value in values.items()})
                control.should_log = trainer.control.should_log = due

        def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            if self.tracker is not None:
                self.tracker.close()

    callback = NormCallback()
    trainer.add_callback(callback)
    return callback
