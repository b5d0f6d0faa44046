"""Measure the kernel on mapped files, compared with straightforward numpy, torch, and a plain sum of the bytes."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np
import torch
from files import make_pair
from numba import njit
from safetensors.numpy import load_file

from normgrowth.checkpoints.formats.safetensors import read_safetensors
from normgrowth.engine import available_cores
from normgrowth.trace.by_step import measure_checkpoint

ROUNDS = 9


def ours(paths: list[Path]) -> float:
    a, b = map(read_safetensors, paths)
    moments = measure_checkpoint(b, [("previous", a)], list(b.tensors))
    a.close()
    b.close()
    return float(moments.against["previous"].delta.sum())


def numpy_the_obvious_way(paths: list[Path]) -> float:
    """Load all tensors, concatenate them, convert to float64; compute norms, dot product and difference."""
    a, b = (
        np.concatenate([t.ravel() for t in load_file(path).values()]).astype(np.float64) for path in paths
    )
    delta = b - a
    _ = np.linalg.norm(a), np.linalg.norm(b), np.dot(a, delta)
    return float(np.linalg.norm(delta) ** 2)


def torch_in_chunks(paths: list[Path]) -> float:
    """Compute the same sums with torch on mapped tensors, in cache-sized chunks, in float64."""
    a, b = (read_safetensors(path) for path in paths)

    def one(name: str) -> float:
        total = 0.0
        x, y = (torch.from_numpy(c.pieces(name)[0].view(np.float32).copy(order="K")) for c in (a, b))
        for start in range(0, len(x), 1 << 15):
            p, q = x[start : start + (1 << 15)].double(), y[start : start + (1 << 15)].double()
            d = q - p
            _ = torch.dot(q, q), torch.dot(p, p), torch.dot(p, d), q.abs().max()
            total += float(torch.dot(d, d))
        return total

    torch.set_num_threads(1)
    with ThreadPoolExecutor(available_cores()) as pool:
        return sum(pool.map(one, b.tensors))


@njit(nogil=True, fastmath=True)
def _add(words):
    total = np.uint64(0)
    for i in range(len(words)):
        total += words[i]
    return total


def plain_sum(paths: list[Path]) -> float:
    """The upper bound: one integer addition per 8 mapped bytes, on all cores."""
    checkpoints = [read_safetensors(path) for path in paths]
    pieces = [
        piece.view(np.uint8)[: piece.nbytes // 8 * 8].view(np.uint64)
        for c in checkpoints
        for name in c.tensors
        for piece in c.pieces(name)
    ]
    with ThreadPoolExecutor(available_cores()) as pool:
        return float(sum(pool.map(_add, pieces)))


def timed(function: Callable[[list[Path]], float], paths: list[Path]) -> float:
    start = time.perf_counter()
    function(paths)
    return time.perf_counter() - start


def run(scratch: Path) -> dict[str, float]:
    single = make_pair(scratch / "f32", 430)
    half = make_pair(scratch / "bf16", 430, dtype="bfloat16")
    exact, close = numpy_the_obvious_way(single), ours(single)
    assert abs(exact - close) < 1e-9 * exact, "then the comparison would mean nothing"
    sides = {
        "ours": (ours, single),
        "plain sum": (plain_sum, single),
        "ours, bfloat16": (ours, half),
        "torch in chunks": (torch_in_chunks, single),
    }
    for function, paths in sides.values():
        function(paths)  # compile, and bring the files into the page cache
    times: dict[str, list[float]] = {name: [] for name in sides}
    obvious: list[float] = []
    for number in range(ROUNDS):
        for name, (function, paths) in sides.items():
            times[name].append(timed(function, paths))
        if number % 3 == 1:  # slow: only in every third round
            obvious.append(timed(numpy_the_obvious_way, single) / times["ours"][-1])
    gigabytes = 2 * single[0].stat().st_size / 1e9

    def ratio(one: str, other: str) -> float:
        return median(a / b for a, b in zip(times[one], times[other], strict=True))

    return {
        "pair of 430 MB, float32: GB/s": gigabytes / median(times["ours"]),
        "plain multi-threaded sum: GB/s": gigabytes / median(times["plain sum"]),
        "speedup over straightforward numpy": median(obvious),
        "rate relative to a plain sum of the bytes": ratio("plain sum", "ours"),
        "bfloat16 rate per byte relative to float32": ratio("ours", "ours, bfloat16"),
        "faster than torch in chunks": ratio("torch in chunks", "ours"),
    }


if __name__ == "__main__":
    import sys

    for name, value in run(Path(sys.argv[1])).items():
        print(f"{value:8.2f}  {name}")
