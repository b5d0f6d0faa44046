"""Measure the whole command with start-up: speed relative to weightlens, memory, many small tensors, larger files."""

import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from files import make_pair

BIN = Path(sys.executable).parent
PEAK = """
import sys, threading, time
peak = 0
def watch():
    global peak
    while True:
        for line in open("/proc/self/status"):
            if line.startswith("RssAnon"):
                peak = max(peak, int(line.split()[1]))
        time.sleep(0.005)
threading.Thread(target=watch, daemon=True).start()
from normgrowth.cli.main import main
main(["trace", *sys.argv[1:], "--json"])
print(peak, file=sys.stderr)
"""


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{command[0]} failed: {result.stderr[-2000:]}")
    return time.perf_counter() - start


def trace_seconds(folder: Path, rounds: int = 5) -> float:
    """Return the median seconds of `normgrowth.trace` in a warm process, without start-up."""
    from normgrowth import trace

    trace(folder)
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        trace(folder)
        times.append(time.perf_counter() - start)
    return median(times)


def peak_anonymous_megabytes(folder: Path) -> float:
    result = subprocess.run(
        [sys.executable, "-c", PEAK, str(folder)], capture_output=True, text=True, check=True
    )
    return int(result.stderr.split()[-1]) / 1024


def run(scratch: Path) -> dict[str, float]:
    pair = make_pair(scratch / "f32", 430)
    command = [str(BIN / "normgrowth"), "trace", str(scratch / "f32")]
    seconds(command)
    lens = BIN / "lens"
    peer = [str(lens), "analyze", str(pair[0])]
    mine: list[float] = []
    theirs: list[float] = []
    for _ in range(3):  # alternate, so that other load affects both
        mine.append(seconds(command))
        if lens.exists():
            theirs.append(seconds(peer))
        mine.append(seconds(command))
    results = {"whole command on a pair of 430 MB: s": median(mine)}
    if theirs:
        results["weightlens on one of the files: s"] = median(theirs)
        results["faster than weightlens takes for one of the two"] = median(theirs) / median(mine)
    for megabytes in (430, 2000):
        make_pair(scratch / "many", megabytes, tensors=20_000)
        make_pair(scratch / "one", megabytes, tensors=1)
        size = f"20,000 small tensors against one, pair of {megabytes} MB"
        commands = [[str(BIN / "normgrowth"), "trace", str(scratch / name)] for name in ("many", "one")]
        pairs = [[seconds(part) for part in commands] for _ in range(4)][1:]
        results[f"{size}, command"] = median(many / one for many, one in pairs)
        results[f"{size}, trace"] = trace_seconds(scratch / "many") / trace_seconds(scratch / "one")
        for name in ("many", "one"):
            shutil.rmtree(scratch / name)
    make_pair(scratch / "twice", 860)
    results["time for twice the bytes"] = trace_seconds(scratch / "twice") / trace_seconds(scratch / "f32")
    shutil.rmtree(scratch / "twice")
    make_pair(scratch / "large", 2000)
    results["anonymous memory, pair of 2 GB: MB"] = peak_anonymous_megabytes(scratch / "large")
    results["anonymous memory, pair of 430 MB: MB"] = peak_anonymous_megabytes(scratch / "f32")
    shutil.rmtree(scratch / "large")
    return results


if __name__ == "__main__":
    for name, value in run(Path(sys.argv[1])).items():
        print(f"{value:8.2f}  {name}")
