"""The sampled steps of a trace: newly sampled ones and stored ones.

Nothing is read twice. A sampled step is stored with the sums of its step, as columns with one entry per tensor, so
a resumed trace has the samples of the whole series.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.checkpoints.checkpoint import Checkpoint
from normgrowth.moments.moments import Moments
from normgrowth.trace.sampling.sampled_steps import SampledStep, StepSampler, ValueSamples, no_pair, sampled

if TYPE_CHECKING:
    from normgrowth.trace.plan import TraceStep

MOST_TENSORS = 4096  # sampling takes a third of a millisecond per tensor

Columns = Mapping[str, Sequence[Any]]


class SampleLog:
    """Samples the checkpoints of a series in order, or restores stored samples."""

    def __init__(self, tensors: int) -> None:
        self.tensors = tensors
        self._start(None)

    def _start(self, key: str | None) -> None:
        self.sampler = StepSampler()
        self.sampled: list[SampledStep] = []
        self.start = key  # key of the first sampled step; the others are stored as differences from it
        self.taken_up = False  # whether the last sampled step was restored, so the sampler has not seen it

    def sample_sizes(self, numels: list[int]) -> tuple[int, ...] | None:
        """Return how many values of each tensor are sampled; None if there are too many tensors."""
        return None if self.tensors > MOST_TENSORS else sampled(numels)

    def sample(
        self,
        position: int,
        step: int,
        key: str,
        current: Checkpoint,
        previous: Checkpoint | None,
        names: list[str],
        sums: Moments,
        seen: Mapping[int, ValueSamples],
    ) -> Columns:
        """Sample a checkpoint that was just measured; return columns that `restore` accepts.

        key: identifies this step. previous: None if the preceding checkpoint no longer exists. seen: values that were
        read before, by position.
        """
        if self.tensors > MOST_TENSORS:
            return {}
        if not self.sampled:
            self._start(key)
        elif previous is None or not self._follows(position):
            self.sampler.skip(self.sampled[-1])
        elif self.taken_up:
            self.sampler.resume_from(self.sampled[-1], previous, seen.get(position - 1))
        self.taken_up = False
        measured = self.sampler.sample(position, step, current, names, sums, seen.get(position))
        self.sampled.append(measured)
        columns: dict[str, Sequence[Any]] = {
            "start": [self.start] * len(names),
            "stored": [measured.stored] * len(names),
            "dtype": measured.dtypes,
            "changed": measured.changed.tolist(),
            "pattern": measured.patterns,
            "sketch": _parts(measured),
        }
        if len(self.sampled) == 1:
            shapes = zip(measured.names, measured.shapes, strict=True)
            columns["origin"] = [self.sampler.origin[item] for item in shapes]
            columns["buffer"] = [self.sampler.buffers.get(name) for name in names]
        return columns

    def _follows(self, position: int) -> bool:
        """Whether the last sampled step is the one directly before this position."""
        return bool(self.sampled) and self.sampled[-1].position == position - 1

    def continues(self, columns: Columns) -> bool:
        """Whether a stored sample belongs to the same series as the samples so far."""
        return (
            "origin" in columns if not self.sampled else bool(columns) and columns["start"][0] == self.start
        )

    def restore(
        self,
        position: int,
        place: "TraceStep",
        shapes: Mapping[str, tuple[int, ...]],
        sums: Moments,
        columns: Columns,
    ) -> None:
        """Add a sample that was stored with the sums of its step."""
        if "origin" in columns:
            self._start(str(place.step))
            origin = (np.asarray(values, np.float64) for values in columns["origin"])
            self.sampler.origin = dict(zip(shapes.items(), origin, strict=True))
            self.sampler.buffers = {
                name: what for name, what in zip(shapes, columns["buffer"], strict=True) if what
            }
        elif not columns or not self.sampled or columns["start"][0] != self.start:
            self._start(None)  # measured without lint, or against another first checkpoint
            return
        self.taken_up = True
        sketch = [np.asarray(values, np.float32) for values in columns["sketch"]]
        previous = sums.against.get("previous") if self._follows(position) else None
        changed = columns["changed"] if self._follows(position) else np.nan
        self.sampled.append(
            SampledStep(
                position,
                place.step,
                place.label,
                columns["stored"][0],
                tuple(shapes),
                {},
                frozenset(),
                tuple(shapes.values()),
                tuple(columns["dtype"]),
                sums.numel,
                sums.square,
                sums.nonfinite,
                previous or no_pair(len(shapes)),
                np.full(len(shapes), changed, np.float64),
                tuple(columns["pattern"]),
                np.concatenate([np.zeros(0, np.float32), *sketch]),
                np.cumsum([len(values) for values in sketch], dtype=np.int64),
            )
        )

    def notes(self, checkpoints: int) -> list[str]:
        """Return a note about checkpoints that have no samples and cannot be checked."""
        unseen = checkpoints - len(self.sampled)
        if self.tensors > MOST_TENSORS:
            return [
                f"too many tensors ({self.tensors:,}) for integrity checks during a trace; run `normgrowth lint`"
            ]
        if unseen:
            return [
                f"{unseen} of {checkpoints} checkpoints were measured earlier without integrity checks; "
                "run `normgrowth lint` to check all of them"
            ]
        return []

    def same(self, i: int, j: int, names: Sequence[str]) -> NDArray[np.bool_]:
        """Return which tensors have bit-identical samples in two steps. No file is read."""
        a, b = (
            dict(zip(measured.names, _parts(measured), strict=True))
            for measured in (self.sampled[i], self.sampled[j])
        )
        return np.array([np.array_equal(a[name], b[name]) for name in names], bool)


def _parts(measured: SampledStep) -> list[NDArray[np.float32]]:
    return np.split(measured.sketch, measured.ends[:-1])
