"""Compute the moments of one checkpoint: split its tensors into tasks, run the tasks, add up their sums.

A task is pure: it holds checkpoints (which pickle as their index) and the range of values to sum. If a
checkpoint b and its references are stored in the same way, the kernel receives addresses and reads the
mapped bytes in place, thousands of small tensors per call. If dtype or sharding differ, or the storage is
8-bit or integer, values are first decoded to float64, one chunk at a time.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgrowth import engine
from normgrowth.checkpoints.checkpoint import DIRECT, STORAGE, Checkpoint, decode
from normgrowth.errors import InputError, UnsupportedDtype
from normgrowth.moments.moments import CHUNK, Moments

Bits = NDArray[np.generic]
Columns = NDArray[np.float64]

TASK_VALUES = 8 * CHUNK  # large enough to amortize the cost of a task, small enough to balance the load
TASK_TENSORS = 2048


@dataclass(frozen=True)
class Task:
    """Either several whole tensors of at most one chunk each, or a range of values of one piece of one tensor."""

    checkpoints: tuple[Checkpoint, ...]  # b, then its references
    items: range  # indices into the lists below
    names: Sequence[str]
    numel: NDArray[np.int64]
    dtypes: list[str]  # "" where checkpoints differ
    piece: int = 0
    start: int = 0
    stop: int | None = None  # None: whole tensors
    alike: bool = True  # all checkpoints store that tensor in the same pieces


def measure_checkpoint(
    current: Checkpoint,
    references: Sequence[tuple[str, Checkpoint]],
    names: Sequence[str],
    *,
    workers: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> Moments:
    """Return the moments of each named tensor of `current`, against each reference.

    advance: called after each task with the number of values it read from each checkpoint.
    """
    checkpoints = (current, *(checkpoint for _, checkpoint in references))
    dtypes = check_alike(checkpoints, names)
    numel = np.array([current.tensors[name].numel for name in names], np.int64)
    tasks = list(_tasks(checkpoints, names, numel, dtypes))
    results: list[Columns] = [np.empty(0)] * len(tasks)
    for position, columns in engine.map(run_task, tasks, workers=workers):
        results[position] = columns
        if advance:
            task = tasks[position]
            done = (
                numel[task.items.start : task.items.stop].sum()
                if task.stop is None
                else task.stop - task.start
            )
            advance(int(done))
    for checkpoint in checkpoints:
        checkpoint.check_unchanged()
    # Rows are added in the order of tensors and chunks, so the number of workers does not change the result.
    rows = np.concatenate([np.zeros((0, 3 + 3 * len(references))), *results])
    item = np.concatenate([np.zeros(0, np.intp), *map(_row_items, tasks, results)])
    return Moments.from_columns(numel, added_rows(rows, item, len(names)), [label for label, _ in references])


def _row_items(task: Task, result: Columns) -> NDArray[np.intp]:
    return (
        np.arange(task.items.start, task.items.stop)
        if task.stop is None
        else np.full(len(result), task.items.start)
    )


def added_rows(rows: Columns, item: NDArray[np.intp], size: int) -> Columns:
    columns = np.zeros((size, rows.shape[1]))
    for c in range(rows.shape[1]):
        if c == 1:
            np.maximum.at(columns[:, c], item, rows[:, c])
        else:
            columns[:, c] = np.bincount(item, rows[:, c], size)
    return columns


def check_dtypes(checkpoint: Checkpoint, names: Sequence[str]) -> list[str]:
    """Return the dtype of each tensor; raise `UnsupportedDtype` for one that cannot be measured."""
    dtypes = [checkpoint.tensors[name].dtype for name in names]
    for dtype in set(dtypes) - STORAGE.keys():
        name = names[dtypes.index(dtype)]
        raise UnsupportedDtype(checkpoint.label, name, dtype)
    return dtypes


def check_alike(checkpoints: Sequence[Checkpoint], names: Sequence[str]) -> list[str]:
    """Return the dtype of each tensor, "" where it differs between checkpoints; raise if shapes differ."""
    current = checkpoints[0]
    dtypes = check_dtypes(current, names)
    for other in checkpoints[1:]:
        if other.tensors is current.tensors:
            continue
        check_dtypes(other, names)
        for i, name in enumerate(names):
            mine, its = current.tensors[name], other.tensors[name]
            if its.shape != mine.shape:
                raise InputError(
                    f"{current.label}: tensor {name} has shape {list(mine.shape)}, but {list(its.shape)} "
                    f"in {other.label}; --exclude it to trace the rest"
                )
            if its.dtype != mine.dtype:
                dtypes[i] = ""
    return dtypes


def _tasks(
    checkpoints: tuple[Checkpoint, ...], names: Sequence[str], numel: NDArray[np.int64], dtypes: list[str]
) -> Iterator[Task]:
    def task(first: int, stop: int, *part: Any) -> Task:
        return Task(checkpoints, range(first, stop), names, numel, dtypes, *part)

    reads_whole = any(checkpoint.reads_whole for checkpoint in checkpoints)
    first, values = 0, 0  # the current batch of small tensors
    for item, (name, count) in enumerate(zip(names, numel.tolist(), strict=True)):
        if count <= CHUNK:
            if item > first and (values + count > TASK_VALUES or item - first >= TASK_TENSORS):
                yield task(first, item)
                first, values = item, 0
            values += count
            continue
        if item > first:
            yield task(first, item)
        first, values = item + 1, 0
        boxes = getattr(checkpoints[0].tensors[name].layout, "boxes", None)
        alike = stored_alike(checkpoints, name)
        sizes = [int(np.prod(size, dtype=np.int64)) for _, size in boxes] if boxes and alike else [count]
        for piece, size in enumerate(sizes):
            part = size if reads_whole or not alike else TASK_VALUES
            for start in range(0, size, max(part, 1)):
                yield task(item, item + 1, piece, start, min(start + part, size), alike)
    if len(names) > first:
        yield task(first, len(names))


def stored_alike(checkpoints: Sequence[Checkpoint], name: str) -> bool:
    layout = checkpoints[0].tensors[name].layout
    return all(checkpoint.tensors[name].layout == layout for checkpoint in checkpoints[1:])


def run_task(task: Task) -> Columns:
    """Return the columns of the kernel: one row per tensor, or per chunk of a single tensor."""
    columns = _columns(task)
    for checkpoint in task.checkpoints:
        checkpoint.check_whole()
    return columns


def _columns(task: Task) -> Columns:
    names = task.names[task.items.start : task.items.stop]
    if task.stop is not None:
        name = names[0]
        arrays = [
            (c.piece(name, task.piece) if task.alike else c.dense(name))[task.start : task.stop]
            for c in task.checkpoints
        ]
        return sum_arrays([c.tensors[name].dtype for c in task.checkpoints], arrays)
    out = np.zeros((len(names), 3 * len(task.checkpoints)))
    for row in _sum_in_place(task, out):
        name = names[row]
        arrays = [c.dense(name) for c in task.checkpoints]
        if arrays[0].size:
            out[row] = sum_arrays([c.tensors[name].dtype for c in task.checkpoints], arrays)[0]
    return out


def _sum_in_place(task: Task, out: Columns) -> list[int]:
    """Sum whole tensors in mapped files where all checkpoints store them alike; return the remaining rows."""
    mine = slice(task.items.start, task.items.stop)
    found = [
        checkpoint.addresses(task.names) for checkpoint in task.checkpoints
    ]  # keeps the files mapped until the sums are done
    table = np.stack([addresses[mine] for addresses, _ in found], axis=1)
    counts, dtypes = task.numel[mine], task.dtypes[mine]
    rest = (table == 0).any(axis=1)
    for dtype in set(dtypes):
        stored = (
            np.array([d == dtype for d in dtypes]) if len(set(dtypes)) > 1 else np.ones(len(dtypes), bool)
        )
        if dtype not in DIRECT:
            rest |= stored
            continue
        rows = np.flatnonzero(stored & ~rest)
        part = np.zeros((len(rows), out.shape[1]))
        sum_at(dtype, table[rows], counts[rows], part)
        out[rows] = part
    return np.flatnonzero(rest).tolist()


def sum_arrays(dtypes: list[str], arrays: list[Bits]) -> Columns:
    """Sum arrays of any storage dtype; return one row per chunk."""
    size = arrays[0].size
    dtype = dtypes[0]
    starts = np.arange(0, size, CHUNK, dtype=np.int64)
    counts = np.minimum(CHUNK, size - starts)
    out = np.zeros((len(starts), 3 * len(arrays)))
    if dtype in DIRECT and dtypes.count(dtype) == len(dtypes):
        table = np.stack([a.ctypes.data + starts * a.itemsize for a in arrays], axis=1)
        sum_at(dtype, table, counts, out)
        return out
    for row, start in enumerate(starts):
        decoded = [
            np.ascontiguousarray(decode(kind, a[start : start + CHUNK]))
            for kind, a in zip(dtypes, arrays, strict=True)
        ]
        table = np.array([[a.ctypes.data for a in decoded]], np.int64)
        sum_at("F64", table, counts[row : row + 1], out[row : row + 1])
    return out


def sum_at(dtype: str, table: NDArray[np.int64], counts: NDArray[np.int64], out: Columns) -> None:
    """Run the kernel on a table of addresses: one column for b, then one for each reference."""
    from normgrowth.moments import kernel  # imported late because it loads the compiler

    kind = np.empty(0, STORAGE[dtype])
    references = table.shape[1] - 1
    for first in range(0, max(references, 1), 2):  # the kernel takes two references at a time
        last = min(first + 2, references)
        part = np.zeros((len(counts), 3 + 3 * (last - first)))
        kernel.sums(kind, np.ascontiguousarray(table[:, [0, *range(first + 1, last + 1)]]), counts, part)
        out[:, :3] = part[:, :3]
        out[:, 3 + 3 * first : 3 + 3 * last] = part[:, 3:]
