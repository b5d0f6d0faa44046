"""Map a pure function over tasks: on the cores of this machine, or on a cluster.

The one place that decides where work runs. A task does not know what runs it: it pickles, has no effect but its
result, and may be run again. There are three engines:

    Threads      here, in this process: for compiled code that lets go of the interpreter lock
    Processes    here, one process for each core: for training (`engine.processes`)
    Cluster      on Ray, which exists and is kept well (`engine.cluster`)

If a worker dies its task is run again, up to three times more; what a task raises ends the work. A thread cannot be
stopped from outside, so long tasks call `go_on` now and then, which ends those that nobody waits for any more.
"""

import gc
import hashlib
import os
import pickle
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

from normgrowth.errors import InputError

Task = TypeVar("Task")
Result = TypeVar("Result")

RETRIES = 3  # of a task whose worker died


class WorkerDied(Exception):
    """What ran a task is gone: killed, out of memory, its machine switched off."""


class OverTime(Exception):
    """A task took longer than it may."""


class Abandoned(Exception):
    """Ends a task that nobody waits for any more."""


# Of the task that runs here.
_abandoned: ContextVar[threading.Event | None] = ContextVar("abandoned", default=None)


def go_on() -> None:
    """To be called by a task that takes long. Its own threads need a copy of its context."""
    event = _abandoned.get()
    if event is not None and event.is_set():
        raise Abandoned


def pause(seconds: float) -> None:
    """Sleep, as a task that may be abandoned in the middle of it."""
    event = _abandoned.get()
    if event is None:
        time.sleep(seconds)
    else:
        event.wait(seconds)
        go_on()


@dataclass(frozen=True)
class Lost:
    """Instead of a result: why there is none."""

    why: str


@lru_cache(maxsize=1)
def unpacked(packed: bytes) -> Any:
    """A function that came from the process that gives out tasks; once, however large what it holds."""
    return pickle.loads(packed)


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Of all modules of this package: two machines with the same version may have other code."""
    root = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(
            f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes().replace(b"\r\n", b"\n")
        )
    return digest.hexdigest()[:16]


class Engine(Protocol):
    """What runs tasks, until it is closed. `result` raises what the task raised, WorkerDied or OverTime."""

    workers: int

    def submit(self, function: Callable[[Any], Any], task: Any, limit: float | None) -> Any: ...

    def ended(self, handles: Collection[Any]) -> Collection[Any]:
        """Wait until at least one has ended."""
        ...

    def result(self, handle: Any) -> Any: ...

    def cancel(self, handle: Any) -> None:
        """Nobody waits for it any more."""
        ...

    def close(self) -> None: ...


def available_cores() -> int:
    """The cores that this process may use, which a container or scheduler can limit."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def no_collection() -> Iterator[None]:
    """Pause Python's garbage collector: it would look through 100,000 new objects again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Threads:
    """Of this process. They cannot be stopped, so a time limit means nothing here."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or available_cores()
        self._closed = threading.Event()
        self._executor = ThreadPoolExecutor(self.workers, thread_name_prefix="normgrowth")

    def submit(self, function: Callable[[Any], Any], task: Any, limit: float | None) -> Future[Any]:
        del limit
        context = Context()
        context.run(_abandoned.set, self._closed)
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


def map(
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    *,
    workers: int | None = None,
    on: Engine | None = None,
) -> Generator[tuple[int, Result], None, None]:
    """Yield (position of the task, its result) as results come.

    Tasks are drawn as workers become free, so a generator of them never runs far ahead. The first
    error ends the work and is raised here; so does leaving the loop early. on: an engine, else threads.
    """
    engine = on or Threads(workers)
    try:
        for position, result in _run(function, tasks, engine, None):
            if isinstance(result, Lost):
                raise InputError(f"task {position} was lost: {result.why}")
            yield position, result
    finally:
        if on is None:
            engine.close()


def map_or_lose(
    function: Callable[[Task], Result], tasks: Iterable[Task], *, on: Engine, limit: float | None = None
) -> Iterator[tuple[int, Result | Lost]]:
    """The same where a task without a result is one of the findings: it took over `limit` seconds, or kills workers."""
    return _run(function, tasks, on, limit)


def _run(
    function: Callable[[Task], Result], tasks: Iterable[Task], engine: Engine, limit: float | None
) -> Iterator[tuple[int, Result | Lost]]:
    numbered = enumerate(tasks)
    running: dict[Any, tuple[int, Task, int]] = {}  # handle -> place, task, workers that died of it
    try:
        while True:
            for position, task in islice(numbered, 2 * engine.workers - len(running)):
                running[engine.submit(function, task, limit)] = position, task, 0
            if not running:
                return
            for handle in engine.ended(running):
                position, task, deaths = running.pop(handle)
                try:
                    yield position, engine.result(handle)
                except OverTime:
                    yield position, Lost(f"it took more than {limit:g} seconds")
                except WorkerDied as error:
                    if deaths < RETRIES:
                        running[engine.submit(function, task, limit)] = position, task, deaths + 1
                    else:
                        yield position, Lost(f"{deaths + 1} workers died of it, the last so: {error}")
    finally:
        for handle in running:
            engine.cancel(handle)
