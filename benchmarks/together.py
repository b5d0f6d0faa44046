"""Compare stacked cells of a sweep with the same cells in sequence; measure the cost of measuring a cell.

python benchmarks/together.py CORPORA     measure; write together.json (CORPORA contains penn and wikitext-2)

The variants alternate in each round; results are medians over rounds. Times are processor times of one thread, so that
other programs on the machine have little effect.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from normgrowth.lab.build import corpus_of, new_model, new_optimizer
from normgrowth.lab.cells.cell import batches, train_alone
from normgrowth.lab.cells.stacked_cells import pays, train_together
from normgrowth.lab.data.corpus import Corpus
from normgrowth.lab.evaluate import NextToken
from normgrowth.lab.settings import TrainSettings, preset

RESULTS = Path(__file__).with_suffix(".json")
WIDE: dict[str, Any] = {"layers": 2, "width": 64, "heads": 4, "feedforward": 128}
# TrainSettings, steps per round, numbers of cells: as many as memory and time allow.
CASES: dict[str, tuple[TrainSettings, int, list[int]]] = {
    "dyck2, 2 layers of 32": (
        TrainSettings(corpus="dyck2", layers=2, width=32, heads=2, feedforward=64),
        60,
        [2, 4, 8, 16, 32],
    ),
    "tiny, WikiText-2": (preset("tiny", "wikitext-2"), 20, [2, 4, 8, 16, 32]),
    "pydoc, 2 layers of 64": (TrainSettings(corpus="pydoc", min_count=5, **WIDE), 20, [2, 4, 8, 16, 32]),
    "pydoc, 2 layers of 64, batches of 64": (
        TrainSettings(corpus="pydoc", min_count=5, batch=64, **WIDE),
        10,
        [2, 4, 8, 16],
    ),
    "WikiText-2, 2 layers of 64": (TrainSettings(corpus="wikitext-2", **WIDE), 2, [1, 2, 4]),
    "PTB, 2 layers of 128": (
        TrainSettings(corpus="penn", layers=2, width=128, heads=4, feedforward=256),
        3,
        [2, 4, 8],
    ),
    "PTB, 6 layers of 256": (
        TrainSettings(corpus="penn", layers=6, width=256, heads=8, feedforward=512),
        2,
        [2, 4],
    ),
}
ROUNDS = 4


def bare(settings: TrainSettings, corpus: Corpus) -> None:
    """Train a cell without measurements."""
    model = new_model(settings, corpus)
    predict, optimizer = NextToken(model), new_optimizer(settings, model)
    for ids, real, tokens in batches(settings, corpus):
        optimizer.zero_grad()
        (predict(ids, real) * (1 / tokens)).backward()
        optimizer.step()


def measure(settings: TrainSettings, steps: int, counts: list[int], data: str) -> dict[str, Any]:
    corpus = corpus_of(settings, data)
    # Only the sentences that are read: shuffling the others is not part of training.
    corpus = replace(corpus, train=corpus.train[: settings.batch * steps])
    own = replace(settings, steps=steps, dev_sentences=1)
    ways: dict[str, tuple[int, Callable[[], Any]]] = {
        "bare": (1, lambda: bare(own, corpus)),
        "alone": (1, lambda: train_alone(own, corpus)),
    }
    for count in counts:
        cells = [replace(own, lr=1e-4 * (i + 1)) for i in range(count)]
        ways[str(count)] = (count, lambda cells=cells: train_together(cells, corpus))
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(-1, ROUNDS):  # the first warms up
        for name, (count, run) in ways.items():
            start = time.process_time()
            run()
            if turn >= 0:
                spent[name].append((time.process_time() - start) / count / steps)
    alone = spent["alone"]

    def gain(times: list[float]) -> float:
        return round(statistics.median(a / b for a, b in zip(alone, times, strict=True)), 3)

    return {
        "vocabulary": len(corpus.vocabulary),
        "parameters": sum(p.numel() for p in new_model(own, corpus).parameters()),
        "alone_ms_a_step": round(1e3 * statistics.median(alone), 2),
        "alone_over_bare": gain(spent["bare"]),
        "gain": {name: gain(times) for name, times in spent.items() if name.isdecimal()},
        "spread": round(statistics.stdev(alone) / statistics.mean(alone), 3),
        "pays": pays(settings, corpus),
    }


def main() -> None:
    torch.set_num_threads(1)
    results: dict[str, Any] = {"rounds": ROUNDS, "times": "of the processor, one thread", "cases": {}}
    for name, (settings, steps, counts) in CASES.items():
        results["cases"][name] = measure(settings, steps, counts, sys.argv[1])
        print(name, json.dumps(results["cases"][name]), flush=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
