"""Make docs/train.md: train language models and measure their weights and heads.

python benchmarks/lab.py train NAME ... --data CORPORA --runs DIR     train or resume these runs
python benchmarks/lab.py measure NAME ... --data CORPORA --runs DIR   measure runs and heads; write docs/records/lab
python benchmarks/lab.py pages                                        make pictures and tables from the records

Without a name, all RUNS are trained: about ten hours on two cores. `train` runs `normgrowth train` with these settings.
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from normgrowth.lab.build import corpus_of
from normgrowth.lab.settings import TrainSettings
from normgrowth.paper.stages.model_training import measured
from normgrowth.train import train

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "docs" / "records" / "lab"
SHAPE: dict[str, Any] = {"layers": 6, "width": 256, "heads": 8, "feedforward": 512}
MEASURED: dict[str, Any] = {"epochs": 1, "evaluate": "powers", "track": "10"}

KINDS: dict[str, dict[str, Any]] = {
    "paper": {"kind": "paper_pre_norm"},
    "usual": {"kind": "usual_pre_norm", "final_norm": True},
    "post": {"kind": "post_norm"},
}
# Learning rates from short trials; post-norm needs a warm-up, and plain SGD clipped gradients.
RATES: dict[str, dict[str, dict[str, Any]]] = {
    "adamw": {
        "paper": {"lr": 1e-3},
        "usual": {"lr": 1e-3},
        "post": {"lr": 5e-4, "warmup": 300},
    },
    "sgd": {kind: {"optimizer": "sgd", "lr": 0.3, "clip": 1.0, "warmup": 100} for kind in KINDS},
}
# Sentences of WikiText-2 are five times as long, and its vocabulary three times as large: fewer suffice for dev loss.
CORPORA: dict[str, dict[str, Any]] = {
    "penn": {"corpus": "penn", "dev_sentences": 1000},
    "wiki": {"corpus": "wikitext-2", "dev_sentences": 200},
}


def settings_of(name: str) -> TrainSettings:
    """penn-post-adamw, wiki-paper-adamw-seed1, penn-paper-adamw-leaking, ..."""
    corpus, kind, optimizer, *more = name.split("-")
    found = TrainSettings(**CORPORA[corpus], **SHAPE, **MEASURED, **KINDS[kind], **RATES[optimizer][kind])
    for word in more:
        found = replace(found, leaking=True) if word == "leaking" else replace(found, seed=int(word[-1]))
    return found


RUNS = [
    *(f"penn-{kind}-adamw" for kind in KINDS),
    *(f"penn-{kind}-sgd" for kind in KINDS),
    *(f"penn-{kind}-adamw-leaking" for kind in ("paper", "post")),
    *(f"wiki-{kind}-adamw" for kind in KINDS),
    *(f"penn-{kind}-adamw-seed1" for kind in KINDS),
]


def learn(name: str, data: Path, runs: Path) -> None:
    start = time.monotonic()

    def tell(step: int, total: int, facts: dict[str, float]) -> None:
        if step % 100 == 0:
            minutes = (time.monotonic() - start) / 60
            print(f"{name}: step {step} of {total}, loss {facts['loss']:.3f}, {minutes:.1f} min", flush=True)

    train(settings_of(name), runs / name, data=data, progress=tell)


def measure(name: str, data: Path, runs: Path) -> None:
    """Write the results of a run for the page: the run, the trace of its checkpoints, its heads and predictions."""
    settings = settings_of(name)
    corpus = corpus_of(settings, data)
    # Padded sentences are expensive for long corpora: measure the published form on penn only.
    window = corpus.positions if settings.corpus == "penn" else None
    found = measured(runs / name, settings, corpus, window=window, tell=lambda said: print(said, flush=True))
    found.write(KEPT / name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("train", "measure", "pages"))
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--data", type=Path, help="folder that holds penn and wikitext-2")
    parser.add_argument("--runs", type=Path, help="folder of the runs")
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.what == "pages":
        import lab_pages

        return lab_pages.write(KEPT)
    if arguments.data is None or arguments.runs is None:
        sys.exit("--data and --runs say where the corpora and the runs are")
    for name in arguments.names or RUNS:
        (learn if arguments.what == "train" else measure)(name, arguments.data, arguments.runs)
    return None


if __name__ == "__main__":
    main()
