"""What in a run a person should know of now: said once for each tensor, from sums that are there anyway.

nonfinite      a weight or a gradient is NaN or infinite: which tensor was first, and at which step
resolution     a step is so small beside the weights that most of it is rounded away in their dtype
runaway        a layer's norm doubled within the last measured steps, and ever faster
equilibrium    a tensor turns much faster or slower than η, λ and β say it should by now
logit          an attention logit passed a limit (`tracker.logits` measures them)
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from normgrowth.checkpoints.parameter_names import Reading
from normgrowth.moments.moments import Moments, quantities

Floats = NDArray[np.float64]

REMEMBERED = 20  # measured steps over which a norm runs away
DOUBLED = 2.0
APART = 10.0  # a rotation by this factor from its equilibrium is far from it
SETTLED = 3.0  # times 1/(ηλ), after which an equilibrium may be expected
NAMED = 3  # tensors that one message names
ROUNDING = torch.finfo(torch.float32).eps  # a gradient below this part of the model's is none
LOGIT = 100.0  # a softmax of such scores is an argmax, and float16 scores are near their end


@dataclass
class Alarms:
    """Looks at each measured step in turn. `dtypes` are those of the tensors, in the order of their rows."""

    readings: Sequence[Reading]
    dtypes: Sequence[torch.dtype]
    said: set[tuple[str, str]] = field(default_factory=set)  # what, and of which tensor
    _norms: deque[Floats] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _layers: list[str] = field(init=False)
    _place: NDArray[np.intp] = field(init=False)  # which layer a tensor belongs to; the last of all: to none
    _fresh: list[tuple[str, str]] = field(default_factory=list)  # of the line that is being made

    def __post_init__(self) -> None:
        layers = [reading.layer_name for reading in self.readings]
        self._layers = list(dict.fromkeys(name for name in layers if name is not None))
        place = {name: i for i, name in enumerate(self._layers)}
        self._place = np.array([place.get(name or "", len(place)) for name in layers], np.intp)

    def look(
        self, step: int, moments: Moments, run: dict[str, Floats]
    ) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """What is new at this step: lines, each with the warnings that it gives."""
        found = quantities(moments)
        lines = chain(
            self._nonfinite(moments, run["gradient"]),
            self._resolution(found["relative_step"], run["gradient"], run["learning_rate"]),
            self._runaway(found["norm"]),
            self._equilibrium(found["angle"], run["equilibrium_angle"], run["decay_so_far"]),
            self._logit(float(run["attention_logit"][0])),
        )
        for line in lines:
            issued, self._fresh = self._fresh, []
            yield f"step {step}: {line}", issued

    def _logit(self, largest: float) -> Iterator[str]:
        if largest > LOGIT and self._first("logit", "model"):
            yield (
                f"an attention logit of {largest:.3g} is past {LOGIT:g}: attention is all but hard, and may not "
                "recover; normalise queries and keys, or lower the learning rate"
            )

    def _first(self, what: str, name: str) -> bool:
        new = (what, name) not in self.said
        if new:
            self.said.add((what, name))
            self._fresh.append((what, name))
        return new

    def _new(self, what: str, chosen: NDArray[np.bool_]) -> list[str]:
        names = (self.readings[i].name for i in np.flatnonzero(chosen).tolist())
        return [name for name in names if self._first(what, name)]

    def _nonfinite(self, moments: Moments, gradient: Floats) -> Iterator[str]:
        if names := self._new("weights", moments.nonfinite > 0):
            yield f"NaN or infinite weights in {some(names)}: go back to a checkpoint before this step"
        if names := self._new("gradient", ~np.isfinite(gradient)):
            yield f"NaN or infinite gradients in {some(names)}"

    def _resolution(self, relative: Floats, gradient: Floats, rate: Floats) -> Iterator[str]:
        """Measured steps are sums of whole units of rounding; below half a unit most values did not move at all.

        A gradient that is rounding itself is none: a key's bias adds the same to all scores of a query, for nothing.
        """
        unit = np.array([torch.finfo(t).eps if t.is_floating_point else np.nan for t in self.dtypes])
        moves = (gradient > ROUNDING**2 * np.nansum(gradient)) & (rate > 0)
        if names := self._new("resolution", moves & (relative < unit / 2)):
            i = next(i for i, reading in enumerate(self.readings) if reading.name == names[0])
            dtype = str(self.dtypes[i]).removeprefix("torch.")
            narrow = self.dtypes[i].itemsize < torch.float32.itemsize
            remedy = (
                "keep master weights in float32"
                if narrow
                else "its gradient or learning rate is all but gone"
            )
            yield (
                f"the step of {some(names)} is {relative[i]:.1e} of its norm, below the resolution of {dtype} "
                f"({unit[i]:.1e}): most of it is rounded away; {remedy}"
            )

    def _runaway(self, norms: Floats) -> Iterator[str]:
        names = self._layers
        self._norms.append(np.sqrt(np.bincount(self._place, norms**2, len(names) + 1)[:-1]))
        if len(self._norms) < REMEMBERED:
            return
        start, middle, end = self._norms[0], self._norms[REMEMBERED // 2], self._norms[-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            away = (end > DOUBLED * start) & (end / middle > middle / start) & (start > 0)
        if new := [names[i] for i in np.flatnonzero(away).tolist() if self._first("runaway", names[i])]:
            i = names.index(new[0])
            yield (
                f"the norm of {some(new)} grew {end[i] / start[i]:.1f} times within {REMEMBERED} measured steps, ever "
                "faster: lower the learning rate, clip gradients, or decay"
            )

    def _equilibrium(self, angle: Floats, settled: Floats, decayed: Floats) -> Iterator[str]:
        with np.errstate(divide="ignore", invalid="ignore"):
            far = np.maximum(angle / settled, settled / angle) > APART
        if names := self._new("equilibrium", far & (decayed > SETTLED)):
            i = next(i for i, reading in enumerate(self.readings) if reading.name == names[0])
            yield (
                f"{some(names)} turns by {angle[i]:.1e} a step, where learning rate and decay predict {settled[i]:.1e} "
                f"after so long: its gradients are far from random, or all but gone"
            )


def some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
