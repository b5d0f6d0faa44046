"""Workers of this machine that are killed from outside: their tasks are run again, and the work goes on."""

import multiprocessing
import os
import signal
import time
from contextlib import closing

import pytest

from normgrowth.engine import WorkerCrashed, map_with_failures
from normgrowth.engine.processes import Processes


def workers() -> list[int]:
    return [child.pid for child in multiprocessing.active_children() if child.pid and "pebble" in child.name]


def slow_square(x: int) -> int:
    time.sleep(0.4)
    return x * x


def test_a_worker_killed_before_it_has_a_task_is_replaced():
    """While it still imports: no task is lost, and nobody is told to guard a script that is guarded."""
    with closing(Processes(1)) as engine:
        handle = engine.submit(slow_square, 3, None)
        for _ in range(2):
            while not (found := workers()):
                time.sleep(0.005)
            os.kill(found[0], signal.SIGKILL)
            with pytest.raises(WorkerCrashed):
                engine.result(handle)
            handle = engine.submit(slow_square, 3, None)
        assert engine.result(handle) == 9


def test_tasks_go_on_when_workers_are_killed():
    """While they work, wait, or start again."""
    found: dict[int, int] = {}
    with closing(Processes(2)) as engine:
        for place, result in map_with_failures(slow_square, range(12), on=engine):
            found[place] = result
            if len(found) in (1, 4, 5, 8):
                for worker in workers()[: 1 + (len(found) == 8)]:
                    os.kill(worker, signal.SIGKILL)
    assert found == {i: i * i for i in range(12)}
