"""One process among several: which one writes, and how all of them learn of what went wrong on it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def joined() -> Iterator[None]:
    """With the other processes that torchrun started, if it did."""
    alone = int(os.environ.get("WORLD_SIZE", "1")) < 2 or is_parallel()
    if alone:
        yield
        return
    # What is no tensor goes over the processors: nccl would have every rank put it on the same GPU.
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
    """What rank 0 has, on every rank."""
    if not is_parallel():
        return found
    told = [found]
    torch.distributed.broadcast_object_list(told, src=0)
    return told[0]


def of_main(problem: str | None) -> str | None:
    """What rank 0 says, on every rank: one that failed alone would leave the others waiting for it."""
    return shared(problem)
