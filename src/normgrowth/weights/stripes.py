"""Stripes: a task takes the same values of every checkpoint, from the first to the last.

Step by step, each checkpoint would be read as itself, as the next one's predecessor, and in part again for lint. That
costs nothing while files lie in this machine's memory, and everything where they come over a network. A stripe reads
each byte once and holds it until nothing ahead is compared with it; only sums and lint's samples leave the task. They
are kept as they come, so that a trace that was killed repeats no stripe that it finished.

Rows are cut and added as in `measure`: the sums are the same to the bit.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normgrowth import engine
from normgrowth.weights.lint.values import Floats, buffer_like, places, sample
from normgrowth.weights.measure import Bits, Columns, added_rows, stored_alike, sum_arrays, sum_at
from normgrowth.weights.moments import CHUNK, Moments
from normgrowth.weights.sources.checkpoint import DIRECT, STORAGE, Checkpoint, decode
from normgrowth.weights.sources.remote import RemoteCheckpoint
from normgrowth.weights.store import Store

SMALLEST = 4 * CHUNK  # values: what lint wants to see whole is not cut
LARGEST = 16 * CHUNK
Result = dict[str, NDArray[np.generic]]


class Part(NamedTuple):
    """Values of one tensor; of one piece of it where all checkpoints store it in the same pieces."""

    item: int
    piece: int | None  # None: of the whole, row-major
    start: int
    stop: int


@dataclass(frozen=True)
class Job:
    """What all stripes of a trace share: it goes to every worker once."""

    checkpoints: Mapping[int, Checkpoint]  # by place in the series, opened
    plan: Mapping[int, tuple[int, ...]]  # measured place -> places it is compared with
    names: Sequence[str]
    numel: NDArray[np.int64]
    sampled: tuple[int, ...] | None  # values of each tensor that lint looks at

    def last_use(self) -> dict[int, int]:
        """Place -> the last one that needs it."""
        found = {place: place for place in self.checkpoints}
        for place, references in self.plan.items():
            found |= {reference: max(place, found[reference]) for reference in references}
        return found


@dataclass(frozen=True)
class Measured:
    """Of one checkpoint: its sums if they were asked for, and lint's samples by tensor."""

    moments: Moments | None
    samples: dict[str, Floats] | None


def measure_stripes(
    job: Job,
    *,
    key: str,
    store: Store,
    memory: int,
    on: engine.Engine,
    advance: Callable[[int], None],
) -> tuple[dict[int, Measured], dict[str, str]]:
    """Every place of the job; and which tensors look like buffers, and as what.

    key: names everything that the sums depend on. memory: bytes that all workers together may hold. advance: is told
    the values done, of each checkpoint.
    """
    stripes = list(cut(job, memory // on.workers))
    keys = [_digest([key, stripe]) for stripe in stripes]
    results = [store.load_stripe(own) for own in keys]
    missing = [i for i, result in enumerate(results) if result is None]
    advance(sum(_values(stripe) for stripe, result in zip(stripes, results, strict=True) if result))
    for done, result in engine.map(partial(run, job), [stripes[i] for i in missing], on=on):
        store.save_stripe(keys[missing[done]], result)
        results[missing[done]] = result
        advance(_values(stripes[missing[done]]))
    return _put_together(job, stripes, [result for result in results if result is not None])


def _values(stripe: Sequence[Part]) -> int:
    return sum(part.stop - part.start for part in stripe)


def cut(job: Job, memory: int) -> Iterator[tuple[Part, ...]]:
    """All values, in the order of storage, in stripes of which a worker can hold as many as it must."""
    checkpoints = list(job.checkpoints.values())
    held = 2 + max((len(references) for references in job.plan.values()), default=0)  # one is read ahead
    width = max(
        STORAGE[checkpoint.tensors[name].dtype].itemsize for checkpoint in checkpoints for name in job.names
    )
    largest = min(max(memory // (held * width), SMALLEST), LARGEST) // CHUNK * CHUNK
    stripe: list[Part] = []
    values = 0
    for item in _in_storage(checkpoints[0], job.names):
        for part in _parts(checkpoints, job.names[item], item, int(job.numel[item]), largest):
            if stripe and values + part.stop - part.start > largest:
                yield tuple(stripe)
                stripe, values = [], 0
            stripe.append(part)
            values += part.stop - part.start
    if stripe:
        yield tuple(stripe)


def _in_storage(checkpoint: Checkpoint, names: Sequence[str]) -> list[int]:
    ranges = getattr(checkpoint, "ranges", None)
    if ranges is None:
        return list(range(len(names)))
    return sorted(
        range(len(names)), key=lambda item: ranges[names[item]][0][:2] if ranges[names[item]] else ("", 0)
    )


def _parts(checkpoints: list[Checkpoint], name: str, item: int, numel: int, largest: int) -> Iterator[Part]:
    tensor = checkpoints[0].tensors[name]
    alike = stored_alike(checkpoints, name)
    boxes = getattr(tensor.layout, "boxes", None)
    if numel > CHUNK and alike and boxes:
        for piece, (_, size) in enumerate(boxes):
            yield Part(item, piece, 0, int(np.prod(size, dtype=np.int64)))
    elif tensor.layout is None and alike:
        for start in range(0, max(numel, 1), largest):
            yield Part(item, None, start, min(start + largest, numel))
    else:
        yield Part(item, None, 0, numel)


def run(job: Job, stripe: tuple[Part, ...]) -> Result:
    """One stripe through all checkpoints. What it returns: rows of sums and samples by place, and buffers."""
    last_use = job.last_use()
    held: dict[int, list[Bits]] = {}
    found: Result = {}
    with ThreadPoolExecutor(1) as ahead:  # the next bytes come while these are summed
        places_left = sorted(job.checkpoints)
        coming = ahead.submit(_read, job, stripe, places_left[0])
        for place, then in zip(places_left, [*places_left[1:], None], strict=True):
            held[place] = coming.result()
            if then is not None:
                coming = ahead.submit(_read, job, stripe, then)
            if place in job.plan:
                involved = [place, *job.plan[place]]
                found[f"rows:{place}"] = _sums(job, stripe, involved, [held[p] for p in involved])
            if job.sampled is not None:
                found[f"sample:{place}"] = _sampled(job, stripe, place, held[place])
                if place == places_left[0]:
                    found["buffer"] = _buffers(job, stripe, place, held[place], found[f"sample:{place}"])
            for p in [p for p in held if last_use[p] <= place]:
                del held[p]
    return found


def _read(job: Job, stripe: Sequence[Part], place: int) -> list[Bits]:
    checkpoint = job.checkpoints[place]
    if isinstance(checkpoint, RemoteCheckpoint):
        return _read_spans(checkpoint, [(job.names[part.item], part.start, part.stop) for part in stripe])
    return [
        (checkpoint.dense(name) if part.piece is None else checkpoint.pieces(name)[part.piece])[
            part.start : part.stop
        ]
        for part in stripe
        for name in [job.names[part.item]]
    ]


def _read_spans(checkpoint: RemoteCheckpoint, wanted: Sequence[tuple[str, int, int]]) -> list[Bits]:
    """Values of tensors; what lies side by side in a file is asked for at once."""
    spans: list[tuple[str, int, int]] = []  # file, first byte, behind the last
    runs: list[list[int]] = []  # of spans that touch
    for i, (name, start, stop) in enumerate(wanted):
        piece, width = checkpoint.ranges[name][0], STORAGE[checkpoint.tensors[name].dtype].itemsize
        span = piece.file, piece.offset + start * width, piece.offset + stop * width
        touches = bool(spans) and spans[-1][0] == span[0] and spans[-1][2] == span[1]
        spans.append(span)
        if touches:
            runs[-1].append(i)
        else:
            runs.append([i])
    arrays: list[Bits] = []
    for members in runs:
        (file, first, _), (_, _, behind) = spans[members[0]], spans[members[-1]]
        content = checkpoint.read(file, first, behind) if behind > first else np.zeros(0, np.uint8)
        for i in members:
            bits = STORAGE[checkpoint.tensors[wanted[i][0]].dtype]
            arrays.append(content[spans[i][1] - first : spans[i][2] - first].view(bits))
    return arrays


def _sums(job: Job, stripe: Sequence[Part], involved: list[int], held: list[list[Bits]]) -> Columns:
    """A row for each chunk of each part: of the first place itself, and against each of the others."""
    dtypes = [[job.checkpoints[p].tensors[job.names[part.item]].dtype for p in involved] for part in stripe]
    direct = [d[0] if d[0] in DIRECT and len(set(d)) == 1 else "" for d in dtypes]
    chunks = np.array([-(-(part.stop - part.start) // CHUNK) for part in stripe], np.int64)
    first_row = np.concatenate([[0], np.cumsum(chunks)])
    out = np.zeros((int(first_row[-1]), 3 * len(involved)))
    for dtype in sorted(set(direct)):
        mine = [i for i, d in enumerate(direct) if d == dtype and chunks[i]]
        if not dtype:
            for i in mine:
                out[first_row[i] : first_row[i + 1]] = sum_arrays(dtypes[i], [arrays[i] for arrays in held])
            continue
        row = np.concatenate(
            [np.zeros(0, np.int64), *(np.arange(first_row[i], first_row[i + 1]) for i in mine)]
        )
        begin = (row - np.repeat(first_row[mine], chunks[mine])) * CHUNK
        size = np.repeat([stripe[i].stop - stripe[i].start for i in mine], chunks[mine])
        base = np.array([[arrays[i].ctypes.data for arrays in held] for i in mine], np.int64)
        table = np.repeat(base, chunks[mine], axis=0) + begin[:, None] * STORAGE[dtype].itemsize
        part = np.zeros((len(row), out.shape[1]))
        sum_at(dtype, table, np.minimum(CHUNK, size - begin), part)
        out[row] = part
    return out


def _sampled(job: Job, stripe: Sequence[Part], place: int, held: list[Bits]) -> Floats:
    """Lint's samples of the tensors that begin here, in the order of parts; of one that is cut, each part's."""
    assert job.sampled is not None
    checkpoint = job.checkpoints[place]
    taken = [np.zeros(0)]
    for part, bits in zip(stripe, held, strict=True):
        name = job.names[part.item]
        if part.piece is not None:
            if part.piece == 0:
                taken.append(sample(checkpoint, name, job.sampled[part.item]))
            continue
        at = places(int(job.numel[part.item]), job.sampled[part.item])
        taken.append(
            decode(
                checkpoint.tensors[name].dtype, bits[at[(at >= part.start) & (at < part.stop)] - part.start]
            )
        )
    return np.concatenate(taken)


def _sample_sizes(job: Job, stripe: Sequence[Part]) -> list[int]:
    assert job.sampled is not None
    sizes = []
    for part in stripe:
        count = job.sampled[part.item]
        if part.piece is not None:
            sizes.append(len(places(int(job.numel[part.item]), count)) if part.piece == 0 else 0)
        else:
            at = places(int(job.numel[part.item]), count)
            sizes.append(int(((at >= part.start) & (at < part.stop)).sum()))
    return sizes


def _buffers(
    job: Job, stripe: Sequence[Part], place: int, held: list[Bits], samples: NDArray[np.generic]
) -> NDArray[np.str_]:
    """For each part that is a whole tensor, the buffer that it looks like, or nothing."""
    checkpoint, found, end = job.checkpoints[place], [], 0
    for part, bits, size in zip(stripe, held, _sample_sizes(job, stripe), strict=True):
        name = job.names[part.item]
        values, end = np.asarray(samples[end : end + size], np.float64), end + size
        whole = part.piece is None and part.stop - part.start == job.numel[part.item]
        found.append(buffer_like(checkpoint.tensors[name], values, lambda bits=bits: bits) if whole else "")
    return np.array(found, np.str_)


def _put_together(
    job: Job, stripes: Sequence[Sequence[Part]], results: Sequence[Result]
) -> tuple[dict[int, Measured], dict[str, str]]:
    parts = [part for stripe in stripes for part in stripe]
    items = np.array([part.item for part in parts], np.intp)
    chunks = [-(-(part.stop - part.start) // CHUNK) for part in parts]
    by_place: dict[int, Measured] = {}
    sizes = (
        [size for stripe in stripes for size in _sample_sizes(job, stripe)] if job.sampled is not None else []
    )
    for place in job.checkpoints:
        moments = samples = None
        if place in job.plan:
            rows = np.concatenate([np.asarray(result[f"rows:{place}"], np.float64) for result in results])
            columns = added_rows(rows, np.repeat(items, chunks), len(job.names))
            moments = Moments.from_columns(job.numel, columns, [str(p) for p in job.plan[place]])
        if job.sampled is not None:
            values = np.concatenate([np.asarray(result[f"sample:{place}"], np.float64) for result in results])
            pieces = np.split(values, np.cumsum(sizes)[:-1])
            collected: dict[int, list[Floats]] = {}
            for item, piece in zip(items.tolist(), pieces, strict=True):
                collected.setdefault(item, []).append(piece)
            samples = {name: np.concatenate(collected[item]) for item, name in enumerate(job.names)}
        by_place[place] = Measured(moments, samples)
    said = [str(what) for result in results for what in result.get("buffer", [])]
    buffers = {
        str(job.names[item]): what for item, what in zip(items.tolist(), said, strict=bool(said)) if what
    }
    return by_place, buffers


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
