"""Processes on this machine, for tasks that hold the interpreter lock, hang or crash.

The pool is Pebble's. In the pool of the standard library, one crashed worker ends the whole pool with all tasks, and a
single task cannot be stopped.
"""

import multiprocessing
import pickle
import tempfile
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any
from uuid import uuid4

from normgrowth.engine import RETRIES, TaskTimeout, WorkerCrashed, available_cores
from normgrowth.errors import InputError

UNGUARDED = (
    "worker processes cannot start: they import the script that is run, which failed (its error is above); put its "
    'code under if __name__ == "__main__":'
)


class Processes:
    """New Python processes, each reused for the next task."""

    def __init__(self, workers: int | None = None) -> None:
        # True in a worker that imports an unguarded script, which would start its own workers.
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise InputError(UNGUARDED)
        self.workers = workers or available_cores()
        self._folder = tempfile.TemporaryDirectory(prefix="normgrowth-")
        self._function: tuple[Any, Path] | None = None  # the last function, and its pickle file
        self._started = Path(self._folder.name, "started")  # exists once a worker has imported the script
        self._pool, self._restarts = self._new_pool(), 0

    def _new_pool(self) -> Any:
        from pebble import ProcessPool

        self._processes: list[SpawnProcess] = []  # of this pool, for their exit codes

        def started(*args: Any, **options: Any) -> SpawnProcess:
            self._processes.append(SpawnProcess(*args, **options))
            return self._processes[-1]

        # A forked process would copy locks that other threads of this process hold.
        context: Any = SpawnContext()
        context.Process = started
        return ProcessPool(self.workers, context=context, initializer=Path.touch, initargs=(self._started,))

    def submit(self, function: Callable[[Any], Any], task: Any, limit: float | None) -> Future[Any]:
        if not self._pool.active:
            self._pool.stop()
            self._pool.join()
            self._pool, self._restarts = self._new_pool(), self._restarts + 1
        if self._function is None or self._function[0] is not function:
            path = Path(self._folder.name, uuid4().hex)
            path.write_bytes(pickle.dumps(function))
            self._function = function, path
        return self._pool.schedule(_call, args=(self._function[1], task), timeout=limit)

    def ended(self, handles: Collection[Future[Any]]) -> Collection[Future[Any]]:
        return wait(handles, return_when=FIRST_COMPLETED).done

    def result(self, handle: Future[Any]) -> Any:
        from pebble import ProcessExpired

        try:
            return handle.result()
        except ProcessExpired as error:
            raise WorkerCrashed(f"exit code {error.exitcode}") from error
        except BrokenProcessPool as error:
            # A worker ended before any had a task: it failed to import the script (exit code 1), or was killed (< 0).
            failed = any((process.exitcode or 0) > 0 for process in self._processes)
            if not self._started.exists() and (failed or self._restarts >= RETRIES):
                raise InputError(UNGUARDED) from None
            raise WorkerCrashed("the worker ended before it started a task") from error
        except TimeoutError as error:
            if error.__cause__ is None:  # a TimeoutError of the task itself has its traceback as cause
                raise TaskTimeout from error
            raise

    def cancel(self, handle: Future[Any]) -> None:
        handle.cancel()

    def close(self) -> None:
        self._pool.stop()
        self._pool.join()
        self._folder.cleanup()


def _call(function: Path, task: Any) -> Any:
    return _read(function)(task)


@lru_cache(maxsize=1)
def _read(path: Path) -> Callable[[Any], Any]:
    """Unpickle the function once per process, because it may be large. The file is trusted: `submit` wrote it."""
    return pickle.loads(path.read_bytes())
