"""Stripes: one task reads the same range of values from every checkpoint, from the first to the last.

Measured step by step, each checkpoint is read as itself, again as the predecessor of the next one, and partly again
for its samples. This is cheap while the files are in local memory and expensive over a network. A stripe reads each
byte once and keeps it until no later checkpoint is compared with it; the task returns only sums and samples. Each
finished stripe is stored, so a trace that was killed does not repeat it.

Rows are cut and added as in `measure`, so the sums are bit-identical.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normgrowth import engine
from normgrowth.checkpoints.checkpoint import DIRECT, STORAGE, WIDTH, Checkpoint, decode
from normgrowth.checkpoints.remote.remote_checkpoint import RemoteCheckpoint
from normgrowth.checkpoints.remote.transport import BufferPool, Bytes
from normgrowth.checkpoints.storage.crc32c import crc32c, joined_checksum
from normgrowth.errors import DamagedTensor
from normgrowth.moments.moments import CHUNK, Moments
from normgrowth.serialization.checksums import digest
from normgrowth.trace.by_step import Bits, Columns, added_rows, check_alike, stored_alike, sum_arrays, sum_at
from normgrowth.trace.output.store import Store
from normgrowth.trace.sampling.sampled_steps import ValueSamples
from normgrowth.trace.sampling.samples import Floats, buffer_like, places, sample

SMALLEST = 4 * CHUNK  # values
LARGEST = 16 * CHUNK
# Target number of stripes per worker: workers finish at about the same time and reuse their memory.
ROUNDS = 4
Result = Mapping[str, NDArray[np.generic]]


class Part(NamedTuple):
    """A range of values of one tensor, or of one piece if all checkpoints store it in the same pieces."""

    item: int
    piece: int | None  # None: the range is of the whole tensor, row-major
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def chunks(self) -> int:
        return -(-self.size // CHUNK)


class LoadedParts(NamedTuple):
    """The values of a stripe's parts in one checkpoint, and the memory they were read into."""

    arrays: list[Bits]
    memory: Bytes | None


@dataclass(frozen=True)
class Job:
    """The data that all stripes of a trace share; it is sent to every worker once."""

    checkpoints: Mapping[int, Checkpoint]  # position in the series -> opened checkpoint
    plan: Mapping[int, tuple[int, ...]]  # measured position -> positions it is compared with
    names: Sequence[str]
    numel: NDArray[np.int64]
    sampled: tuple[int, ...] | None  # number of sampled values of each tensor; None: take no samples
    buffers: BufferPool = field(default_factory=BufferPool)

    @staticmethod
    def of(
        checkpoints: Mapping[int, Checkpoint],
        plan: Mapping[int, tuple[int, ...]],
        names: Sequence[str],
        sample_sizes: Callable[[list[int]], tuple[int, ...] | None] | None,
    ) -> "Job":
        """Return a job; raise if tensors have different shapes or unsupported dtypes.

        sample_sizes: sizes of tensors -> number of sampled values.
        """
        check_alike(list(checkpoints.values()), names)
        first = next(iter(checkpoints.values()))
        numel = [first.tensors[name].numel for name in names]
        sampled = sample_sizes(numel) if sample_sizes else None
        return Job(checkpoints, plan, names, np.array(numel, np.int64), sampled)

    def last_use(self) -> dict[int, int]:
        """Return for each position the last position that is compared with it."""
        found = {place: place for place in self.checkpoints}
        for place, references in self.plan.items():
            found |= {reference: max(place, found[reference]) for reference in references}
        return found

    @cached_property
    def checked_places(self) -> dict[int, RemoteCheckpoint]:
        """Return the remote checkpoints that have checksums, by position."""
        return {
            place: checkpoint
            for place, checkpoint in self.checkpoints.items()
            if isinstance(checkpoint, RemoteCheckpoint) and checkpoint.checksums
        }

    def value_bytes(self) -> int:
        """Return the peak memory of a worker, in bytes per value of its stripe."""
        last_use = self.last_use()
        held = max(sum(first <= place <= last for first, last in last_use.items()) for place in last_use)
        indexes = {id(checkpoint.tensors): checkpoint.tensors for checkpoint in self.checkpoints.values()}
        width = max(WIDTH[tensors[name].dtype] for tensors in indexes.values() for name in self.names)
        return (held + 2) * width  # one checkpoint is read ahead, and some libraries hold it twice

    def most_workers(self, memory: int) -> int:
        """Return how many workers can each hold a stripe of the smallest size."""
        return max(1, memory // (SMALLEST * self.value_bytes()))


def measure_stripes(
    job: Job,
    *,
    key: str,
    store: Store,
    memory: int,
    on: engine.Engine,
    advance: Callable[[int], None],
) -> "StripeSums":
    """Return the sums of every position of the job.

    key: identifies everything the sums depend on. memory: limit in bytes over all workers. advance: called with the
    number of values that were read from each checkpoint.
    """
    stripes = list(cut(job, memory, on.workers))
    keys = [digest([key, stripe]) for stripe in stripes]
    together = StripeSums(job, stripes)
    given: list[int] = []  # positions of the stripes that were submitted to workers

    def add(position: int, result: Result) -> None:
        together.add(position, result)
        advance(sum(part.size for part in stripes[position]))

    def missing() -> Iterator[tuple[Part, ...]]:
        for position, stripe in enumerate(stripes):
            if (stored := store.load_stripe(keys[position])) is not None:
                add(position, stored)
            else:
                given.append(position)
                yield stripe

    try:
        with closing(engine.map(partial(run_stripe, job), missing(), on=on)) as results:
            for place, result in results:
                store.save_stripe(keys[given[place]], result)
                add(given[place], result)
    except DamagedTensor:
        store.drop_stripes()  # they contain sums of damaged values; the next read may be intact
        raise
    return together


def cut(job: Job, memory: int, workers: int) -> Iterator[tuple[Part, ...]]:
    """Yield stripes that cover all values in storage order and that fit into the memory of a worker."""
    checkpoints = list(job.checkpoints.values())
    fits, share = memory // (workers * job.value_bytes()), int(job.numel.sum()) // (workers * ROUNDS)
    largest = min(max(min(fits, share), SMALLEST), LARGEST) // CHUNK * CHUNK
    stripe: list[Part] = []
    values = 0
    for item in _in_storage(checkpoints[0], job.names):
        for part in _parts(checkpoints, job.names[item], item, int(job.numel[item]), largest):
            if stripe and values + part.size > largest:
                yield tuple(stripe)
                stripe, values = [], 0
            stripe.append(part)
            values += part.size
    if stripe:
        yield tuple(stripe)


def _in_storage(checkpoint: Checkpoint, names: Sequence[str]) -> list[int]:
    def place(item: int) -> tuple[str, int]:
        pieces = checkpoint.ranges[names[item]]
        return (pieces[0].file, pieces[0].offset) if pieces else ("", 0)

    return sorted(range(len(names)), key=place)


def _parts(checkpoints: list[Checkpoint], name: str, item: int, numel: int, largest: int) -> Iterator[Part]:
    """Cut a tensor as `measure` does: in storage order if all checkpoints share it and the tensor exceeds a chunk."""
    layout = checkpoints[0].tensors[name].layout
    if not stored_alike(checkpoints, name) or (layout is not None and numel <= CHUNK):
        yield Part(item, None, 0, numel)
        return
    boxes = getattr(layout, "boxes", None)
    sizes = [int(np.prod(size, dtype=np.int64)) for _, size in boxes] if boxes else [numel]
    for piece, size in enumerate(sizes):
        for start in range(0, max(size, 1), largest):
            yield Part(item, None if layout is None else piece, start, min(start + largest, size))


def run_stripe(job: Job, stripe: tuple[Part, ...]) -> Result:
    """Measure one stripe in all checkpoints; return rows of sums and samples by position."""
    last_use = job.last_use()
    held: dict[int, LoadedParts] = {}
    found: dict[str, NDArray[np.generic]] = {}
    with ThreadPoolExecutor(1) as ahead:  # reads the next checkpoint while this one is summed
        context, read = copy_context(), partial(_read, job, stripe)
        places_left = sorted(job.checkpoints)
        coming = ahead.submit(context.run, read, places_left[0])
        for place, then in zip(places_left, [*places_left[1:], None], strict=True):
            held[place] = coming.result()
            engine.check_cancelled()
            if place in job.checked_places:
                found[f"crc32c:{place}"] = _checksums(job, stripe, place, held[place].arrays)
            if then is not None:
                coming = ahead.submit(context.run, read, then)
            if place in job.plan:
                involved = [place, *job.plan[place]]
                found[f"rows:{place}"] = _sums(job, stripe, involved, [held[p].arrays for p in involved])
            if job.sampled is not None:
                arrays = held[place].arrays
                samples = [_sample(job, part, place, bits) for part, bits in zip(stripe, arrays, strict=True)]
                found[f"sample:{place}"] = np.concatenate([taken.view(np.uint8) for taken in samples])
            for p in [p for p in held if last_use[p] <= place]:
                if (memory := held.pop(p).memory) is not None:
                    job.buffers.give(memory)
                job.checkpoints[p].check_unchanged()
                job.checkpoints[p].close()  # a process may have only a limited number of open files
    return found


def _read(job: Job, stripe: Sequence[Part], place: int) -> LoadedParts:
    checkpoint = job.checkpoints[place]
    named = [(job.names[part.item], part) for part in stripe]
    if isinstance(checkpoint, RemoteCheckpoint):
        ranged = [(name, part) for name, part in named if not _is_assembled(checkpoint, name, part)]
        memory = job.buffers.take(
            sum(part.size * WIDTH[checkpoint.tensors[name].dtype] for name, part in ranged)
        )
        wanted = [(name, part.piece or 0, part.start, part.stop) for name, part in ranged]
        values = iter(checkpoint.values(wanted, memory))
        arrays = [
            checkpoint.dense(name)[part.start : part.stop]
            if _is_assembled(checkpoint, name, part)
            else next(values)
            for name, part in named
        ]
        return LoadedParts(arrays, memory)
    arrays = [
        (checkpoint.dense(name) if part.piece is None else checkpoint.piece(name, part.piece))[
            part.start : part.stop
        ]
        for name, part in named
    ]
    return LoadedParts(arrays, None)


def _is_assembled(checkpoint: RemoteCheckpoint, name: str, part: Part) -> bool:
    """Whether the part belongs to a tensor that is stored in several pieces and must be assembled first."""
    return part.piece is None and len(checkpoint.ranges[name]) > 1


def _checksums(job: Job, stripe: Sequence[Part], place: int, arrays: list[Bits]) -> NDArray[np.uint32]:
    """Return the checksum of each part, 0 for assembled parts, which are checked while they are read."""
    checkpoint = job.checkpoints[place]
    assert isinstance(checkpoint, RemoteCheckpoint)
    named = zip(stripe, arrays, strict=True)
    found = [
        0 if _is_assembled(checkpoint, job.names[part.item], part) else crc32c(bits) for part, bits in named
    ]
    return np.array(found, np.uint32)


def _sums(job: Job, stripe: Sequence[Part], involved: list[int], held: list[list[Bits]]) -> Columns:
    """Return one row per chunk of each part: sums of the first position, then against each other position."""
    dtypes = [[job.checkpoints[p].tensors[job.names[part.item]].dtype for p in involved] for part in stripe]
    direct = [d[0] if d[0] in DIRECT and len(set(d)) == 1 else "" for d in dtypes]
    chunks = np.array([part.chunks for part in stripe], np.int64)
    first_row = np.concatenate([[0], np.cumsum(chunks)])
    out = np.zeros((int(first_row[-1]), 3 * len(involved)))
    for dtype in sorted({d for d, count in zip(direct, chunks, strict=True) if count}):
        mine = [i for i, d in enumerate(direct) if d == dtype and chunks[i]]
        if not dtype:
            for i in mine:
                out[first_row[i] : first_row[i + 1]] = sum_arrays(dtypes[i], [arrays[i] for arrays in held])
            continue
        row = np.concatenate([np.arange(first_row[i], first_row[i + 1]) for i in mine])
        begin = (row - np.repeat(first_row[mine], chunks[mine])) * CHUNK
        size = np.repeat([stripe[i].size for i in mine], chunks[mine])
        base = np.array([[arrays[i].ctypes.data for arrays in held] for i in mine], np.int64)
        table = np.repeat(base, chunks[mine], axis=0) + begin[:, None] * STORAGE[dtype].itemsize
        part = np.zeros((len(row), out.shape[1]))
        sum_at(dtype, table, np.minimum(CHUNK, size - begin), part)
        out[row] = part
    return out


def _sample_at(job: Job, part: Part) -> NDArray[np.int64]:
    """Return the indices of sampled values in a part. For a tensor in pieces, the first part has the whole sample."""
    assert job.sampled is not None
    at = places(int(job.numel[part.item]), job.sampled[part.item])
    if part.piece is not None:
        return at[: None if part.piece == part.start == 0 else 0]
    return at[(at >= part.start) & (at < part.stop)] - part.start


def _sample(job: Job, part: Part, place: int, bits: Bits) -> Bits:
    """Return the sampled values of a part: stored bits, which are smallest, or float64 for a tensor in pieces."""
    at = _sample_at(job, part)
    if part.piece is None:
        return bits[at]
    return sample(job.checkpoints[place], job.names[part.item], len(at)) if at.size else np.zeros(0)


def _sample_dtype(job: Job, part: Part, place: int) -> str:
    return job.checkpoints[place].tensors[job.names[part.item]].dtype if part.piece is None else "F64"


class StripeSums:
    """Adds up the results of stripes. Results may arrive in any order and are added in the order of the stripes.

    A tensor with a checksum is checked as soon as its last part has been added.
    """

    def __init__(self, job: Job, stripes: Sequence[Sequence[Part]]) -> None:
        self.job, self.stripes = job, stripes
        self._waiting: dict[int, Result] = {}
        self._added = 0  # number of stripes
        self._columns = {p: np.zeros((len(job.names), 3 + 3 * len(r))) for p, r in job.plan.items()}
        self._samples: dict[int, list[bytes]] = {place: [] for place in job.checkpoints}
        self._checksums: dict[int, int] = {}  # position -> running checksum of the tensor being read

    def add(self, position: int, result: Result) -> None:
        self._waiting[position] = result
        while self._added in self._waiting:
            self._add_next(self.stripes[self._added], self._waiting.pop(self._added))
            self._added += 1

    def _add_next(self, stripe: Sequence[Part], result: Result) -> None:
        items = list(dict.fromkeys(part.item for part in stripe))
        row = np.repeat([items.index(part.item) for part in stripe], [part.chunks for part in stripe])
        item = np.concatenate([np.arange(len(items)), row])  # the existing sums come first
        for place, columns in self._columns.items():
            rows = np.concatenate([columns[items], np.asarray(result[f"rows:{place}"], np.float64)])
            columns[items] = added_rows(rows, item, len(items))
        for place, checkpoint in self.job.checked_places.items():
            for part, checksum in zip(stripe, result[f"crc32c:{place}"].tolist(), strict=True):
                if not _is_assembled(checkpoint, self.job.names[part.item], part):
                    self._check(place, checkpoint, part, checksum)
        if self.job.sampled is not None:
            for place, taken in self._samples.items():
                taken.append(result[f"sample:{place}"].tobytes())

    def _check(self, place: int, checkpoint: RemoteCheckpoint, part: Part, checksum: int) -> None:
        """Update the running checksum and verify it at the end of a piece. Parts arrive in the order of storage."""
        name = self.job.names[part.item]
        piece, width = checkpoint.ranges[name][part.piece or 0], WIDTH[checkpoint.tensors[name].dtype]
        if part.start:
            checksum = joined_checksum(self._checksums[place], checksum, part.size * width)
        self._checksums[place] = checksum
        if (
            part.size
            and part.stop == piece.numel
            and checksum != checkpoint.checksums[piece.file, piece.offset]
        ):
            raise checkpoint.damaged(name, piece.file)

    def moments(self, place: int) -> Moments:
        """Return the moments of a position against its references, which are labeled by position."""
        labels = [str(reference) for reference in self.job.plan[place]]
        return Moments.from_columns(self.job.numel, self._columns[place], labels)

    def samples(self, place: int) -> ValueSamples:
        return ValueSamples(self._decoded(place), self.buffers)

    @cached_property
    def _counts(self) -> list[tuple[Part, int]]:
        return [(part, len(_sample_at(self.job, part))) for stripe in self.stripes for part in stripe]

    def _decoded(self, place: int) -> dict[str, Floats]:
        """Return the sample of each tensor as float64."""
        raw, end = np.frombuffer(b"".join(self._samples[place]), np.uint8), 0
        found: dict[int, list[Floats]] = {}
        for part, count in self._counts:
            dtype = _sample_dtype(self.job, part, place)
            start, end = end, end + count * WIDTH[dtype]
            found.setdefault(part.item, []).append(decode(dtype, raw[start:end].view(STORAGE[dtype])))
        return {name: np.concatenate(found[item]) for item, name in enumerate(self.job.names)}

    @cached_property
    def buffers(self) -> dict[str, str]:
        """Return tensors that look like buffers, with the reason; what may be a table of waves is read again."""
        first = min(self.job.checkpoints)
        checkpoint, samples = self.job.checkpoints[first], self._decoded(first)
        judged = {
            name: buffer_like(checkpoint.tensors[name], values, partial(checkpoint.dense, name))
            for name, values in samples.items()
        }
        return {name: what for name, what in judged.items() if what}
