"""Map a pure function over tasks, on all cores of this machine.

The one place that decides where work runs. Threads suffice here because the heavy work is compiled
code that lets go of the interpreter lock; a cluster can take the same tasks later, since they are
pure and pickle.
"""

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


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


def map(
    function: Callable[[Task], Result], tasks: Iterable[Task], *, workers: int | None = None
) -> Iterator[tuple[int, Result]]:
    """Yield (position of the task, its result) as results come.

    Tasks are drawn as workers become free, so a generator of them never runs far ahead. The first
    error ends the work and is raised here; so does leaving the loop early.
    """
    workers = workers or available_cores()
    numbered = enumerate(tasks)
    executor = ThreadPoolExecutor(workers, thread_name_prefix="normgrowth")
    running: dict[Future[Result], int] = {}
    try:
        while True:
            for position, task in islice(numbered, 2 * workers - len(running)):
                running[executor.submit(function, task)] = position
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield running.pop(future), future.result()
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
