"""Process groups: which rank writes, and how its errors reach all ranks."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def process_group() -> Iterator[None]:
    """Join the process group of torchrun, if there is one."""
    alone = int(os.environ.get("WORLD_SIZE", "1")) < 2 or is_parallel()
    if alone:
        yield
        return
    # Objects are broadcast over gloo on the CPU: with nccl, every rank would put them on the same GPU.
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def is_parallel() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def rank() -> int:
    return torch.distributed.get_rank() if is_parallel() else 0


def is_main() -> bool:
    return rank() == 0


def world_size() -> int:
    return torch.distributed.get_world_size() if is_parallel() else 1


def shared(found: Any) -> Any:
    """The object of rank 0, on every rank."""
    if not is_parallel():
        return found
    told = [found]
    torch.distributed.broadcast_object_list(told, src=0)
    return told[0]


def of_main(problem: str | None) -> str | None:
    """The problem of rank 0, on every rank: if rank 0 failed alone, the others would wait for it."""
    return shared(problem)
