"""A measured step with a small sample of its values, which stays in memory after the checkpoint is closed.

In addition to the exact sums (`measure`), each step keeps the values at fixed places of every tensor. These samples
give the distance between any two checkpoints without reading them again. The sample of a checkpoint has a fixed size,
independent of the size of the model. The integrity checks (`normgrowth.lint`) judge the samples; this module does not.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from math import ceil, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.checkpoints.checkpoint import STORAGE, Checkpoint, Tensor
from normgrowth.moments.moments import Floats, Moments, Pair
from normgrowth.trace.by_step import measure_checkpoint
from normgrowth.trace.sampling.samples import buffer_like, pattern, sample

SAMPLED = 1 << 21  # values in the two samples in memory: of this checkpoint and of the previous one
MOST, LEAST = 4096, 64  # limits of values per tensor
Tensors = Mapping[str, tuple[tuple[int, ...], Floats]]  # name -> shape and sample
Match = Callable[
    [Tensors, Tensors], Mapping[str, str]
]  # (removed tensors, new tensors) -> {new name: old name}
KEPT = 1 << 13  # values kept per checkpoint; fixed, so lint and trace keep the same values


@dataclass(frozen=True)
class SampledStep:
    """One sampled checkpoint; arrays and tuples have one entry per name."""

    position: int  # in the series
    step: int
    label: str
    stored: int | None  # the step stored in the file itself
    names: tuple[str, ...]  # names of the tensors when they first appeared
    spelled: Mapping[str, str]  # names in this checkpoint, where they differ
    hidden: frozenset[str]  # tensors that are not counted here: buffers, further names of tied tensors
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    numel: NDArray[np.int64]
    square: Floats
    nonfinite: NDArray[np.int64]
    pair: Pair  # sums against the previous sampled step; NaN if there is none
    changed: Floats  # fraction of sampled values that changed since that step; NaN if there is none
    patterns: tuple[str, ...]  # "zeros", "ones", "constant", "normal", "uniform" or ""
    sketch: NDArray[np.float32]  # subset of the sample minus its first values, concatenated over tensors
    ends: NDArray[np.int64]  # end of each tensor in `sketch`

    @property
    def delta(self) -> Floats:
        return self.pair.delta

    def spelling(self, name: str) -> str:
        return self.spelled.get(name, name)

    @cached_property
    def index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}


@dataclass(frozen=True)
class ValueSamples:
    """Samples of a checkpoint's tensors, and which tensors look like buffers."""

    samples: Mapping[str, Floats]
    buffers: Mapping[str, str]


@dataclass
class StepSampler:
    """Samples checkpoints in order, and compares each with the previous one.

    match: finds renamed tensors; if None, tensors are identified by name.
    """

    workers: int | None = None
    match: Match | None = None
    buffers: dict[str, str] = field(default_factory=dict)  # tensors that look like buffers, with the reason
    origin: dict[tuple[str, tuple[int, ...]], Floats] = field(
        default_factory=dict
    )  # subtracted from sketches
    _spelled: dict[str, str] = field(default_factory=dict)  # present name -> first name
    _latest: dict[str, Floats] = field(default_factory=dict)  # the latest sample of every tensor
    _shape: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _before: tuple[Checkpoint, SampledStep] | None = None
    _size: Callable[[int], tuple[int, int]] | None = None  # numel -> values sampled, values kept

    @np.errstate(all="ignore")  # damaged weights may hold any bits, and numpy warns about signaling NaN
    def sample(
        self,
        position: int,
        step: int,
        checkpoint: Checkpoint,
        counted: Iterable[str],
        moments: Moments | None = None,
        seen: ValueSamples | None = None,
    ) -> SampledStep:
        """Return the sample of a checkpoint, measured against the last sampled one, which must still be open.

        moments: the moments of the counted tensors, in their order, against "previous", if already computed.
        seen: the sampled values, if already read.
        """
        tensors = checkpoint.tensors
        counted = [name for name in counted if tensors[name].dtype in STORAGE]
        size = self._size or _sizes([tensors[name].numel for name in counted])
        if seen:
            samples = {name: seen.samples[name] for name in counted}
        else:
            samples = {name: sample(checkpoint, name, size(tensors[name].numel)[0]) for name in counted}
        spelling = self._identify(samples, tensors)
        view = checkpoint.renamed(spelling) if any(a != b for a, b in spelling.items()) else checkpoint
        names = tuple(spelling)
        shapes = tuple(view.tensors[name].shape for name in names)
        values = [samples[spelling[name]] for name in names]

        before = dict(zip(self._before[1].names, self._before[1].shapes, strict=True)) if self._before else {}
        paired = np.array(
            [before.get(name) == shape for name, shape in zip(names, shapes, strict=True)], bool
        )
        moments = moments or self._measure(view, names, paired)
        changed = [
            float(np.mean(x != self._latest[name])) if pair and x.size else np.nan
            for name, x, pair in zip(names, values, paired, strict=True)
        ]
        sketch = []
        for name, shape, x in zip(names, shapes, values, strict=True):
            kept = x[:: ceil(max(x.size, 1) / size(prod(shape))[1])]
            origin = self.origin.setdefault((name, shape), kept)
            sketch.append((kept - origin).astype(np.float32))
            if name not in self._latest and (what := self._buffer(view, name, x, seen)):
                self.buffers[name] = what
        measured = SampledStep(
            position,
            step,
            checkpoint.label,
            checkpoint.step,
            names,
            {name: here for name, here in spelling.items() if name != here},
            frozenset(tensors.keys() - set(counted)),
            shapes,
            tuple(view.tensors[name].dtype for name in names),
            moments.numel,
            moments.square,
            moments.nonfinite,
            moments.against.get("previous") or no_pair(len(names)),
            np.array(changed),
            tuple(map(pattern, values)),
            np.concatenate([np.zeros(0, np.float32), *sketch]),
            np.cumsum([len(kept) for kept in sketch], dtype=np.int64),
        )
        # Update the state last, when nothing can fail: an unreadable checkpoint must not change it.
        self._size = size
        self._latest |= zip(names, values, strict=True)
        self._shape |= zip(names, shapes, strict=True)
        self._spelled |= {here: name for name, here in spelling.items()}
        self._before = view, measured
        return measured

    def _buffer(self, view: Checkpoint, name: str, values: Floats, seen: ValueSamples | None) -> str:
        if seen:
            return seen.buffers.get(name, "")
        return buffer_like(view.tensors[name], values, lambda: view.dense(name))

    def resume_from(
        self, measured: SampledStep, checkpoint: Checkpoint, seen: ValueSamples | None = None
    ) -> None:
        """Continue after a stored sampled step whose checkpoint is open again."""
        self._size = _sizes(measured.numel.tolist())
        for name, shape in zip(measured.names, measured.shapes, strict=True):
            here = measured.spelling(name)
            self._latest[name] = (
                seen.samples[here] if seen else sample(checkpoint, here, self._size(prod(shape))[0])
            )
            self._shape[name] = shape
            self._spelled[measured.spelling(name)] = name
        self._before = checkpoint, measured

    def skip(self, measured: SampledStep) -> None:
        """Continue after a sampled step whose checkpoint no longer exists: the next step has no pair."""
        self._size = _sizes(measured.numel.tolist())
        self._latest |= dict.fromkeys(measured.names, np.zeros(0))
        self._shape |= zip(measured.names, measured.shapes, strict=True)
        self._spelled |= {measured.spelling(name): name for name in measured.names}
        self._before = None

    def _measure(self, view: Checkpoint, names: tuple[str, ...], paired: NDArray[np.bool_]) -> Moments:
        """Return the sums of every tensor, against the previous checkpoint if it has the tensor."""
        size = len(names)
        found = Moments(
            np.zeros(size, np.int64),
            np.full(size, np.nan),
            np.zeros(size),
            np.zeros(size, np.int64),
            {"previous": no_pair(size)},
        )
        for chosen, last in ((paired, self._before), (~paired, None)):
            if not chosen.any():
                continue
            part = [name for name, wanted in zip(names, chosen, strict=True) if wanted]
            against = [("previous", last[0])] if last else []
            sums = measure_checkpoint(view, against, part, workers=self.workers)
            for own, theirs in zip(_own(found), _own(sums), strict=True):
                own[chosen] = theirs
            if last:
                for field in fields(Pair):
                    into, from_ = (getattr(m.against["previous"], field.name) for m in (found, sums))
                    into[chosen] = from_
        return found

    def _identify(self, samples: Mapping[str, Floats], tensors: Mapping[str, Tensor]) -> dict[str, str]:
        """Return first name -> present name; `match` pairs removed tensors with new ones by their values."""
        named: dict[str, str] = {}
        for name in samples:
            first = self._spelled.get(name, name)
            named[name if first != name and first in samples else first] = name
        gone = [name for name in self._latest if name not in named and name not in tensors]
        new = [name for name in named if name not in self._latest]
        if self.match is None or not gone or not new:
            return named
        matched = self.match(
            {name: (self._shape[name], self._latest[name]) for name in gone},
            {name: (tensors[named[name]].shape, samples[named[name]]) for name in new},
        )
        return {matched.get(name, name): here for name, here in named.items()}


def no_pair(size: int) -> Pair:
    """Return the sums of tensors without a reference: all NaN."""
    return Pair(*(np.full(size, np.nan) for _ in fields(Pair)))


def _own(moments: Moments) -> tuple[NDArray[Any], ...]:
    return moments.numel, moments.square, moments.nonfinite


def sampled(numels: list[int]) -> tuple[int, ...]:
    """Return how many values of each tensor are sampled."""
    size = _sizes(numels)
    return tuple(size(numel)[0] for numel in numels)


def _sizes(numels: list[int]) -> Callable[[int], tuple[int, int]]:
    """Return a function: size of a tensor -> number of sampled values, number of kept values.

    numels: sizes of the tensors of the first checkpoint.
    """
    count, total = max(1, len(numels)), max(1, sum(numels))
    most = min(MOST, max(LEAST, SAMPLED // (2 * count)))
    least = min(LEAST, max(1, KEPT // (2 * count)))

    def size(numel: int) -> tuple[int, int]:
        sampled = min(numel, most)
        return sampled, max(1, min(sampled, max(least, KEPT * numel // total)))

    return size
