"""What a trace over a network costs, beside the same files on disk and beside the network itself.

python benchmarks/remote.py [--megabytes N]     writes remote.json

A web server in a process of its own hands out ranges with sendfile over loopback. Three ways to read all checkpoints of
a series, in turn: a trace of the files, a trace over HTTP, and plain sockets that receive as many bytes with as many
connections and look at none of them: the loopback's own throughput, with the same server. The rate of a trace counts
each byte of the checkpoints once. Lint is off on both sides, since it reads little and computes much.
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

import numpy as np
from safetensors.numpy import save_file

from normgrowth import trace
from normgrowth.weights.walk import CONNECTIONS

RECORD = Path(__file__).with_name("remote.json")
ROUNDS, CHECKPOINTS = 7, 4


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


def make(folder: Path, megabytes: int) -> int:
    """A series of bfloat16-sized float32 matrices; the bytes of all."""
    rng = np.random.default_rng(0)
    layers = max(1, megabytes // 16)
    state = {
        f"model.layers.{i}.mlp.{name}.weight": rng.standard_normal((1024, 2048), np.float32)
        for i in range(layers)
        for name in ("up_proj", "down_proj")
    }
    for step in range(CHECKPOINTS):
        for values in state.values():
            values += np.float32(0.01)
        save_file(state, folder / f"step_{step}.safetensors")
    return sum(values.nbytes for values in state.values()) * CHECKPOINTS


def loopback(port: int, folder: Path) -> None:
    """All bytes through plain sockets, into the same memory again and again."""

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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=512, help="of each checkpoint")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        total = make(folder, arguments.megabytes)
        context = multiprocessing.get_context("spawn")
        ready = context.Queue()
        server = context.Process(target=serve, args=(name, ready), daemon=True)
        server.start()
        port = ready.get()
        ways: dict[str, Callable[[], Any]] = {
            "local": lambda: trace(folder, lint=False),
            "remote": lambda: trace(f"http://127.0.0.1:{port}/", lint=False),
            "loopback": lambda: loopback(port, folder),
        }
        for way in ways.values():
            way()  # compiles, and brings the files into memory
        rates: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(ROUNDS):
            for way, run in ways.items():
                start = time.perf_counter()
                run()
                rates[way].append(total / (time.perf_counter() - start) / 1e9)
        server.terminate()
    ratios = [
        r / min(a, b) for r, a, b in zip(rates["remote"], rates["local"], rates["loopback"], strict=True)
    ]
    found = {
        "bytes": total,
        "rounds": ROUNDS,
        "gigabytes_per_second": {way: round(statistics.median(values), 3) for way, values in rates.items()},
        "remote_over_the_lower": round(statistics.median(ratios), 3),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
    }
    RECORD.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
