"""The engine that the user chose."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
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
    if name == "ray":
        from normgrowth.engine.ray_cluster import Cluster

        with closing(Cluster(address, workers)) as cluster:
            yield cluster
    elif processes:
        from normgrowth.engine.processes import Processes

        with closing(Processes(workers)) as pool:
            yield pool
    else:
        yield None
