"""Which engine a user asked for."""

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
    """The engine for the while; None for threads of this process. processes: local work needs its own."""
    if name == "local" and address is not None:
        raise InputError("--ray-address is that of a Ray cluster: it needs --engine ray")
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
