"""Measure real tokens per second of the lab's batches, compared with the same sentences padded, in one run.

python benchmarks/lab_speed.py CORPORA     measure on penn; write lab_speed.json and the table in docs/train.md
python benchmarks/lab_speed.py pages       make the table again

The variants alternate, one training step each per round. Each has its own model with the same initial weights.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pages import DOCS, fill
from torch.nn import functional

from normgrowth.lab.build import new_model, new_optimizer
from normgrowth.lab.data.corpus import Corpus, Row, in_batches, load_corpus, padded
from normgrowth.lab.evaluate import NextToken
from normgrowth.lab.settings import TrainSettings, preset
from normgrowth.network.models.encoders import LanguageModel

RESULTS = Path(__file__).with_suffix(".json")
ROUNDS = 60
MODELS = {
    "4 layers of 128": preset("small", "penn"),
    "6 layers of 256": TrainSettings(corpus="penn", layers=6, width=256, heads=8, feedforward=512),
}
Loss = Callable[[LanguageModel, list[Row]], torch.Tensor]


def ours(model: LanguageModel, rows: list[Row]) -> torch.Tensor:
    ids, real = (torch.from_numpy(array) for array in padded(rows))
    return NextToken(model)(ids, real)


def padded_to(width: int | None) -> Loss:
    """Straightforward code: pad rows to the longest of the batch or corpus; the head computes all positions."""

    def loss(model: LanguageModel, rows: list[Row]) -> torch.Tensor:
        ids, real = (torch.from_numpy(array) for array in padded(rows))
        if width is not None:
            ids, real = (functional.pad(tensor, (0, width + 1 - tensor.shape[1])) for tensor in (ids, real))
        logits = model(ids[:, :-1])
        assert isinstance(logits, torch.Tensor)
        targets = ids[:, 1:].masked_fill(~real[:, 1:], -100)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")

    return loss


def ways(corpus: Corpus) -> dict[str, tuple[Loss, list[np.ndarray]]]:
    lengths = [len(row) for row in corpus.train]
    by_length = in_batches(lengths, 16, np.random.default_rng(0))
    order = np.random.default_rng(1).permutation(len(lengths))
    anyhow = [order[i : i + 16] for i in range(0, len(order), 16)]
    return {
        "by length, real tokens only": (ours, by_length),
        "padded to the longest of the batch": (padded_to(None), anyhow),
        f"padded to {corpus.positions}": (padded_to(corpus.positions), anyhow),
    }


def measure(settings: TrainSettings, corpus: Corpus) -> dict[str, Any]:
    chosen = ways(corpus)
    models = {name: new_model(settings, corpus) for name in chosen}
    optimizers = {name: new_optimizer(settings, model) for name, model in models.items()}
    same = [corpus.train[i] for i in range(16)]
    with torch.no_grad():
        losses = [loss(models[name], same).item() for name, (loss, _) in chosen.items()]
    spent: dict[str, list[tuple[int, float]]] = {name: [] for name in chosen}  # tokens, seconds
    for turn in range(-3, ROUNDS):  # the first three warm up
        for name, (loss, batches) in chosen.items():
            rows = [corpus.train[i] for i in batches[turn]]
            start = time.perf_counter()
            optimizers[name].zero_grad()
            tokens = sum(len(row) - 1 for row in rows)
            (loss(models[name], rows) / tokens).backward()
            optimizers[name].step()
            if turn >= 0:
                spent[name].append((tokens, time.perf_counter() - start))
    speed = {name: _rate(pairs) for name, pairs in spent.items()}
    first = next(iter(speed))
    quarters = [_rate(spent[first][part::4]) for part in range(4)]
    return {
        "tokens_per_second": speed,
        "ratio": {name: speed[first] / value for name, value in speed.items()},
        "spread": statistics.stdev(quarters) / speed[first],
        "losses": losses,
    }


def _rate(pairs: list[tuple[int, float]]) -> float:
    return sum(tokens for tokens, _ in pairs) / sum(seconds for _, seconds in pairs)


def table(results: dict[str, Any]) -> str:
    lines = [
        "| model | batches | real tokens per second | speedup of the first row |",
        "|---|---|---|---|",
    ]
    for model, found in results["models"].items():
        for name, speed in found["tokens_per_second"].items():
            lines.append(f"| {model} | {name} | {speed:,.0f} | {found['ratio'][name]:.2f} |")
    return "\n".join(lines)


def pages() -> None:
    results = json.loads(RESULTS.read_text())
    fill(DOCS / "train.md", {"speed": table(results)})


def main() -> None:
    if sys.argv[1:] != ["pages"]:
        corpus = load_corpus("penn", sys.argv[1])
        results = {"threads": torch.get_num_threads(), "models": {}}
        for name, settings in MODELS.items():
            results["models"][name] = measure(settings, corpus)
            print(name, json.dumps(results["models"][name], indent=1))
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    pages()


if __name__ == "__main__":
    main()
