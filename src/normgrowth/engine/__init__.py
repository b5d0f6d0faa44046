"""Map a pure function over tasks: on the cores of this machine, or on a cluster.

A task must be picklable and have no side effects, because it may run more than once. There are three engines:

    Threads      in this process: for compiled code that releases the interpreter lock
    Processes    on this machine, one process per core: for training (`engine.processes`)
    Cluster      on Ray (`engine.ray_cluster`)

If a worker crashes, its task is retried up to three times. If a task raises an exception, all work stops. A thread
cannot be stopped from outside, so long tasks regularly call `check_cancelled`, which raises if the result is no longer
needed.
"""

import gc
import hashlib
import os
import pickle
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

from normgrowth.errors import InputError

Task = TypeVar("Task")
Result = TypeVar("Result")
Progress = Callable[[int, int, str], None]  # done, total, label of what is being done

RETRIES = 3  # how often a task is repeated after its worker crashed


class Steps:
    """Reports each step of a measurement to its progress function."""

    def __init__(self, progress: Progress | None, total: int, label: str) -> None:
        self.progress, self.total, self.label, self.done = progress, total, label, 0

    def __call__(self) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total, self.label)


class WorkerCrashed(Exception):
    """The worker of a task ended: it was killed or ran out of memory, or its machine was shut down."""


class TaskTimeout(Exception):
    """A task exceeded its time limit."""


class Cancelled(Exception):
    """Ends a task whose result is no longer needed."""


# The cancellation event of the task that runs in this context.
_cancelled: ContextVar[threading.Event | None] = ContextVar("cancelled", default=None)


def check_cancelled() -> None:
    """Raise Cancelled if the result is no longer needed. Threads of a task need a copy of its context."""
    event = _cancelled.get()
    if event is not None and event.is_set():
        raise Cancelled


def pause(seconds: float) -> None:
    """Sleep; raises Cancelled as soon as the task is cancelled."""
    event = _cancelled.get()
    if event is None:
        time.sleep(seconds)
    else:
        event.wait(seconds)
        check_cancelled()


@dataclass(frozen=True)
class TaskFailed:
    """Replaces the result of a failed task. why: a short reason."""

    why: str


@lru_cache(maxsize=1)
def unpacked(packed: bytes) -> Any:
    """The function that the driver sent, unpickled only once because it may hold much data."""
    return pickle.loads(packed)


@lru_cache
def code_digest(package: str = "") -> str:
    """A digest of this package's source, because machines with the same version can have different code.

    package: only this package inside normgrowth, for example "limit".
    """
    root = Path(__file__).parent.parent / package
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(
            f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes().replace(b"\r\n", b"\n")
        )
    return digest.hexdigest()[:16]


class Engine(Protocol):
    """Runs tasks until it is closed. `result` raises the exception of the task, WorkerCrashed or TaskTimeout."""

    workers: int

    def submit(self, function: Callable[[Any], Any], task: Any, limit: float | None) -> Any: ...

    def ended(self, handles: Collection[Any]) -> Collection[Any]:
        """Wait until at least one task has ended; returns the handles of ended tasks."""
        ...

    def result(self, handle: Any) -> Any: ...

    def cancel(self, handle: Any) -> None:
        """Stop the task if possible."""
        ...

    def close(self) -> None: ...


def available_cores() -> int:
    """The number of cores that this process may use, which a container or scheduler can limit."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause Python's garbage collector, which would repeatedly scan 100,000 new objects."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Threads:
    """Threads of this process. Threads cannot be stopped, so time limits have no effect."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or available_cores()
        self._closed = threading.Event()
        self._executor = ThreadPoolExecutor(self.workers, thread_name_prefix="normgrowth")

    def submit(self, function: Callable[[Any], Any], task: Any, limit: float | None) -> Future[Any]:
        del limit
        context = Context()
        context.run(_cancelled.set, self._closed)
        return self._executor.submit(context.run, function, task)

    def ended(self, handles: Collection[Future[Any]]) -> Collection[Future[Any]]:
        return wait(handles, return_when=FIRST_COMPLETED).done

    def result(self, handle: Future[Any]) -> Any:
        return handle.result()

    def cancel(self, handle: Future[Any]) -> None:
        handle.cancel()

    def close(self) -> None:
        self._closed.set()
        self._executor.shutdown(wait=True, cancel_futures=True)


@contextmanager
def given_or_processes(engine: Engine | None) -> Iterator[Engine]:
    """The engine; without one, a process per core for the time of the context."""
    if engine is not None:
        yield engine
        return
    from normgrowth.engine.processes import Processes

    with closing(Processes()) as own:
        yield own


def map(
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    *,
    workers: int | None = None,
    on: Engine | None = None,
) -> Generator[tuple[int, Result], None, None]:
    """Yield (position of the task, its result) in the order of completion.

    Tasks are taken from the iterable as workers become free, so a generator does not run far ahead. The first
    error stops all work and is raised here; leaving the loop early also stops it. on: an engine; default threads.
    """
    engine = on or Threads(workers)
    try:
        for position, result in _run(function, tasks, engine, None):
            if isinstance(result, TaskFailed):
                raise InputError(f"task {position} failed: {result.why}")
            yield position, result
    finally:
        if on is None:
            engine.close()


def map_with_failures(
    function: Callable[[Task], Result], tasks: Iterable[Task], *, on: Engine, limit: float | None = None
) -> Iterator[tuple[int, Result | TaskFailed]]:
    """Like `map`, but a task that takes more than `limit` seconds or crashes its workers yields a TaskFailed."""
    return _run(function, tasks, on, limit)


def _run(
    function: Callable[[Task], Result], tasks: Iterable[Task], engine: Engine, limit: float | None
) -> Iterator[tuple[int, Result | TaskFailed]]:
    numbered = enumerate(tasks)
    running: dict[Any, tuple[int, Task, int]] = {}  # handle -> position, task, number of crashed workers
    try:
        while True:
            for position, task in islice(numbered, 2 * engine.workers - len(running)):
                running[engine.submit(function, task, limit)] = position, task, 0
            if not running:
                return
            for handle in engine.ended(running):
                position, task, crashes = running.pop(handle)
                try:
                    yield position, engine.result(handle)
                except TaskTimeout:
                    yield position, TaskFailed(f"it took more than {limit:g} seconds")
                except WorkerCrashed as error:
                    if crashes < RETRIES:
                        running[engine.submit(function, task, limit)] = position, task, crashes + 1
                    else:
                        yield position, TaskFailed(f"it crashed {crashes + 1} workers; last error: {error}")
    finally:
        for handle in running:
            engine.cancel(handle)
