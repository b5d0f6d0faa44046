"""Measure cells of a sweep per minute: `normgrowth sweep`, compared with one new process per cell, in sequence.

python benchmarks/cells.py CORPORA     measure; write cells.json (CORPORA contains wikitext-2)

Both variants train the same cells of the preset `tiny` on WikiText-2, with all measurements. A new process uses all
cores for its cell, which is PyTorch's default, and loads the corpus itself. The variants alternate. `sweep` starts with
an empty folder, and its time includes the start of its workers.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from normgrowth.lab.cells.axis import Axis
from normgrowth.lab.settings import preset
from normgrowth.sweep import sweep

RESULTS = Path(__file__).with_suffix(".json")
RATES, DECAYS = Axis.spaced("lr", 1e-4, 1e-1, 8), Axis.spaced("weight_decay", 1e-4, 1e-1, 4)
FRESH, ROUNDS = 6, 3  # cells trained by new processes per round: enough to measure their rate
ALONE = """
import sys
from normgrowth.lab.cells.cell import train_alone
from normgrowth.lab.build import corpus_of
from normgrowth.lab.settings import preset
settings = preset("tiny", "wikitext-2", lr=float(sys.argv[2]), weight_decay=float(sys.argv[3]))
print(train_alone(settings, corpus_of(settings, sys.argv[1])))
"""


def fresh(data: str) -> float:
    start = time.perf_counter()
    cells = [(rate, decay) for decay in DECAYS.values for rate in RATES.values]
    for rate, decay in cells[:: len(cells) // FRESH][:FRESH]:
        command = [sys.executable, "-c", ALONE, data, str(rate), str(decay)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return FRESH * 60 / (time.perf_counter() - start)


def swept(data: str, together: int | None) -> float:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        sweep(preset("tiny", "wikitext-2"), folder, x=RATES, y=DECAYS, data=data, stack_size=together)
        return len(RATES.values) * len(DECAYS.values) * 60 / (time.perf_counter() - start)


def main(data: str) -> None:
    rates: dict[str, list[float]] = {"fresh processes": [], "sweep": [], "sweep, each cell alone": []}
    for _ in range(ROUNDS):
        rates["fresh processes"].append(fresh(data))
        rates["sweep"].append(swept(data, None))
        rates["sweep, each cell alone"].append(swept(data, 1))
    gains = [ours / theirs for ours, theirs in zip(rates["sweep"], rates["fresh processes"], strict=True)]
    found = {
        "cells_per_minute": {way: round(statistics.median(values), 2) for way, values in rates.items()},
        "times_as_many": round(statistics.median(gains), 2),
        "spread": [round(min(gains), 2), round(max(gains), 2)],
        "rounds": ROUNDS,
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(sys.argv[1])
