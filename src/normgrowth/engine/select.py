"""The engine that the user chose."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from normgrowth.engine import Engine
from normgrowth.errors import InputError

Name = Literal["local", "ray"]


@contextmanager
def chosen(
    name: Name = "local", address: str | None = None, workers: int | None = None, *, processes: bool = False
) -> Iterator[Engine | None]:
    """Context manager for the engine; None means threads. processes: use processes instead of threads if local."""
    if name == "local" and address is not None:
        raise InputError("--ray-address requires --engine ray")
    engine: Engine | None = None
    if name == "ray":
        from normgrowth.engine.ray_cluster import Cluster

        engine = Cluster(address, workers)
    elif processes:
        from normgrowth.engine.processes import Processes

        engine = Processes(workers)
    try:
        yield engine
    finally:
        if engine is not None:
            engine.close()
