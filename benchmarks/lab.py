"""What docs/lab.md shows: language models trained here, and what becomes of their weights and heads.

python benchmarks/lab.py train NAME ... --data CORPORA --runs DIR     trains, or goes on with, these runs
python benchmarks/lab.py measure NAME ... --data CORPORA --runs DIR   and heads; to docs/records/lab
python benchmarks/lab.py pages                                        makes pictures and tables again from them

Without a name, all of RUNS: about ten hours on two cores. `train` is `normgrowth train` with the settings below.
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from normgrowth import Records, heads, trace
from normgrowth.network.models import load_model
from normgrowth.training.corpora import Corpus, describe
from normgrowth.training.loop import train
from normgrowth.training.making import corpus_of
from normgrowth.training.settings import Settings

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "docs" / "records" / "lab"
HEAD_SENTENCES = 200  # of the development part, as in the paper's Figure 3
SHAPE: dict[str, Any] = {"layers": 6, "width": 256, "heads": 8, "feedforward": 512}
MEASURED: dict[str, Any] = {"epochs": 1, "evaluate": "powers", "track": "10"}
# Quantities of the tracker and of evaluations that the page draws; all others stay with the run.
DRAWN: list[str] = [
    "dev_loss",
    "perplexity",
    "accuracy",
    "train_loss",
    "epoch",
    "test_loss",
    "test_perplexity",
    "test_accuracy",
    "saturation",
    "saturation_c1000",
    "saturation_others",
    "norm",
    "cosine",
    "angle",
    "step_size",
    "relative_step",
    "alignment",
    "growth",
    "growth_alignment",
    "growth_steps",
    "gradient_norm",
    "learning_rate",
    "equilibrium_norm",
]

KINDS: dict[str, dict[str, Any]] = {
    "paper": {"kind": "paper_pre_norm"},
    "usual": {"kind": "usual_pre_norm", "final_norm": True},
    "post": {"kind": "post_norm"},
}
# Rates at which each learns, found by short trials; post-norm needs a warm-up, and plain SGD clipped gradients.
RATES: dict[str, dict[str, dict[str, Any]]] = {
    "adamw": {
        "paper": {"lr": 1e-3},
        "usual": {"lr": 1e-3},
        "post": {"lr": 5e-4, "warmup": 300},
    },
    "sgd": {kind: {"optimizer": "sgd", "lr": 0.3, "clip": 1.0, "warmup": 100} for kind in KINDS},
}
# Sentences of WikiText-2 are five times as long, and its vocabulary three times as large: fewer do for its dev loss.
CORPORA: dict[str, dict[str, Any]] = {
    "penn": {"corpus": "penn", "dev_sentences": 1000},
    "wiki": {"corpus": "wikitext-2", "dev_sentences": 200},
}


def settings_of(name: str) -> Settings:
    """penn-post-adamw, wiki-paper-adamw-seed1, penn-paper-adamw-leaking, ..."""
    corpus, kind, optimizer, *more = name.split("-")
    found = Settings(**CORPORA[corpus], **SHAPE, **MEASURED, **KINDS[kind], **RATES[optimizer][kind])
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
    """Records of a run as the page needs them: evaluations and tracker, the trace of its checkpoints, its heads."""
    settings = settings_of(name)
    corpus = corpus_of(settings, data)
    run, lines = Records.read(runs / name), sentences(corpus)
    parts = [_only(run, DRAWN)]
    checkpoints = sorted((runs / name / "checkpoints").iterdir())
    traced = trace(runs / name / "checkpoints", run=f"{name}, checkpoints")
    of_series = ["norm", "cosine", "angle", "step_size", "alignment", "cosine_first", "total_share_steps"]
    parts.append(_only(traced, of_series))
    for path in checkpoints:
        step = int(path.name.removeprefix("step-"))
        last = path == checkpoints[-1]
        # Filled-up sentences ask much of long corpora: the published form is for penn, and for the end.
        window = corpus.positions if last and settings.corpus == "penn" else None
        found = heads(load_model(path), lines, step=step, window=window, run=f"{name}, heads")
        parts.append(found)
        counts = found.made_by["saturated_kinds_counts"]
        print(f"{name}: heads at step {step}: {counts}", flush=True)
    facts = {key: run.made_by[key] for key in ("settings", "steps", "best_step", "parameters")}
    facts["corpus"] = describe(corpus, settings.dev_sentences)
    Records.joined(parts, {"command": "lab", **facts, "heads": _plain(parts[-1].made_by)}).write(KEPT / name)


def sentences(corpus: Corpus) -> list[str]:
    words = corpus.vocabulary.words
    return [" ".join(words[i] for i in row[1:-1]) for row in corpus.valid[:HEAD_SENTENCES]]


def _only(records: Records, quantities: list[str]) -> Records:
    """Of the model and its layers."""
    parts = [
        records.where(scope=scope, quantity=quantity)
        for scope in ("model", "layer")
        for quantity in quantities
    ]
    return Records.joined([part for part in parts if len(part)], records.made_by)


def _plain(made_by: dict[str, Any]) -> dict[str, Any]:
    """Without paths of the machine that it was made on."""
    kept = ("window", "tolerance", "thresholds", "kinds", "saturated_kinds", "notes")
    return {key: made_by[key] for key in kept}


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
