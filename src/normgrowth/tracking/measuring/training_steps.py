"""The training steps of a run: measured, checked for warnings, and recorded."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import nan

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from normgrowth.checkpoints.parameters.selection import Selection
from normgrowth.tracking.forward_passes.compute_dtypes import ComputeDtypes
from normgrowth.tracking.forward_passes.logits import Logits
from normgrowth.tracking.log.recording import Recording, decay_so_far
from normgrowth.tracking.log.step_file import Rows
from normgrowth.tracking.log.step_records import (
    NONFINITE,
    packed_start,
    packed_step,
    unpacked_step,
    with_updates,
)
from normgrowth.tracking.measuring.measured_step import MeasuredStep, start, update_squares
from normgrowth.tracking.measuring.setting_changes import SettingChanges
from normgrowth.tracking.measuring.weight_copies import WeightCopies
from normgrowth.tracking.optimizer_rules import read_rules
from normgrowth.tracking.run_warnings import RunWarning, RunWarnings
from normgrowth.tracking.tensor_sums import WORDS, local
from normgrowth.tracking.tracked_parameters import Watched, reshard, strangers, watch

CLIP_EPSILON = 1e-6  # which `clip_grad_norm_` adds to the norm


class TrainingSteps:
    """Measures the steps that are due; `OptimizerRounds` says when one begins and ends.

    keeps: whether this rank keeps records. clipped: the gradient norm before clipping and its limit, of the next step.
    latest: the rows of the latest measured step. step: the number of the last step.
    """

    def __init__(
        self,
        model: nn.Module,
        watched: Watched,
        selection: Selection,
        recording: Recording,
        settings: SettingChanges,
        *,
        step: int,
        due: Callable[[int], bool],
        keeps: bool,
        compare_first: bool,
        logits: bool,
        optimizer_state: bool,
        warn: bool,
    ) -> None:
        self.step = self._first_step = self._looked = step
        self.recording = recording
        self.warnings: list[RunWarning] = []
        self.clipped: tuple[Tensor | float, float] | None = None
        self._model, self._watched, self._selection, self._settings = model, watched, selection, settings
        self._due, self._keeps, self._wants_first, self._wants_warnings = due, keeps, compare_first, warn
        self._optimizer_state = optimizer_state
        self._first: dict[str, Tensor] = {}
        self._held: MeasuredStep | None = None
        self._copies: dict[int, WeightCopies] = {}
        self._checks: RunWarnings | None = None
        self._blind = False  # whether the warning about missing logits was issued
        self._decay_so_far = decay_so_far(recording.log)
        self._begin()
        if step:
            recording.log.note(step, f"resumed at step {step}", wait=True)
        self._compute_dtypes = ComputeDtypes(model)
        self._logits = Logits(model, lambda: self._due(self.step + 1)) if logits else None

    def close(self) -> None:
        """Remove the hooks on the model, and no longer keep its weights alive."""
        self._compute_dtypes.remove()
        if self._logits:
            self._logits.remove()
        self._held, self._first, self._copies = None, {}, {}
        del self._model, self._watched, self._logits

    # Called by OptimizerRounds -----------------------------------------------------------------------------

    def begin(self, optimizers: Sequence[Optimizer]) -> None:
        self._held = None  # not None if the last step failed
        if self._wants_first and not self._first:
            self._keep_first()
        self._describe_compute_dtypes()
        starts, due = not (self.step or self._started), self._due(self.step + 1)
        if not (starts or due):
            return
        reshard(self._model)
        if not self._watched.is_current(self._model):
            self._look_again(optimizers)
        self._look_at_settings(optimizers)
        if starts:
            self._record_start()
        if due:
            self._held = MeasuredStep(
                self._watched.tensors, self._copies, optimizer_state=self._optimizer_state
            )

    def before(self, optimizer: Optimizer, *, closure: bool) -> None:
        if self._held is not None:
            self._held.before(optimizer, closure=closure)

    def incomplete(self, missing: Sequence[Optimizer]) -> None:
        """Warn if the first round of calls is not complete, since later rounds would then be split in the same way."""
        if self.step == self._first_step:
            names = ", ".join(type(one).__name__ for one in missing)
            self.note(
                f"step {self.step + 1}: {names} was not called; if it was called after the others, "
                "list the optimizers in the order of their calls"
            )

    def end(self, optimizers: Sequence[Optimizer], stepped: set[int]) -> None:
        self.step += 1
        held, self._held = self._held, None
        clipped, self.clipped = self.clipped, None
        if held is None:
            return
        first = [self._first[reading.name] for reading in self._watched.readings] if self._first else None
        summed = held.after(first)
        squares = update_squares(self._watched.adapters).numpy()
        scores = self._logits.take() if self._logits else (nan, nan, nan)
        coefficient = nan
        if clipped is not None:
            norm, most = clipped
            coefficient = min(1.0, most / (float(norm) + CLIP_EPSILON))
        if not self._keeps:
            return
        if self._logits and self._logits.blind and not self._blind:
            self._blind = True
            self.note(
                f"step {self.step}: no logits were captured: the model passed to the tracker is not called itself"
            )
        # A fused optimizer skips the step if its gradients are not finite.
        idle = {id(one) for one in optimizers if bool(getattr(one, "found_inf", None))}
        skipped = stepped <= idle
        moved = [
            used and own is not None and id(own.optimizer) not in idle
            for own, used in zip(held.owned, held.used, strict=True)
        ]
        rules = read_rules(held.owned, moved)
        before = np.array([self._decay_so_far.get(reading.name, 0.0) for reading in self._watched.readings])
        passed = 0 if skipped else self.step - self._looked
        columns = summed.cpu().numpy()
        columns, apart = columns[:, :-1], columns[:, -1]
        rows = packed_step(self.recording.layout, columns, rules, (*scores, coefficient), before, passed)
        self.latest = with_updates(self.recording.layout, rows, squares)
        failed = bool(np.isnan(self.latest[:, NONFINITE]).any())
        moments, run = unpacked_step(self.recording.layout, self.latest)
        # Infinite gradients are normal while a gradient scaler searches its scale: a skipped step is not checked.
        checks = None if failed or skipped else self._checks
        found = list(checks.check(self.step, moments, run, apart)) if checks else []
        if self.recording.totals and any(warning.kind == "elsewhere" for warning in found):
            self.recording.totals = False
            self.recording.begin_part(self.step - 1)
        self.recording.log.append(self.step, self.latest)
        if failed:
            self.note(
                f"step {self.step}: out of memory during the measurement; the values of this step are NaN"
            )
        if failed or skipped:
            return
        self._looked = self.step
        names = (reading.name for reading in self._watched.readings)
        self._decay_so_far |= dict(zip(names, run["decay_so_far"].tolist(), strict=True))
        for warning in found:
            self.warnings.append(warning)
            self.note(str(warning), [(warning.kind, name) for name in warning.names])

    # Tracked parameters ------------------------------------------------------------------------------------

    def _keep_first(self) -> None:
        """Copy the weights that have no copy yet; other copies stay unchanged."""
        for reading, tensor in zip(self._watched.readings, self._watched.tensors, strict=True):
            values = local(tensor)
            known = self._first.get(reading.name)
            if known is None or known.shape != values.shape or known.device != values.device:
                self._first[reading.name] = values.clone()

    def _describe_compute_dtypes(self) -> None:
        """Record the dtypes of the forward passes other than those of the weights, before the next step."""
        own = {tensor.dtype for tensor in self._watched.tensors}
        found = sorted(WORDS[dtype] for dtype in self._compute_dtypes.take() - own if dtype in WORDS)
        if found != self.recording.fields.get("compute_dtypes", []):
            self.recording.fields["compute_dtypes"] = found
            self.recording.begin_part(self.step)

    def _record_start(self) -> None:
        """Record step 0: the weights before the first step."""
        self._started = True
        sums = start(self._watched.tensors).cpu().numpy()
        squares = update_squares(self._watched.adapters).numpy()
        if self._keeps and not np.isnan(sums[:, NONFINITE]).any():
            self.recording.log.append(
                0, with_updates(self.recording.layout, packed_start(self.recording.layout, sums), squares)
            )

    def _look_again(self, optimizers: Sequence[Optimizer]) -> None:
        old = {reading.name for reading in self._watched.readings}
        self._watched = watch(self._model, self._selection)
        new = {reading.name for reading in self._watched.readings}
        self.recording.fields["counted"] = asdict(self._watched.counted)
        self.recording.totals = False
        foreign = strangers(self._watched, optimizers)
        self.note(
            f"step {self.step + 1}: the parameters of the model have changed ({len(new - old)} new names, "
            f"{len(old - new)} removed, the rest reassigned); the current parameters are measured"
            + (f"; {foreign}; updates of such parameters are not measured" if foreign else "")
        )
        if self._first:
            self._keep_first()
        self._begin()

    def _look_at_settings(self, optimizers: Sequence[Optimizer]) -> None:
        fields, told = self._settings.look(optimizers, self.step)
        if fields:
            self.recording.fields.update(fields)
            self.recording.begin_part(self.step)
        if told:
            self.note(told)

    def _begin(self) -> None:
        self.latest: Rows | None = None  # an earlier layout does not apply
        self._started = self.step > 0  # whether step 0 is recorded
        issued = self._checks.issued if self._checks else self.recording.log.issued
        dtypes = [tensor.dtype for tensor in self._watched.tensors]
        self._checks = RunWarnings(self._watched.readings, dtypes, issued) if self._wants_warnings else None
        self.recording.begin(self._watched, self.step)

    def note(self, text: str, issued: Sequence[tuple[str, str]] = ()) -> None:
        self.recording.note(self.step, text, issued)
