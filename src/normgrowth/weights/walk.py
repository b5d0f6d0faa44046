"""The walk along a series: the moments of every checkpoint, from what is stored and from what must be read.

Two ways, the same sums. Step by step, a checkpoint with those it is compared with: for files of this machine, whose
bytes stay in memory from one step to the next, and for formats that are fetched or decoded whole. In stripes
(`weights.stripes`), all checkpoints at once: for files that are read over a network, or on a cluster.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from normgrowth.engine import Engine, Threads, available_cores, no_collection
from normgrowth.errors import InputError
from normgrowth.weights.lint.alongside import Alongside
from normgrowth.weights.measure import check_alike, check_dtypes, measure
from normgrowth.weights.moments import Moments
from normgrowth.weights.names import Reading, read_names
from normgrowth.weights.sources.checkpoint import Checkpoint, MappedCheckpoint, Tensor
from normgrowth.weights.sources.remote import AT_ONCE, RemoteCheckpoint
from normgrowth.weights.sources.series import Entry, Series
from normgrowth.weights.store import Store, digest
from normgrowth.weights.stripes import Job, Together, measure_stripes

SUMS_VERSION = 1  # raise it when the same files would give other sums: what is stored is then measured anew
MEMORY = 1 << 30
CONNECTIONS = 8  # at a time to one server: one alone waits more than it reads
Progress = Callable[[int, int, str], None]  # bytes done, bytes in all, what is being read


@dataclass(frozen=True)
class Selection:
    """Which tensors count, as the user said it."""

    scope: str = "blocks"
    select: str | None = None
    exclude: str | None = None

    def readings(self, checkpoint: Checkpoint) -> dict[str, Reading]:
        return read_names(
            checkpoint.tensors,
            scope=self.scope,
            select=self.select,
            exclude=self.exclude,
            aliases=checkpoint.aliases,
        )


@dataclass(frozen=True)
class How:
    """Where to work, and with how much memory for what comes over a network."""

    workers: int | None
    engine: Engine | None
    memory: int

    def striped(self, opening: Checkpoint) -> bool:
        """Whether checkpoints are such as can all be open at once, and reading them twice would cost."""
        costs = isinstance(opening, RemoteCheckpoint) or self.engine is not None
        return costs and _can_stay_open(opening)


def _can_stay_open(checkpoint: Checkpoint) -> bool:
    """Not one that was fetched: many of those would fill the disk."""
    if isinstance(checkpoint, RemoteCheckpoint):
        return True
    return isinstance(checkpoint, MappedCheckpoint) and checkpoint.on_close is None


def references(i: int, lags: Sequence[int], first: bool) -> dict[str, int]:
    """What checkpoint i is compared with: label -> position."""
    references: dict[str, int] = {}
    if i > 0:
        references["previous"] = i - 1
        if first:
            references["first"] = 0
    for lag in lags:
        if lag <= i:
            references[f"lag{lag}"] = i - lag
    return references


class Window:
    """Opens checkpoints when they are first needed and closes them when nothing ahead needs them."""

    def __init__(self, series: Series, plan: list[dict[str, int]]) -> None:
        self.series = series
        self.last_use = {position: i for i, refs in enumerate(plan) for position in (*refs.values(), i)}
        self.opened: dict[int, Checkpoint] = {}

    def __enter__(self) -> "Window":
        return self

    def __exit__(self, *_: object) -> None:
        for position in list(self.opened):
            self.opened.pop(position).close()

    def get(self, position: int) -> Checkpoint:
        if position not in self.opened:
            try:
                self.opened[position] = self.series.entries[position].open()
            except OSError as error:
                label = self.series.entries[position].label
                raise InputError(f"{label}: cannot be opened: {error.strerror or error}") from error
        return self.opened[position]

    def done_with(self, i: int) -> None:
        """Step i is done: close what no later step compares with."""
        for position in [p for p in self.opened if self.last_use.get(p, -1) <= i]:
            self.opened.pop(position).close()


def _key(entries: Sequence[Entry], i: int, references: dict[str, int], names: str) -> str:
    """Names everything that the moments of a step depend on."""
    parts: list[Any] = [SUMS_VERSION, names, entries[i].fingerprint]
    parts += [[label, entries[position].fingerprint] for label, position in references.items()]
    return digest(parts)


def measure_all(
    series: Series,
    plan: list[dict[str, int]],
    window: Window,
    selection: Selection,
    store: Store,
    lint: bool,
    how: How,
    progress: Progress | None,
) -> tuple[list[Reading], list[Moments], Alongside | None]:
    """Which tensors count, and their moments at every step; what is stored is not measured again."""
    entries = series.entries
    opening = window.get(0)
    with no_collection():
        counted = [reading for reading in selection.readings(opening).values() if reading.counted]
    if not counted:
        raise InputError(
            f"{opening.label}: no tensor counts (scope {selection.scope}, select {selection.select}, "
            f"exclude {selection.exclude}); `normgrowth names` shows how each is read"
        )
    names = [reading.name for reading in counted]
    check_dtypes(opening, names)
    names_digest = digest(names)
    keys = [_key(entries, i, plan[i], names_digest) for i in range(len(entries))]
    kept = [store.load(entry.step, key) for entry, key in zip(entries, keys, strict=True)]
    missing = [i for i, found in enumerate(kept) if found is None]
    beside = Alongside(len(names)) if lint else None
    bar = _Bar(progress, [opening.tensors[name] for name in names])

    def get(position: int) -> Checkpoint:
        current = window.get(position)
        if current.tensors.keys() != opening.tensors.keys():
            _check_same(names, current, opening.label, selection)
        return current

    striped: Together | None = None
    if missing and how.striped(opening):
        striped = _in_stripes(entries, plan, missing, keys, names, get, beside, store, how, bar)
    if striped is None:
        bar.begin(sum(1 + len(set(plan[i].values())) for i in missing))
    moments: list[Moments] = []
    shapes = {name: opening.tensors[name].shape for name in names}
    for i, (entry, key) in enumerate(zip(entries, keys, strict=True)):
        if (stored := kept[i]) is not None:
            found, look = stored
            if beside:
                beside.restore(i, entry.step, entry.label, key, shapes, found, look)
        else:
            current = get(i)
            sums = striped.moments(i) if striped else _one_step(current, plan[i], names, window, how, bar)
            against = {label: sums.against[str(position)] for label, position in plan[i].items()}
            found = Moments(sums.numel, sums.square, sums.largest, sums.nonfinite, against)
            previous = window.get(i - 1) if i else None
            sampled = striped is not None and striped.job.sampled is not None
            seen = {p: striped.seen(p) for p in (i - 1, i) if p >= 0} if striped and sampled else {}
            look = beside.see(i, entry.step, key, current, previous, names, found, seen) if beside else {}
            store.save(entry.step, key, names, found, look)
        moments.append(found)
        window.done_with(i)
    store.drop_stripes()
    return counted, moments, beside


def _one_step(
    current: Checkpoint,
    references: Mapping[str, int],
    names: list[str],
    window: Window,
    how: How,
    bar: "_Bar",
) -> Moments:
    """Against each checkpoint that it is compared with, by its position."""
    positions = list(dict.fromkeys(references.values()))
    bar.show(current.label)
    advance = partial(bar.advance, 1 + len(positions), current.label)
    others = [(str(position), window.get(position)) for position in positions]
    return measure(current, others, names, workers=how.workers, advance=advance)


def _in_stripes(
    entries: Sequence[Entry],
    plan: list[dict[str, int]],
    missing: list[int],
    keys: list[str],
    names: list[str],
    get: Callable[[int], Checkpoint],
    beside: Alongside | None,
    store: Store,
    how: How,
    bar: "_Bar",
) -> Together | None:
    """All missing steps at once; of those that they are compared with, only what lint wants to see.

    None if not all of these checkpoints can be open at once.
    """
    begun = store.begin_stripes([keys[i] for i in missing], keys)
    missing = [i for i, key in enumerate(keys) if key in begun]
    involved = sorted({position for i in missing for position in (i, *plan[i].values())})
    bar.begin(len(involved))
    checkpoints: dict[int, Checkpoint] = {}
    for position in involved:
        bar.show(entries[position].label)
        checkpoints[position] = get(position)
        if not _can_stay_open(checkpoints[position]):
            return None
        check_dtypes(checkpoints[position], names)
    numel = [checkpoints[involved[0]].tensors[name].numel for name in names]
    job = Job(
        checkpoints,
        {i: tuple(dict.fromkeys(plan[i].values())) for i in missing},
        names,
        np.array(numel, np.int64),
        beside.sampled(numel) if beside else None,
    )
    check_alike(list(checkpoints.values()), names)
    key = digest([begun, [entries[p].fingerprint for p in involved], job.sampled])
    label = f"{len(involved)} checkpoints"
    advance = partial(bar.advance, len(involved), label)
    return read_once(job, how, advance, store, key)


def read_once(
    job: Job, how: How, advance: Callable[[int], None], store: Store | None = None, key: str = ""
) -> Together:
    """Every place of a job, in stripes; kept in the store by the key as they come."""
    store = store or Store(None)
    workers = how.workers or max(CONNECTIONS, available_cores())
    on = how.engine or Threads(min(workers, job.most_workers(how.memory)))
    try:
        found = measure_stripes(job, key=key, store=store, memory=how.memory, on=on, advance=advance)
    finally:
        if how.engine is None:
            on.close()
    opened = job.checkpoints.values()
    remote = [checkpoint for checkpoint in opened if isinstance(checkpoint, RemoteCheckpoint)]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(RemoteCheckpoint.check_unchanged, remote))
    return found


class _Bar:
    """Tells how many bytes were read, of how many."""

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
    here = {reading.name for reading in selection.readings(current).values() if reading.counted}
    missing, new = sorted(set(names) - here), sorted(here - set(names))
    if missing or new:
        what = f"lacks {missing[0]}" if missing else f"has a new tensor {new[0]}"
        raise InputError(
            f"{current.label}: {what} (compared with {first_label}; {len(missing)} missing, {len(new)} new); "
            "trace what they share with --select or --exclude"
        )
