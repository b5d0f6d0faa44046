"""The tracker as a Lightning callback; logs from an optimizer hook, because Lightning has no hook after the step."""

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from normgrowth.tracking.integrations.callback import TrackerCallback
from normgrowth.tracking.tracker import NormTracker


class NormCallback(TrackerCallback, Callback):
    """For `Trainer(callbacks=[NormCallback(...)])`; its `trackers` have the traces, one per optimizer.

    Values are logged to every logger of the Trainer at the optimizer's step. With several optimizers, each has its own
    folder below `out`. quantities, levels: the logged values; the traces have all values.
    resume_step=0: a run that restarts in its old folder replaces the old records. options: options of `NormTracker`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.trackers: list[NormTracker] = []
        self._hooks: list[Any] = []
        self._steps: list[int] = []  # steps of each optimizer, from a checkpoint

    def __getstate__(self) -> dict[str, Any]:
        """Only the options are pickled, not the state of a run."""
        return {**self.__dict__, "trackers": [], "_hooks": []}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": [tracker.step for tracker in self.trackers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._steps = list(state_dict["steps"])

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        several = len(trainer.optimizers) > 1
        # Steps from a checkpoint, else from the last fit of the same Trainer.
        known = self._steps or [tracker.step for tracker in self.trackers]
        known = known if trainer.global_step else []
        self.trackers, self._hooks, self._steps = [], [], []
        for i, optimizer in enumerate(trainer.optimizers):
            folder = self.out if self.out is None or not several else str(Path(self.out) / f"optimizer-{i}")
            # Lightning counts the steps of all optimizers together; a checkpoint has the steps of each optimizer.
            alike = trainer.global_step // len(trainer.optimizers)
            tracker = self.new_tracker(pl_module, optimizer, folder, known[i] if i < len(known) else alike)
            where = f"{self.prefix}optimizer-{i}/" if several else self.prefix
            self._hooks.append(
                optimizer.register_step_post_hook(lambda *_, t=tracker, w=where: self._log(trainer, t, w))
            )
            self.trackers.append(tracker)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        for tracker in self.trackers:
            tracker.close()

    def _log(self, trainer: Any, tracker: NormTracker, where: str) -> None:
        values = self.latest(tracker, where)
        if values and trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.log_metrics(values, step=tracker.step)
