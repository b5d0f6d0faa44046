"""The moments of every checkpoint of a series: stored moments are loaded, the others are measured.

Two algorithms give the same sums. `by_step` reads one checkpoint with its references at a time. It is used for local
files, whose bytes stay in memory from one step to the next, and for formats that are downloaded or decoded as a whole.
`by_stripe` reads all checkpoints together. It is used for files that are read over a network, or on a cluster.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.checkpoints.checkpoint import Checkpoint, Tensor
from normgrowth.checkpoints.name_globs import without_pattern_of
from normgrowth.checkpoints.parameters.adapters import find_adapters
from normgrowth.checkpoints.parameters.parameter_names import Reading
from normgrowth.checkpoints.parameters.selection import Chosen, Selection
from normgrowth.engine import Engine, Progress, Threads, available_cores, gc_paused
from normgrowth.errors import InputError, NoTensors, TensorMismatch
from normgrowth.moments.moments import Floats, Moments
from normgrowth.records import storable
from normgrowth.serialization.checksums import digest
from normgrowth.trace.by_step import check_dtypes, measure_checkpoint
from normgrowth.trace.by_stripe import Job, StripeSums, measure_stripes
from normgrowth.trace.lora_updates import LoraUpdates
from normgrowth.trace.measured_steps import MeasuredSteps
from normgrowth.trace.output.store import SUMS_VERSION, Store, Stored
from normgrowth.trace.plan import Plan
from normgrowth.trace.sampling.sample_log import SampleLog
from normgrowth.trace.scalar_log import ScalarLog

MEMORY = 1 << 30
CONNECTIONS = 8  # concurrent connections to one server: a single one spends most of its time waiting


@dataclass(frozen=True)
class Reader:
    """How checkpoints are read. memory: limit in bytes for values that are read over a network."""

    workers: int | None = None
    engine: Engine | None = None
    memory: int = MEMORY

    def striped(self, opening: Checkpoint) -> bool:
        """Whether to read in stripes: reading bytes twice is expensive, and all checkpoints can be open at once."""
        return (opening.is_remote or self.engine is not None) and opening.can_stay_open


class Window:
    """Opens checkpoints when they are first needed and closes them after their last use."""

    def __init__(self, plan: Plan) -> None:
        self.places = plan.places
        self.last_use = {i: i for i in range(len(plan.places))}
        self.last_use |= {position: i for i, refs in plan.reads.items() for position in (*refs.values(), i)}
        self.opened: dict[int, Checkpoint] = {}
        self._notes: dict[str, str] = {}  # note -> label of the first checkpoint with this note

    @property
    def notes(self) -> list[str]:
        """Return the notes of the opened checkpoints, without repetitions."""
        return [f"{label}: {note}" for note, label in self._notes.items()]

    def __enter__(self) -> "Window":
        return self

    def __exit__(self, *_: object) -> None:
        for position in list(self.opened):
            self.opened.pop(position).close()

    def get(self, position: int) -> Checkpoint:
        if position not in self.opened:
            entry = self.places[position].entry
            assert entry is not None, "the checkpoint no longer exists"
            try:
                self.opened[position] = entry.open()
            except OSError as error:
                raise InputError(f"cannot open {entry.label}: {error.strerror or error}") from error
            for note in self.opened[position].notes:
                self._notes.setdefault(note, self.opened[position].label)
        return self.opened[position]

    def done_with(self, i: int) -> None:
        """Close the checkpoints that no step after i needs."""
        for position in [p for p in self.opened if self.last_use.get(p, -1) <= i]:
            self.opened.pop(position).close()


@dataclass(frozen=True)
class Counted:
    """The counted tensors, in the order of the stored steps."""

    readings: list[Reading]
    chosen: Chosen
    opening: Checkpoint  # the first existing checkpoint
    selection: Selection
    other: tuple[str, str, str] | None = None  # a tensor that differs: name, stored size, present size

    @cached_property
    def names(self) -> list[str]:
        return [reading.name for reading in self.readings]

    @cached_property
    def numel(self) -> NDArray[np.int64]:
        return np.array([self.opening.tensors[name].numel for name in self.names], np.int64)

    def check(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the checkpoint; raise if its counted tensors differ from those of the first one."""
        if checkpoint.tensors.keys() != self.opening.tensors.keys():
            _check_same(self.names, checkpoint, self.opening.label, self.selection)
        return checkpoint


def counted_tensors(plan: Plan, window: Window, selection: Selection) -> Counted:
    opening = window.get(plan.opening)
    with gc_paused():
        chosen = selection.choose(opening.label, opening.tensors, opening.aliases)
    readings = chosen.readings
    check_dtypes(opening, [reading.name for reading in readings])
    before = next((place.stored for place in plan.places if place.stored), None)
    if before is None:
        return Counted(readings, chosen, opening, selection)
    here = {storable(reading.name): reading for reading in readings}
    then = dict(zip(before.names, before.own.numel.tolist(), strict=True))
    now = {name: opening.tensors[reading.name].numel for name, reading in here.items()}
    for name in {**then, **now}:
        if then.get(name) != now.get(name):
            old, new = ("absent" if n is None else f"{n} values" for n in (then.get(name), now.get(name)))
            return Counted(readings, chosen, opening, selection, (name, old, new))
    return Counted([here[name] for name in before.names], chosen, opening, selection)


def own_sums(window: Window, counted: Counted, how: Reader, i: int) -> Moments:
    """Return the sums of one checkpoint, without references."""
    current = counted.check(window.get(i))
    if not how.striped(current):
        return measure_checkpoint(current, [], counted.names, workers=how.workers)
    job = Job.of({i: current}, {i: ()}, counted.names, None)
    return read_once(job, how, ByteProgress(None, [])).moments(i)


def _key(plan: Plan, i: int, names: str) -> str | None:
    """Return a key of everything that the new sums of a step depend on; None if its checkpoint is deleted."""
    own, *others = (plan.places[p].entry for p in (i, *plan.wanted[i].values()))
    if own is None:
        return None
    there = zip(plan.wanted[i], others, strict=True)
    return digest(
        [SUMS_VERSION, names, own.fingerprint, *([label, e.fingerprint] for label, e in there if e)]
    )


def measure_all(
    plan: Plan,
    window: Window,
    counted: Counted,
    store: Store,
    how: Reader,
    progress: Progress | None,
    *,
    samples: bool,
    scalars: bool,
) -> MeasuredSteps:
    """Measure every step, or restore its stored sums. samples, scalars: also take these."""
    tensors = counted.opening.tensors
    log = SampleLog(len(counted.names)) if samples else None
    updates = LoraUpdates(
        find_adapters(counted.readings, {name: tensor.shape for name, tensor in tensors.items()}),
        counted.names,
    )
    weights = ScalarLog(store.scalars, counted.names) if scalars else None
    bar = ByteProgress(progress, [tensors[name] for name in counted.names])
    steps = _StepReader(plan, window, counted, store, log, how, updates, bar)
    if not scalars:
        steps.read_in_stripes()
    steps.begin()
    moments: list[Moments | None] = []
    for i in range(len(plan.places)):
        moments.append(steps.measure(i) if i in plan.reads else steps.restore(i))
        if weights and i > 0:
            weights.take(i, plan.places, steps.get)
        window.done_with(i)
    store.drop_stripes()
    return MeasuredSteps.of(plan, moments, counted.readings, log, weights, updates)


@dataclass
class _StepReader:
    """Measures or restores the steps of a plan, one after another."""

    plan: Plan
    window: Window
    counted: Counted
    store: Store
    log: SampleLog | None
    how: Reader
    updates: LoraUpdates
    bar: "ByteProgress"
    striped: StripeSums | None = None

    def __post_init__(self) -> None:
        self.names, self.opening = self.counted.names, self.counted.opening
        self.shapes = {name: self.opening.tensors[name].shape for name in self.names}

    def get(self, position: int) -> Checkpoint:
        try:
            return self.counted.check(self.window.get(position))
        except (NoTensors, TensorMismatch) as error:
            labels = [place.label for place in self.plan.places if place.entry is not None]
            advice = without_pattern_of(self.plan.places[position].label, self.opening.label, labels)
            raise type(error)(f"{error}{advice}") from error

    def begin(self) -> None:
        if self.striped is None:
            self.bar.begin(sum(1 + len(set(refs.values())) for refs in self.plan.reads.values()))

    def measure(self, i: int) -> Moments:
        """Read a checkpoint with its references, store its sums and its sample, and return its moments."""
        place, references = self.plan.places[i], self.plan.reads[i]
        current, squares = self.get(i), self._updates(i)
        sums = self.striped.moments(i) if self.striped else self._read(current, references)
        if not np.array_equal(sums.numel, self.counted.numel):
            raise InputError(
                f"{current.label}: its tensors have different shapes than in {self.opening.label}"
            )
        pairs = {self.plan.places[p].step: sums.against[str(p)] for p in references.values()}
        if place.stored:  # keep the stored sums bit-identical; add only the new comparisons
            sums, pairs = place.stored.own, {**place.stored.pairs, **pairs}
        found = self.plan.moments(i, sums, pairs)
        sample = self._sample(i, current, found)
        assert place.entry is not None
        about = place.step, place.label, place.entry.fingerprint, tuple(self.names)
        origin = place.step_origin
        self.store.save(Stored(*about, found.alone, pairs, sample, origin, squares))
        return found

    def restore(self, i: int) -> Moments | None:
        """Return the stored moments of a step; None if it is lost."""
        place, squares = self.plan.places[i], self._updates(i)
        if not (stored := place.stored):
            return None
        found = self.plan.moments(i, stored.own, stored.pairs)
        if squares is not None and stored.updates is None:
            self.store.save(replace(stored, updates=squares))
        if self.log:
            self.log.restore(i, place, self.shapes, found, stored.sample)
        return found

    def _updates(self, i: int) -> Floats | None:
        """Return the squared norms of the LoRA updates of a step, if there are adapters."""
        place = self.plan.places[i]
        kept = place.stored.updates if place.stored else None
        return self.updates.take(place.step, kept, partial(self.get, i) if place.entry else None)

    def _sample(self, i: int, current: Checkpoint, found: Moments) -> Mapping[str, Sequence[Any]]:
        """Return the sample of a measured step, stored or new."""
        place, log, striped = self.plan.places[i], self.log, self.striped
        if log is None:
            return {}
        if place.stored and self.plan.knows(i, "previous") and log.continues(place.stored.sample):
            log.restore(i, place, self.shapes, found, place.stored.sample)
            return place.stored.sample
        seen = {}
        if striped and striped.job.sampled is not None:
            seen = {p: striped.samples(p) for p in (i - 1, i) if p in striped.job.checkpoints}
        previous = self.window.get(i - 1) if "previous" in self.plan.reads[i] else None
        return log.sample(i, place.step, str(place.step), current, previous, self.names, found, seen)

    def _read(self, current: Checkpoint, references: Mapping[str, int]) -> Moments:
        """Return the moments of a checkpoint against its references, which are labeled by position."""
        positions = list(dict.fromkeys(references.values()))
        self.bar.show(current.label)
        advance = partial(self.bar.advance, 1 + len(positions), current.label)
        others = [(str(position), self.window.get(position)) for position in positions]
        return measure_checkpoint(current, others, self.names, workers=self.how.workers, advance=advance)

    def read_in_stripes(self) -> None:
        """Measure all missing steps together; their references are only sampled.

        Do nothing if the files are local, or if not all of these checkpoints can be open at once.
        """
        plan, names = self.plan, self.names
        if not plan.reads or not self.how.striped(self.opening):
            return
        named = digest(names)
        keys = {key: i for i in range(len(plan.places)) if (key := _key(plan, i, named)) is not None}
        begun = self.store.begin_stripes([key for key, i in keys.items() if i in plan.reads], list(keys))
        there = {i: {p for p in plan.wanted[i].values() if plan.places[p].entry} for i in keys.values()}
        missing = sorted(keys[key] for key in begun)
        involved = sorted({position for i in missing for position in (i, *there[i])})
        self.bar.begin(len(involved))
        checkpoints: dict[int, Checkpoint] = {}
        for position in involved:
            self.bar.show(plan.places[position].label)
            checkpoints[position] = self.get(position)
            if not checkpoints[position].can_stay_open:
                return
            check_dtypes(checkpoints[position], names)
        compared = {
            i: tuple(dict.fromkeys(p for p in plan.wanted[i].values() if p in there[i])) for i in missing
        }
        job = Job.of(checkpoints, compared, names, self.log.sample_sizes if self.log else None)
        found = [entry.fingerprint for p in involved if (entry := plan.places[p].entry)]
        key = digest([begun, found, job.sampled])
        self.striped = read_once(job, self.how, self.bar, self.store, key)


def read_once(
    job: Job, how: Reader, bar: "ByteProgress", store: Store | None = None, key: str = ""
) -> StripeSums:
    """Return the sums of every position of a job, measured in stripes; finished stripes are stored under `key`."""
    advance = partial(bar.advance, len(job.checkpoints), f"{len(job.checkpoints)} checkpoints")
    store = store or Store(None)
    workers = how.workers or max(CONNECTIONS, available_cores())
    on = how.engine or Threads(min(workers, job.most_workers(how.memory)))
    try:
        return measure_stripes(job, key=key, store=store, memory=how.memory, on=on, advance=advance)
    finally:
        if how.engine is None:
            on.close()


class ByteProgress:
    """Reports the number of bytes read and in total."""

    def __init__(self, progress: Progress | None, tensors: list[Tensor]) -> None:
        self.progress = progress
        self.bytes = sum(tensor.nbytes for tensor in tensors)
        self.per_value = self.bytes / max(1, sum(tensor.numel for tensor in tensors))
        self.total, self.done = 0, 0.0

    def begin(self, checkpoints: int) -> None:
        self.total = checkpoints * self.bytes

    def show(self, label: str) -> None:
        if self.progress:
            self.progress(int(self.done), self.total, label)

    def advance(self, checkpoints: int, label: str, values: int) -> None:
        self.done += values * self.per_value * checkpoints
        self.show(label)


def _check_same(names: list[str], current: Checkpoint, first_label: str, selection: Selection) -> None:
    readings = selection.readings(current.tensors, current.aliases)
    here = {reading.name for reading in readings.values() if reading.counted}
    missing, new = sorted(set(names) - here), sorted(here - set(names))
    if missing or new:
        what = f"lacks {missing[0]}" if missing else f"has a new tensor {new[0]}"
        raise TensorMismatch(
            f"{current.label}: {what} (compared with {first_label}; {len(missing)} missing, {len(new)} new); "
            "use --select or --exclude to trace the common tensors"
        )
