"""NormTracker: measures what each optimizer step does to the weights during training."""

import warnings
import weakref
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import nan
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normgrowth.checkpoints.parameters.blocks import DEFAULT_INCLUDE
from normgrowth.checkpoints.parameters.selection import Selection
from normgrowth.errors import InputError, SeriesWarning
from normgrowth.results import Provenance, plain_fields
from normgrowth.schedules import SEVERAL
from normgrowth.text import labels
from normgrowth.trace.result import Trace
from normgrowth.tracking.distributed import is_main, of_main, world_size
from normgrowth.tracking.due import Every, due
from normgrowth.tracking.forward_passes.compute_dtypes import ComputeDtypes
from normgrowth.tracking.forward_passes.logits import Logits
from normgrowth.tracking.log.step_log import BEFORE_START, StepLog
from normgrowth.tracking.log.step_records import (
    LEVELS,
    NONFINITE,
    StepLayout,
    columns_of_run,
    packed_start,
    packed_step,
    record_blocks,
    unpacked_step,
    with_updates,
)
from normgrowth.tracking.measured_step import MeasuredStep, start, update_squares
from normgrowth.tracking.optimizer_rules import (
    changed_settings,
    describe_groups,
    plain_groups,
    read_rules,
    unwrap_optimizers,
)
from normgrowth.tracking.run_warnings import RunWarning, RunWarnings
from normgrowth.tracking.tensor_sums import WORDS, check_replicated, local, whole
from normgrowth.tracking.tracked_parameters import Watched, reshard, strangers, watch
from normgrowth.tracking.weight_copies import WeightCopies

CLIP_EPSILON = 1e-6  # which `clip_grad_norm_` adds to the norm
CHANGES = 10  # of one setting of the optimizer that are recorded; a schedule may change it at every step
LOGGED = (  # by default
    "norm",
    "relative_step",
    "angle",
    "equilibrium_angle",
    "alignment",
    "gradient_norm",
    "gradient_alignment",
    "moment_ratio",
    "lora_update_norm",
)


class NormTracker:
    """Norms, steps, directions, gradients and the growth budget of every tensor, layer, role and the model.

    >>> with ng.NormTracker(model, optimizer, every=10, out="runs/first") as tracker:
    ...     train(model, optimizer)
    >>> tracker.trace.steps
    (0, 10, 20)

    It hooks into `optimizer.step()`: step n is the n-th call, regardless of the number of backward passes. Step 0 has
    the norms before the first call.
    The quantities are those of `trace` for the weights before and after one step, and these::

        gradient_norm                norm of the gradient that the step used: averaged, clipped, unscaled
        decay_step, gradient_step    norms of the two parts of the step, −ηλθ and the rest; NaN for coupled decay (SGD
                                     and Adam with weight decay), which cannot be split
        equilibrium_norm, _angle     the prediction of `normgrowth.equilibrium` for this step's η, λ and β: AdamW, and
                                     SGD with momentum; NaN for others, without decay, and for groups with a NaN
        learning_rate                one value for the model if all parameters agree, else one per tensor
        total_growth, ...            the budget since the start; only with every=1, because it needs every step
        clip_coefficient             the factor by which gradients were clipped, if `record_clipping` is called
        lora_update_norm             ‖BA‖·scale of the LoRA adapters of PEFT, after the step; those of embeddings with
                                     include="all"

    every: n for every n-th step, "powers" for steps 1, 2, 4, 8, ..., or a function of the step.
    out: output folder for the records (default: in memory). A step is on disk when `optimizer.step()` returns, and
    `ng.load(out)` works at any time.
    include, select, exclude: the counted parameters, as in `trace`; default: parameters of blocks; include="all": all.
    levels: which of tensor, layer, role and model to record.
    compare_first: also compare with the weights before the first step, of which a copy is kept.
    logits: also measure `attention_logit`, the largest before a softmax, and `logit_rms`, `logit_largest` of the
    outputs, over the forward passes of a measured step; attention then costs about twice as much at measured steps.
    optimizer_state: also measure `gradient_alignment`, the cosine of gradient and weights, and, from Adam's state, the
    norms `first_moment_norm` ‖m‖ and `second_moment_norm` ‖√v‖ and their `moment_ratio`.
    warn: issue a SeriesWarning for NaN, steps below resolution, runaway norms and others, once each; `warnings` has
    them with their thresholds, `ok` is True if there were none.
    resume_step: the step from which a run resumes, with the same parameters as before. Existing records of later steps
    are dropped; 0 starts again.

    Under DDP, FSDP2 (also hybrid), tensor parallelism or combinations, values are the same as with one process. Every
    rank must have a tracker and measure the same steps; rank 0 writes. With a folder, `trace` is available only on
    rank 0; without one, on every rank. Plain tensors that differ between ranks raise an error.

    A measured step keeps a copy of the weights that the optimizer changes until the step is done. On a CPU, the memory
    of the copy is used again at the next measured step; in between, the system may take it back if memory is short.
    Tracking does not affect training: losses are bit-identical.

    optimizer: an optimizer, or a list of all optimizers of the model in the order of their calls: `[muon, adamw]`.
    Step n is then the n-th round of calls, measured after the last one; an optimizer may be left out of a round, as a
    gradient scaler does. If weights change between steps, the tracker warns, and the budget since the start ends.

    Parameters may be frozen and unfrozen at any time, and added to the optimizer later. If the model gets different
    parameters during training (added, removed, reassigned), the tracker warns and continues with the new parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        every: Every = 10,
        out: str | Path | None = None,
        include: str = DEFAULT_INCLUDE,
        select: str | None = None,
        exclude: str | None = None,
        levels: Sequence[str] = LEVELS,
        compare_first: bool = False,
        logits: bool = False,
        optimizer_state: bool = False,
        warn: bool = True,
        run: str | None = None,
        resume_step: int | None = None,
    ) -> None:
        self._due = due(every)
        if resume_step is not None and resume_step < 0:
            raise InputError(f"resume_step must be >= 0, got {resume_step}")
        for unknown in set(levels) - set(LEVELS):
            raise InputError(f"levels must be among {', '.join(LEVELS)}, got {unknown!r}")
        self.step = self._first_step = resume_step or 0
        optimizers = unwrap_optimizers(optimizer)
        self._model = model
        # Not kept alive by the tracker, which ends with them if it is not closed.
        self._optimizers = [weakref.ref(one) for one in optimizers]
        self._order = {id(one): i for i, one in enumerate(optimizers)}
        self._stepped: set[int] = (
            set()
        )  # ids of the optimizers that have stepped in the current training step
        self._selection = Selection(include, select, exclude)
        self._watched = watch(model, self._selection)
        if foreign := strangers(self._watched, optimizers):
            raise InputError(f"{foreign}: pass the whole model that the optimizer trains to the tracker")
        check_replicated([reading.name for reading in self._watched.readings], self._watched.tensors)
        self._levels = [level for level in LEVELS if level in levels]
        self._wants_first = compare_first and not self.step
        self._first: dict[str, Tensor] = {}
        self._totals = every == 1
        self._optimizer_state = optimizer_state
        self._held: MeasuredStep | None = None
        self._clipped: tuple[Tensor | float, float] | None = None
        self._copies: dict[int, WeightCopies] = {}
        self._checks: RunWarnings | None = None
        self._warnings: list[RunWarning] = []
        self._blind = False  # whether the warning about missing logits was issued
        self._keeps = out is None or is_main()
        self._log = _open_log(out, resume_step, self._selection)
        self._run = run or self._log.run or (labels([out])[0] if out else "") or type(model).__name__
        self._groups = describe_groups(optimizers)
        self._changed: list[str] = self._log.optimizer_changes
        self._changes: dict[str, int] = {}  # how often each setting changed
        self._fields = self._description(optimizers, every)
        self._wants_warnings, self._looked = warn, self.step
        self._decay_so_far = _decay_so_far(self._log)
        self._begin()
        if self.step:
            self._log.note(self.step, f"resumed at step {self.step}", wait=True)
        if compare_first and not self._wants_first:
            self._note(
                f"resumed at step {self.step}: the first weights are not available, so nothing is compared with them"
            )
        self._compute_dtypes = ComputeDtypes(model)
        # A compiled step calls the hooks eagerly, because they cannot be compiled.
        as_it_is: Any = torch.compiler.disable
        self._hooks: list[Any] = [self._compute_dtypes]
        for one in optimizers:
            self._hooks.append(one.register_step_pre_hook(as_it_is(self._before)))
            self._hooks.append(one.register_step_post_hook(as_it_is(self._after)))
        self._logits = Logits(model, lambda: self._due(self.step + 1)) if logits else None
        if self._logits:
            self._hooks.append(self._logits)
        # Write the records of the last steps even if the tracker is not closed.
        self._finish = weakref.finalize(self, self._log.close)

    def __enter__(self) -> "NormTracker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the hooks and finish the records; `trace` remains available."""
        if self._hooks:
            if self._stepped:  # an optimizer was not called in the last training step
                self._end_step()
            for hook in self._hooks:
                hook.remove()
            self._hooks, self._held, self._first, self._copies = [], None, {}, {}
            del self._model, self._watched, self._logits  # a closed tracker does not keep the weights alive
        self._finish()

    @property
    def trace(self) -> Trace:
        """Everything measured so far: the type that `normgrowth.trace` returns, so `fit` and others accept it."""
        if not self._keeps:
            raise InputError(
                "a tracker with a folder has its records only on rank 0: use tracker.trace there, or ng.load(folder)"
            )
        return Trace.from_stored(self._log.stored())

    @property
    def warnings(self) -> tuple[RunWarning, ...]:
        """The warnings of this tracker, with reason, value and threshold; empty on other ranks than 0."""
        return tuple(self._warnings)

    @property
    def ok(self) -> bool:
        """Whether there were no warnings; a training loop can stop if it is False."""
        return not self._warnings

    def record_clipping(self, norm: Tensor | float, max_norm: float) -> None:
        """Record by how much the gradients of the next step were clipped, as `clip_coefficient`; on every rank.

        The gradients that the tracker measures are clipped; divided by this, they are those before clipping::

            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            tracker.record_clipping(norm, 1.0)
        """
        self._clipped = whole(norm) if isinstance(norm, Tensor) else norm, max_norm

    def latest(
        self, quantities: Sequence[str] = LOGGED, levels: Sequence[str] = ("model", "layer")
    ) -> dict[str, float]:
        """The values of the latest measured step, for a logger: {"norm/model": 2.0, "norm/layer.03": ...}.

        Empty if nothing was measured since the last call, and on ranks without records; NaN values are omitted.
        """
        rows, self._latest = self._latest, None
        if rows is None:
            return {}
        layout = replace(self._layout, levels=list(levels))
        digits = len(str(max((reading.layer or 0 for reading in layout.readings), default=0)))
        found: dict[str, float] = {}
        for block in record_blocks(layout, [self.step], rows[None], None):
            names = [_padded(name, digits) if block.level == "layer" else name for name in block.names]
            for quantity in quantities:
                for name, value in zip(names, block.values.get(quantity, np.zeros((1, 0)))[0], strict=False):
                    if not np.isnan(value):
                        found[f"{quantity}/{name}"] = float(value)
        return found

    # The hooks -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            raise InputError(
                "optimizer.step() is captured in a CUDA graph, whose replays the tracker cannot see; capture only the "
                "forward and backward pass, or close the tracker"
            )
        if any(self._order[other] >= self._order[id(optimizer)] for other in self._stepped):
            self._note_missing_calls()
            self._end_step()
        if not self._stepped:
            self._begin_step()
        if self._held is not None:
            closure = args[1] if len(args) > 1 else kwargs.get("closure")
            self._held.before(optimizer, closure=closure is not None)

    def _note_missing_calls(self) -> None:
        """Warn if the first round of calls is not complete, since later rounds would then be split in the same way."""
        if self.step == self._first_step:
            missing = [type(one).__name__ for one in self._present() if id(one) not in self._stepped]
            self._note(
                f"step {self.step + 1}: {', '.join(missing)} was not called; if it was called after the others, "
                "list the optimizers in the order of their calls"
            )

    def _begin_step(self) -> None:
        """Before the first optimizer of a training step."""
        self._held = None  # not None if the last step failed
        if self._wants_first and not self._first:
            self._keep_first()
        self._describe_compute_dtypes()
        starts, due = not (self.step or self._started), self._due(self.step + 1)
        if not (starts or due):
            return
        reshard(self._model)
        if not self._watched.is_current(self._model):
            self._look_again()
        self._look_at_settings()
        if starts:
            self._record_start()
        if due:
            self._held = MeasuredStep(
                self._watched.tensors, self._copies, optimizer_state=self._optimizer_state
            )

    def _describe_compute_dtypes(self) -> None:
        """Record the dtypes of the forward passes other than those of the weights, before the next step."""
        own = {tensor.dtype for tensor in self._watched.tensors}
        found = sorted(WORDS[dtype] for dtype in self._compute_dtypes.take() - own if dtype in WORDS)
        if found != self._fields.get("compute_dtypes", []):
            self._fields["compute_dtypes"] = found
            self._log.begin(self._layout, self._fields, self.step or BEFORE_START)

    def _record_start(self) -> None:
        """Record step 0: the weights before the first step."""
        self._started = True
        sums = start(self._watched.tensors).cpu().numpy()
        squares = update_squares(self._watched.adapters).numpy()
        if self._keeps and not np.isnan(sums[:, NONFINITE]).any():
            self._log.append(0, with_updates(self._layout, packed_start(self._layout, sums), squares))

    @torch.no_grad()
    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        self._stepped.add(id(optimizer))
        if len(self._stepped) == len(self._optimizers):
            self._end_step()

    @torch.no_grad()
    def _end_step(self) -> None:
        """Measure the training step, after its last optimizer."""
        self.step += 1
        stepped, self._stepped = self._stepped, set()
        held, self._held = self._held, None
        clipped, self._clipped = self._clipped, None
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
            self._note(
                f"step {self.step}: no logits were captured: the model passed to the tracker is not called itself"
            )
        # A fused optimizer skips the step if its gradients are not finite.
        idle = {id(one) for one in self._present() if bool(getattr(one, "found_inf", None))}
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
        rows = packed_step(self._layout, columns, rules, (*scores, coefficient), before, passed)
        self._latest = with_updates(self._layout, rows, squares)
        failed = bool(np.isnan(self._latest[:, NONFINITE]).any())
        moments, run = unpacked_step(self._layout, self._latest)
        # Infinite gradients are normal while a gradient scaler searches its scale: a skipped step is not checked.
        checks = None if failed or skipped else self._checks
        found = list(checks.check(self.step, moments, run, apart)) if checks else []
        if self._totals and any(warning.kind == "elsewhere" for warning in found):
            self._totals = False
            self._begin_part(self.step - 1)
        self._log.append(self.step, self._latest)
        if failed:
            self._note(
                f"step {self.step}: out of memory during the measurement; the values of this step are NaN"
            )
        if failed or skipped:
            return
        self._looked = self.step
        names = (reading.name for reading in self._watched.readings)
        self._decay_so_far |= dict(zip(names, run["decay_so_far"].tolist(), strict=True))
        for warning in found:
            self._warnings.append(warning)
            self._note(str(warning), [(warning.kind, name) for name in warning.names])

    # Tracked parameters ----------------------------------------------------------------------------------

    def _keep_first(self) -> None:
        """Copy the weights that have no copy yet; other copies stay unchanged."""
        for reading, tensor in zip(self._watched.readings, self._watched.tensors, strict=True):
            values = local(tensor)
            known = self._first.get(reading.name)
            if known is None or known.shape != values.shape or known.device != values.device:
                self._first[reading.name] = values.clone()

    def _present(self) -> list[Optimizer]:
        return [one for reference in self._optimizers if (one := reference()) is not None]

    def _look_again(self) -> None:
        old = {reading.name for reading in self._watched.readings}
        self._watched: Watched = watch(self._model, self._selection)
        new = {reading.name for reading in self._watched.readings}
        self._fields["counted"] = asdict(self._watched.counted)
        self._totals = False
        foreign = strangers(self._watched, self._present())
        self._note(
            f"step {self.step + 1}: the parameters of the model have changed ({len(new - old)} new names, "
            f"{len(old - new)} removed, the rest reassigned); the current parameters are measured"
            + (f"; {foreign}; updates of such parameters are not measured" if foreign else "")
        )
        if self._first:
            self._keep_first()
        self._begin()

    def _look_at_settings(self) -> None:
        """Record changed settings of the optimizer; learning rates are recorded at every step."""
        groups = describe_groups(self._present())
        if groups == self._groups:
            return
        changed = changed_settings(self._groups, groups)
        self._groups = groups
        if not self.step:  # nothing was recorded with the earlier settings
            self._fields["optimizer_groups"] = plain_groups(groups)
            self._begin_part(self.step)
            return
        new = {name: said for name, said in changed.items() if self._changes.get(name, 0) < CHANGES}
        for name, said in new.items():
            self._changes[name] = self._changes.get(name, 0) + 1
            more = "; later changes are not recorded" if self._changes[name] == CHANGES else ""
            self._changed.append(f"from step {self.step + 1} on, {said}{more}")
        if new:
            self._fields["optimizer_groups"] = plain_groups(groups)
            self._fields["optimizer_changes"] = list(self._changed)
            self._begin_part(self.step)
        # Parameters may be added to the optimizer at any time, which needs no warning.
        told = [said for name, said in new.items() if not name.startswith(("groups", "parameters"))]
        if told:
            self._note(f"step {self.step + 1}: settings of the optimizer changed: {'; '.join(told)}")

    def _begin_part(self, step: int) -> None:
        """Continue the log after this step with other fields or without totals."""
        self._layout = replace(self._layout, totals=self._totals)
        self._log.begin(self._layout, dict(self._fields), step or BEFORE_START)

    def _begin(self) -> None:
        self._latest: np.ndarray | None = None  # an earlier layout does not apply
        self._started = self.step > 0  # whether step 0 is recorded
        self._layout = StepLayout(
            run=self._run,
            readings=self._watched.readings,
            numel=self._watched.numel,
            references=["previous", "first"] if self._wants_first else ["previous"],
            levels=self._levels,
            totals=self._totals,
            of_run=columns_of_run(optimizer_state=self._optimizer_state, lora=bool(self._watched.adapters)),
            adapters=[one.adapter for one in self._watched.adapters],
        )
        issued = self._checks.issued if self._checks else self._log.issued
        dtypes = [tensor.dtype for tensor in self._watched.tensors]
        self._checks = RunWarnings(self._watched.readings, dtypes, issued) if self._wants_warnings else None
        self._log.begin(self._layout, self._fields, self.step or BEFORE_START)

    def _note(self, text: str, issued: Sequence[tuple[str, str]] = ()) -> None:
        self._log.note(self.step, text, issued)
        warnings.warn(text, SeriesWarning, stacklevel=3)

    def _description(self, optimizers: Sequence[Optimizer], every: Every) -> dict[str, Any]:
        content = {
            "source": self._run,
            "run": self._run,
            "tracked": True,
            "model": type(self._model).__name__,
            "optimizer": SEVERAL.join(dict.fromkeys(type(one).__name__ for one in optimizers)),
            "optimizer_groups": self._groups,
            "optimizer_changes": self._changed,
            "every": every if isinstance(every, int | str) else getattr(every, "__name__", repr(every)),
            "selection": self._selection,
            "counted": self._watched.counted,
            "ranks": world_size(),
            "provenance": Provenance.now(),
        }
        return plain_fields(Trace, content)


def _padded(layer: str, digits: int) -> str:
    """The name of a layer with leading zeros, so that loggers sort layer.03 before layer.10."""
    stack, _, number = layer.rpartition(".")
    return f"{stack}.{number.zfill(digits)}"


def _open_log(out: str | Path | None, step: int | None, selection: Selection) -> StepLog:
    """The log, opened by rank 0; an error there is raised on every rank."""
    opened: StepLog | None = None
    failed: InputError | None = None
    try:
        opened = StepLog.open(out if is_main() else None, step, asdict(selection))
    except InputError as error:
        failed = error
    problem = str(failed) if failed else None
    problem = of_main(problem) if out is not None else problem
    if failed is not None:
        raise failed
    if opened is None or problem is not None:
        raise InputError(problem or "the folder cannot be opened")
    return opened


def _decay_so_far(log: StepLog) -> dict[str, float]:
    """Σηλ of each tensor over the steps before the resume."""
    if log.last_step is None:
        return {}
    layout, rows = log.last_step
    sums = unpacked_step(layout, rows)[1].get("decay_so_far", np.zeros(len(rows)))
    return dict(zip((reading.name for reading in layout.readings), sums.tolist(), strict=True))
