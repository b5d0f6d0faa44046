"""Ray: tasks on the machines of a cluster, or on a local Ray that runs as long as the engine.

The function and its data are sent once; then only tasks and results are sent. Every machine needs the same version and
code digest of normgrowth. Each task checks this, because machines can join and leave.
"""

import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from normgrowth.engine import TaskTimeout, WorkerCrashed, available_cores, code_digest
from normgrowth.errors import InputError

KNOCK_SECONDS = 5.0
JOIN_SECONDS = 60.0
GRACE_SECONDS = 10.0  # for a task over its time limit to end by itself, before its process is killed


class Cluster:
    """A running Ray at an address (`host:port`, `ray://host:port`, `auto`), or else a new one on this machine."""

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        ray = _ray()
        if address is not None:
            _check_address(address)
        if ray.is_initialized():
            raise InputError("this process is already connected to a Ray cluster; call ray.shutdown() first")
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
        if address is None:
            cores = workers or available_cores()
            ray.init(address="local", num_cpus=cores, include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
        self.workers = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._remote = ray.remote(num_cpus=1, max_retries=0)(_runner(version("normgrowth"), code_digest()))
        self._function: tuple[Any, Any] | None = None  # the last function, and its reference in the cluster
        self._running: dict[Any, _Running] = {}

    def submit(self, function: Callable[[Any], Any], task: Any, limit: float | None) -> Any:
        ray = _ray()
        if self._function is None or self._function[0] is not function:
            self._function = function, ray.put(ray.cloudpickle.dumps(function))
        handle = self._remote.remote(self._function[1], ray.cloudpickle.dumps(task), limit, GRACE_SECONDS)
        began = time.monotonic() if len(self._running) < self.workers else None
        self._running[handle] = _Running(limit, began)
        return handle

    def ended(self, handles: Collection[Any]) -> Collection[Any]:
        return _ray().wait(list(handles), num_returns=1)[0]

    def result(self, handle: Any) -> Any:
        ray = _ray()
        task = self._forget(handle)
        try:
            how, value = ray.get(handle)
        except ray.exceptions.RayError as error:
            if task is not None and task.is_over():
                raise TaskTimeout from error  # its process was killed for exceeding the limit
            raise WorkerCrashed((str(error).strip() or type(error).__name__).splitlines()[0]) from error
        if how == "over":
            raise TaskTimeout
        if how == "unfit":
            raise InputError(value)
        found = pickle.loads(value)
        if how == "raised":
            raise found
        return found

    def cancel(self, handle: Any) -> None:
        self._forget(handle)
        _ray().cancel(handle, force=True)

    def _forget(self, handle: Any) -> "_Running | None":
        """Remove an ended task, and record that the next waiting task begins."""
        task = self._running.pop(handle, None)
        for other in self._running.values():
            if other.began is None:
                other.began = time.monotonic()
                break
        return task

    def close(self) -> None:
        _ray().shutdown()


@dataclass
class _Running:
    limit: float | None
    began: float | None  # None: still waiting for a worker

    def is_over(self) -> bool:
        """Whether the task exceeded its limit. Its start is recorded late, so half of the grace period suffices."""
        if self.limit is None or self.began is None:
            return False
        return time.monotonic() - self.began > self.limit + GRACE_SECONDS / 2


def _ray() -> Any:
    try:
        # Otherwise Ray reports usage statistics.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray
    except ImportError as error:
        raise InputError("--engine ray needs Ray: pip install 'normgrowth[ray]'") from error
    return ray


def _check_address(address: str) -> None:
    """Raise InputError if no Ray listens at the address: ray.init would wait for minutes."""
    if address != "auto":
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        if not colon or not port.isdecimal() or not host:
            raise InputError(f"--ray-address {address}: must be host:port, ray://host:port or auto")
        try:
            socket.create_connection((host.strip("[]"), int(port)), KNOCK_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise InputError(f"--ray-address {address}: cannot connect: {error}") from error
    join = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"
    try:
        tried = subprocess.run(
            [sys.executable, "-c", join, address], capture_output=True, text=True, timeout=JOIN_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise InputError(
            f"--ray-address {address}: no Ray answered there within {JOIN_SECONDS:g} seconds"
        ) from None
    if "AuthenticationError" in tried.stderr:
        raise InputError(
            f"--ray-address {address}: the cluster requires its token: set RAY_AUTH_MODE=token, with the token in "
            "~/.ray/auth_token or RAY_AUTH_TOKEN"
        )
    if tried.returncode:
        said = [line for line in tried.stderr.strip().splitlines() if line.strip()] or ["unknown reason"]
        raise InputError(f"--ray-address {address}: cannot join the cluster: {said[-1]}")


def _runner(wanted: str, code: str) -> Callable[[Any, bytes, float | None, float], tuple[str, Any]]:
    """The function that runs on a machine. It is sent by value, because the machine may not have this package."""

    def run(function: bytes, task: bytes, limit: float | None, grace: float) -> tuple[str, Any]:
        import _thread
        import faulthandler
        import importlib.metadata
        import pickle
        import platform
        import threading

        def unfit(what: str) -> tuple[str, str]:
            return "unfit", (
                f"machine {platform.node()} {what}; every machine of a cluster needs normgrowth {wanted}"
            )

        try:
            here = importlib.metadata.version("normgrowth")
        except importlib.metadata.PackageNotFoundError:
            return unfit("has no normgrowth")
        if here != wanted:
            return unfit(f"has normgrowth {here}")
        try:
            from normgrowth.engine import code_digest, unpacked

            if code_digest() != code:
                return unfit(f"has different code for normgrowth {here}")

            call, argument = unpacked(function), pickle.loads(task)
        except (ImportError, AttributeError) as error:
            return unfit(f"cannot load the task ({error})")
        over = threading.Event()

        def watch() -> None:
            over.set()
            _thread.interrupt_main()

        soft = threading.Timer(limit or 0.0, watch)
        if limit is not None:
            soft.daemon = True
            soft.start()
            # Ends the process even if a call holds the interpreter lock.
            faulthandler.dump_traceback_later(limit + grace, exit=True, file=2)
        try:
            return "done", pickle.dumps(call(argument))
        except KeyboardInterrupt:
            if over.is_set():
                return "over", None
            raise
        except Exception as error:  # the driver raises it
            try:
                sent = pickle.dumps(error)
                pickle.loads(sent)  # some exceptions can be pickled but not unpickled
                return "raised", sent
            except Exception:  # pickling runs code of the exception's class, which may raise anything
                return "raised", pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
        finally:
            soft.cancel()
            faulthandler.cancel_dump_traceback_later()

    return run
