"""Warnings of a run, issued once per tensor, from sums that are measured anyway.

weights, gradient  a weight or a gradient is NaN or infinite: the first tensor and step
resolution         a step is so small compared with the weights that most of it is rounded away in their dtype
runaway            a layer's norm doubled within the last measured steps, with accelerating growth
equilibrium        a tensor rotates much faster or slower than η, λ and β predict after this many steps
logit              an attention logit exceeds a threshold (with `logits`)
ranks              ranks hold different values of a tensor that is not sharded: their gradients are not averaged
elsewhere          the weights changed between two measured steps, for example by another optimizer
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from normgrowth.checkpoints.parameters.parameter_names import Reading
from normgrowth.moments.moments import Moments, quantities

Floats = NDArray[np.float64]
Kind = Literal["weights", "gradient", "resolution", "runaway", "equilibrium", "logit", "ranks", "elsewhere"]

REMEMBERED = 20  # measured steps in which a runaway norm doubles
DOUBLED = 2.0
APART = 10.0  # a rotation that differs from its equilibrium by this factor triggers the warning
SETTLED = 3.0  # an equilibrium is expected after this many times 1/(ηλ) steps
NAMED = 3  # maximum number of tensors named in a message
ROUNDING = torch.finfo(torch.float32).eps  # gradients below this share of the model's gradient count as zero
APART_RANKS = 1e-7  # relative difference of Σθ² between replicas, which DDP keeps equal to the bit
CHANGED = 1e-6  # relative change of Σθ² between steps; schedule-free optimizers swap weights, with rounding
LOGIT = 100.0  # the softmax of such scores is an argmax, and float16 scores approach their range


@dataclass(frozen=True)
class RunWarning:
    """A warning about a run.

    names: the tensors or layers concerned; `reason` names the first few. value: the measured value of the first one.
    threshold: the threshold that it passed (0 for `weights` and `gradient`).
    """

    kind: Kind
    names: tuple[str, ...]
    reason: str
    value: float
    threshold: float
    step: int = 0

    def __str__(self) -> str:
        return f"step {self.step}: {self.reason}"


@dataclass
class RunWarnings:
    """Checks each measured step. dtypes: the dtypes of the tensors, in the order of their rows."""

    readings: Sequence[Reading]
    dtypes: Sequence[torch.dtype]
    issued: set[tuple[str, str]] = field(default_factory=set)  # kind, and name of a tensor or layer
    _norms: deque[Floats] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _last: tuple[int, Floats] | None = None  # the last measured step, and Σθ² of each tensor after it
    _layers: list[str] = field(init=False)
    _layer_of: NDArray[np.intp] = field(init=False)  # layer of each tensor; the last index: no layer

    def __post_init__(self) -> None:
        layers = [reading.layer_name for reading in self.readings]
        self._layers = list(dict.fromkeys(name for name in layers if name is not None))
        index = {name: i for i, name in enumerate(self._layers)}
        self._layer_of = np.array([index.get(name or "", len(index)) for name in layers], np.intp)

    def check(
        self, step: int, moments: Moments, run: dict[str, Floats], apart: Floats
    ) -> Iterator[RunWarning]:
        """The new warnings at this step. apart: the relative difference of Σθ² between ranks."""
        found = quantities(moments)
        for warnings in (
            self._nonfinite(moments, run["gradient"]),
            self._resolution(found["relative_step"], run["gradient"], run["learning_rate"]),
            self._runaway(found["norm"]),
            self._equilibrium(found["angle"], run["equilibrium_angle"], run["decay_so_far"]),
            self._logit(float(run["attention_logit"][0])),
            self._ranks(apart),
            self._elsewhere(step, moments),
        ):
            for warning in warnings:
                yield replace(warning, step=step)

    def _new(self, kind: Kind, names: Sequence[str], chosen: NDArray[np.bool_]) -> list[int]:
        """The chosen indices without an earlier warning of this kind."""
        new = [i for i in np.flatnonzero(chosen).tolist() if (kind, names[i]) not in self.issued]
        self.issued |= {(kind, names[i]) for i in new}
        return new

    def _new_tensors(self, kind: Kind, chosen: NDArray[np.bool_]) -> tuple[tuple[str, ...], int]:
        """The names of tensors with a new warning, and the row of the first; empty if there are none."""
        new = self._new(kind, [reading.name for reading in self.readings], chosen)
        return tuple(self.readings[i].name for i in new), new[0] if new else 0

    def _logit(self, largest: float) -> Iterator[RunWarning]:
        if self._new("logit", ["model"], np.array([largest > LOGIT])):
            reason = (
                f"an attention logit of {largest:.3g} exceeds {LOGIT:g}: attention is almost hard and may not "
                "recover; normalize queries and keys, or lower the learning rate"
            )
            yield RunWarning("logit", ("model",), reason, largest, LOGIT)

    def _ranks(self, apart: Floats) -> Iterator[RunWarning]:
        names, i = self._new_tensors("ranks", apart > APART_RANKS)
        if names:
            reason = (
                f"{some(names)} differs between ranks (Σθ² by {apart[i]:.1e}), so the records are those of rank 0 "
                "alone; average the gradients, for example with DistributedDataParallel"
            )
            yield RunWarning("ranks", names, reason, float(apart[i]), APART_RANKS)

    def _elsewhere(self, step: int, moments: Moments) -> Iterator[RunWarning]:
        last, self._last = self._last, (step, moments.square)
        if last is None or last[0] != step - 1:
            return
        before = moments.against["previous"].square
        with np.errstate(divide="ignore", invalid="ignore"):
            changed = np.abs(before - last[1]) / last[1]
        names, i = self._new_tensors("elsewhere", changed > CHANGED)
        if names:
            reason = (
                f"{some(names)} changed since the last step (Σθ² by {changed[i]:.1e}), for example by another "
                "optimizer: the steps of this optimizer do not add up to the growth of the weights"
            )
            yield RunWarning("elsewhere", names, reason, float(changed[i]), CHANGED)

    def _nonfinite(self, moments: Moments, gradient: Floats) -> Iterator[RunWarning]:
        names, i = self._new_tensors("weights", moments.nonfinite > 0)
        if names:
            reason = f"NaN or infinite weights in {some(names)}: go back to a checkpoint before this step"
            yield RunWarning("weights", names, reason, float(moments.nonfinite[i]), 0.0)
        names, i = self._new_tensors("gradient", ~np.isfinite(gradient))
        if names:
            reason = f"NaN or infinite gradients in {some(names)}"
            yield RunWarning("gradient", names, reason, float(gradient[i]), 0.0)

    def _resolution(self, relative: Floats, gradient: Floats, rate: Floats) -> Iterator[RunWarning]:
        """Steps below the resolution: if a relative step is below half a unit of rounding, most values did not change.

        Gradients that are only rounding are ignored, such as that of a key bias, which does not affect the softmax.
        """
        unit = np.array([torch.finfo(t).eps if t.is_floating_point else np.nan for t in self.dtypes])
        moves = (gradient > ROUNDING**2 * np.nansum(gradient)) & (rate > 0)
        names, i = self._new_tensors("resolution", moves & (relative < unit / 2))
        if not names:
            return
        dtype = str(self.dtypes[i]).removeprefix("torch.")
        narrow = self.dtypes[i].itemsize < torch.float32.itemsize
        remedy = (
            "keep master weights in float32" if narrow else "its gradient or learning rate is almost zero"
        )
        reason = (
            f"the step of {some(names)} is {relative[i]:.1e} of its norm, below the resolution of {dtype} "
            f"({unit[i]:.1e}): most of it is rounded away; {remedy}"
        )
        yield RunWarning("resolution", names, reason, float(relative[i]), float(unit[i] / 2))

    def _runaway(self, norms: Floats) -> Iterator[RunWarning]:
        layers = self._layers
        self._norms.append(np.sqrt(np.bincount(self._layer_of, norms**2, len(layers) + 1)[:-1]))
        if len(self._norms) < REMEMBERED:
            return
        start, middle, end = self._norms[0], self._norms[REMEMBERED // 2], self._norms[-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            away = (end > DOUBLED * start) & (end / middle > middle / start) & (start > 0)
        if new := self._new("runaway", layers, away):
            names, growth = tuple(layers[i] for i in new), float(end[new[0]] / start[new[0]])
            reason = (
                f"the norm of {some(names)} grew {growth:.1f} times within {REMEMBERED} measured steps, and the "
                "growth accelerates: lower the learning rate, clip gradients, or use weight decay"
            )
            yield RunWarning("runaway", names, reason, growth, DOUBLED)

    def _equilibrium(self, angle: Floats, settled: Floats, decayed: Floats) -> Iterator[RunWarning]:
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = np.maximum(angle / settled, settled / angle)
        names, i = self._new_tensors("equilibrium", (factor > APART) & (decayed > SETTLED))
        if names:
            reason = (
                f"{some(names)} rotates by {angle[i]:.1e} per step, but learning rate and decay predict "
                f"{settled[i]:.1e} by now: its gradients are far from random, or almost zero"
            )
            yield RunWarning("equilibrium", names, reason, float(factor[i]), APART)


def some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
