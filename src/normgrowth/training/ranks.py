"""One process among several: which one writes, and how all of them learn of what went wrong on it."""

import torch


def is_parallel() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def is_main() -> bool:
    return not is_parallel() or torch.distributed.get_rank() == 0


def world_size() -> int:
    return torch.distributed.get_world_size() if is_parallel() else 1


def of_main(problem: str | None) -> str | None:
    """What rank 0 says, on every rank: one that failed alone would leave the others waiting for it."""
    if not is_parallel():
        return problem
    told = [problem]
    torch.distributed.broadcast_object_list(told, src=0)
    return told[0]
