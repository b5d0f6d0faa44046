"""Measure a trace over a network, compared with the same files on disk and with plain sockets.

python benchmarks/remote.py [--megabytes N]     measure; write remote.json and the tables of docs/cluster.md
python benchmarks/remote.py pages               make the tables again

A web server in its own process sends ranges with sendfile over loopback. Three variants read all checkpoints of a
series, alternating: a trace of the files, a trace over HTTP, and plain sockets that receive the same number of bytes
over the same number of connections and ignore them, which gives the throughput of the loopback with the same server.
The rate of a trace counts each byte of the checkpoints once. Lint is off in both traces: it reads little and computes
much.

Server and client share the cores. Processor time gives the upper bound: each byte has to be sent and received (the cost
of plain sockets on both sides) and summed (the cost of a trace of files).

The processor time per byte and per range gives an estimate for a large series.
"""

import argparse
import json
import multiprocessing
import os
import re
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import torch
from pages import DOCS, fill, table
from safetensors.torch import save_file

from normgrowth import open_source, trace
from normgrowth.checkpoints.remote.remote_checkpoint import RemoteCheckpoint
from normgrowth.moments.moments import CHUNK
from normgrowth.trace.by_stripe import SMALLEST
from normgrowth.trace.stream import CONNECTIONS

RECORD = Path(__file__).with_name("remote.json")
ROUNDS, CHECKPOINTS, SMALL = 7, 4, 1000
HELD = 4  # stripes of checkpoints that a worker holds: the current one, two to compare with, and the next one
DTYPES = ("float32", "bfloat16")
CORES = len(os.sched_getaffinity(0))


def serve(folder: str, ready: Any) -> None:
    class Files(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            path = Path(folder) / self.path.lstrip("/")
            if path.is_dir():
                return self._page(path)
            size = path.stat().st_size
            found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            start, stop = (int(found[1]), min(int(found[2]) + 1, size)) if found else (0, size)
            self.send_response(206 if found else 200)
            self.send_header("Content-Length", str(stop - start))
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
            self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
            self.end_headers()
            self.wfile.flush()
            with path.open("rb") as file:
                while start < stop:
                    start += os.sendfile(self.connection.fileno(), file.fileno(), start, stop - start)
            return None

        def _page(self, path: Path) -> None:
            page = "".join(
                f'<a href="{name.name}">{name.name}</a>' for name in sorted(path.iterdir())
            ).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    ready.put(server.server_address[1])
    server.serve_forever()


def make(folder: Path, megabytes: int, dtype: str) -> int:
    """Write a series of matrices; return the number of bytes."""
    torch.manual_seed(0)
    layers = max(1, megabytes // (16 if dtype == "float32" else 8))
    state = {
        f"model.layers.{i}.mlp.{name}.weight": torch.randn(1024, 2048).to(getattr(torch, dtype))
        for i in range(layers)
        for name in ("up_proj", "down_proj")
    }
    for step in range(CHECKPOINTS):
        for values in state.values():
            values += 0.01
        save_file(state, folder / f"step_{step}.safetensors")
    return sum(values.nbytes for values in state.values()) * CHECKPOINTS


def loopback(port: int, folder: Path) -> None:
    """Receive all bytes through plain sockets, always into the same memory."""

    def fetch(job: tuple[str, int, int]) -> None:
        name, start, stop = job
        with socket.create_connection(("127.0.0.1", port)) as connection:
            head = f"GET /{name} HTTP/1.1\r\nHost: x\r\nRange: bytes={start}-{stop - 1}\r\n\r\n"
            connection.sendall(head.encode())
            buffer, left = memoryview(bytearray(1 << 20)), stop - start
            got = b""
            while b"\r\n\r\n" not in got:
                got += connection.recv(4096)
            left -= len(got.split(b"\r\n\r\n", 1)[1])
            while left > 0:
                left -= connection.recv_into(buffer)

    jobs = []
    for path in sorted(folder.iterdir()):
        size, part = path.stat().st_size, 64 << 20
        jobs += [(path.name, start, min(start + part, size)) for start in range(0, size, part)]
    with ThreadPoolExecutor(CONNECTIONS) as threads:
        list(threads.map(fetch, jobs))


def measure(dtype: str, megabytes: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        total = make(folder, megabytes, dtype)
        context = multiprocessing.get_context("spawn")
        ready = context.Queue()
        server = context.Process(target=serve, args=(name, ready), daemon=True)
        server.start()
        port = ready.get()
        ways: dict[str, Callable[[], Any]] = {
            "local": lambda: trace(folder, lint=False).records,
            "remote": lambda: trace(f"http://127.0.0.1:{port}/", lint=False).records,
            "loopback": lambda: loopback(port, folder),
        }
        for way in ways.values():
            way()  # compile, and bring the files into the page cache
        rates: dict[str, list[float]] = {way: [] for way in ways}
        costs: dict[str, list[float]] = {way: [] for way in ways}
        sent: list[float] = []
        serving = psutil.Process(server.pid)
        for _ in range(ROUNDS):
            for way, run in ways.items():
                start, used, served = time.perf_counter(), time.process_time(), sum(serving.cpu_times()[:2])
                run()
                rates[way].append(total / (time.perf_counter() - start) / 1e9)
                costs[way].append((time.process_time() - used) / total * 1e9)
                if way == "loopback":
                    sent.append((sum(serving.cpu_times()[:2]) - served) / total * 1e9)
        per_range = range_cost(f"http://127.0.0.1:{port}/")
        server.terminate()
    ratios = [
        r / min(a, b) for r, a, b in zip(rates["remote"], rates["local"], rates["loopback"], strict=True)
    ]
    needed = sum(map(statistics.median, (costs["local"], costs["loopback"], sent)))
    lower = min(statistics.median(rates[way]) for way in ("local", "loopback"))
    return {
        "bytes": total,
        "server_seconds_per_gigabyte": round(statistics.median(sent), 3),
        "possible_over_the_lower": round(CORES / needed / lower, 3),
        "rounds": ROUNDS,
        "gigabytes_per_second": {way: round(statistics.median(values), 3) for way, values in rates.items()},
        "remote_over_the_lower": round(statistics.median(ratios), 3),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "processor_seconds_per_gigabyte": {
            way: round(statistics.median(values), 3) for way, values in costs.items()
        },
        "processor_seconds_per_range": per_range,
    }


def range_cost(address: str) -> float:
    """Return the processor time of one small range on an open connection."""
    checkpoint = open_source(address).entries[0].open()
    assert isinstance(checkpoint, RemoteCheckpoint)
    piece = next(iter(checkpoint.ranges.values()))[0]
    start = time.process_time()
    for i in range(SMALL):
        checkpoint.read(piece.file, piece.offset + 64 * i, piece.offset + 64 * (i + 1))
    return (time.process_time() - start) / SMALL


def speeds(found: dict[str, Any]) -> str:
    rows = [
        [
            dtype,
            *(f"{one['gigabytes_per_second'][way]:.2f}" for way in ("local", "loopback", "remote")),
            f"{one['remote_over_the_lower']:.2f} ({one['spread'][0]:.2f} to {one['spread'][1]:.2f})",
            f"{one['possible_over_the_lower']:.2f}",
            *(f"{one['processor_seconds_per_gigabyte'][way]:.2f}" for way in ("local", "loopback", "remote")),
        ]
        for dtype, one in found.items()
    ]
    ratios = ("HTTP ÷ slower of files and sockets", "upper bound of this ratio")
    titles = ("", "files: GB/s", "plain sockets", "trace over HTTP", *ratios)
    return table((*titles, "files: processor s/GB", "plain sockets", "trace over HTTP"), rows)


def estimate(found: dict[str, Any]) -> str:
    """Estimate 70 billion parameters in bfloat16, 150 checkpoints, 8 nodes with 10 Gbit/s each."""
    parameters, checkpoints, nodes, link = 70e9, 150, 8, 1.25e9
    unit = found["bfloat16"]
    read = parameters * 2 * checkpoints
    cost = unit["processor_seconds_per_gigabyte"]["remote"] / 1e9
    ranges = read / (SMALLEST * 2)
    busy = read * cost + ranges * unit["processor_seconds_per_range"]
    sums = (
        parameters / CHUNK * checkpoints * 9 * 8
    )  # a row of nine sums for each chunk: itself, previous, first
    rows = [
        ["read, each byte once", f"{read / 1e12:.0f} TB in {ranges / 1e6:.1f} million ranges"],
        ["the links, at their full rate", f"{read / (nodes * link) / 60:.0f} minutes"],
        ["processor, at this machine's cost", f"{busy / 3600:.0f} hours of one core"],
        ["cores of a node that keep up with its link", f"{busy / read * link:.1f}"],
        ["held by each worker", f"{SMALLEST * 2 * HELD / 1e6:.0f} MB"],
        ["sums that travel to the driver", f"{sums / 1e6:.0f} MB"],
    ]
    return table(("70B × 150 checkpoints, 8 nodes", ""), rows)


def pages() -> None:
    found = json.loads(RECORD.read_text())
    fill(DOCS / "cluster.md", {"speeds": speeds(found), "estimate": estimate(found)})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("measure", "pages"), default="measure")
    parser.add_argument("--megabytes", type=int, default=512, help="of each checkpoint")
    arguments = parser.parse_args()
    if arguments.what == "measure":
        found = {dtype: measure(dtype, arguments.megabytes) for dtype in DTYPES}
        RECORD.write_text(json.dumps(found, indent=1) + "\n")
        print(json.dumps(found, indent=1))
    pages()


if __name__ == "__main__":
    main()
