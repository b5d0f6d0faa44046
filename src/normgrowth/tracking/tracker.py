"""NormTracker: measures what each optimizer step does to the weights during training."""

import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from normgrowth.checkpoints.parameters.blocks import DEFAULT_INCLUDE
from normgrowth.checkpoints.parameters.selection import Selection
from normgrowth.errors import InputError
from normgrowth.results import Provenance, plain_fields
from normgrowth.schedules import SEVERAL
from normgrowth.text import labels
from normgrowth.trace.result import Trace
from normgrowth.tracking.distributed import is_main, world_size
from normgrowth.tracking.due import Every, due
from normgrowth.tracking.log.recording import Recording, open_log
from normgrowth.tracking.log.step_records import LEVELS
from normgrowth.tracking.logger_values import LOGGED, logger_values
from normgrowth.tracking.measuring.optimizer_rounds import OptimizerRounds
from normgrowth.tracking.measuring.setting_changes import SettingChanges
from normgrowth.tracking.measuring.training_steps import TrainingSteps
from normgrowth.tracking.optimizer_rules import unwrap_optimizers
from normgrowth.tracking.run_warnings import RunWarning
from normgrowth.tracking.tensor_sums import check_replicated, whole
from normgrowth.tracking.tracked_parameters import Watched, strangers, watch


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

    Under DDP, FSDP2 (also hybrid), tensor parallelism or combinations, values are the same as with one process (tested
    on CPUs, not yet run on a GPU). Every rank must have a tracker and measure the same steps; rank 0 writes. With a
    folder, `trace` is available only on rank 0; without one, on every rank. Plain tensors that differ between ranks
    raise an error.

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
        is_due = due(every)
        if resume_step is not None and resume_step < 0:
            raise InputError(f"resume_step must be >= 0, got {resume_step}")
        for unknown in set(levels) - set(LEVELS):
            raise InputError(f"levels must be among {', '.join(LEVELS)}, got {unknown!r}")
        step = resume_step or 0
        optimizers = unwrap_optimizers(optimizer)
        selection = Selection(include, select, exclude)
        watched = watch(model, selection)
        if foreign := strangers(watched, optimizers):
            raise InputError(f"{foreign}: pass the whole model that the optimizer trains to the tracker")
        check_replicated([reading.name for reading in watched.readings], watched.tensors)
        self._keeps = out is None or is_main()
        self._log = open_log(out, resume_step, selection)
        name = run or self._log.run or (labels([out])[0] if out else "") or type(model).__name__
        settings = SettingChanges(optimizers, self._log.optimizer_changes)
        fields = _fields(name, model, optimizers, settings, every, selection, watched)
        recording = Recording(
            self._log,
            fields,
            levels=[level for level in LEVELS if level in levels],
            compare_first=compare_first and not step,
            totals=every == 1,
            optimizer_state=optimizer_state,
        )
        self._steps = TrainingSteps(
            model,
            watched,
            selection,
            recording,
            settings,
            step=step,
            due=is_due,
            keeps=self._keeps,
            compare_first=compare_first and not step,
            logits=logits,
            optimizer_state=optimizer_state,
            warn=warn,
        )
        if compare_first and step:
            self._steps.note(
                f"resumed at step {step}: the first weights are not available, so nothing is compared with them"
            )
        self._rounds: OptimizerRounds | None = OptimizerRounds(optimizers, self._steps)
        # Write the records of the last steps even if the tracker is not closed: the hooks keep the steps alive until
        # the optimizers end.
        self._finish = weakref.finalize(self._steps, self._log.close)

    def __enter__(self) -> "NormTracker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the hooks and finish the records; `trace` remains available."""
        if self._rounds:
            self._rounds.remove()
            self._rounds = None
            self._steps.close()
        self._finish()

    @property
    def step(self) -> int:
        """The number of the last step; set it if steps are counted elsewhere."""
        return self._steps.step

    @step.setter
    def step(self, step: int) -> None:
        self._steps.step = step

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
        return tuple(self._steps.warnings)

    @property
    def ok(self) -> bool:
        """Whether there were no warnings; a training loop can stop if it is False."""
        return not self._steps.warnings

    def record_clipping(self, norm: Tensor | float, max_norm: float) -> None:
        """Record by how much the gradients of the next step were clipped, as `clip_coefficient`; on every rank.

        The gradients that the tracker measures are clipped; divided by this, they are those before clipping::

            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            tracker.record_clipping(norm, 1.0)
        """
        self._steps.clipped = whole(norm) if isinstance(norm, Tensor) else norm, max_norm

    def latest(
        self, quantities: Sequence[str] = LOGGED, levels: Sequence[str] = ("model", "layer")
    ) -> dict[str, float]:
        """The values of the latest measured step, for a logger: {"norm/model": 2.0, "norm/layer.03": ...}.

        Empty if nothing was measured since the last call, and on ranks without records; NaN values are omitted.
        """
        rows, self._steps.latest = self._steps.latest, None
        if rows is None:
            return {}
        return logger_values(self._steps.recording.layout, self.step, rows, quantities, levels)


def _fields(
    run: str,
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    settings: SettingChanges,
    every: Every,
    selection: Selection,
    watched: Watched,
) -> dict[str, Any]:
    """The fields of the result, as plain JSON."""
    content = {
        "source": run,
        "run": run,
        "tracked": True,
        "model": type(model).__name__,
        "optimizer": SEVERAL.join(dict.fromkeys(type(one).__name__ for one in optimizers)),
        "optimizer_groups": settings.groups,
        "optimizer_changes": settings.changes,
        "every": every if isinstance(every, int | str) else getattr(every, "__name__", repr(every)),
        "selection": selection,
        "counted": watched.counted,
        "ranks": world_size(),
        "provenance": Provenance.now(),
    }
    return plain_fields(Trace, content)
