"""The stage `lab`: language models trained here, and what is kept of each (sections 3, 4.1 and 4.3).

Three runs of records for each model, told apart by their names: NAME has its evaluations and what the tracker saw,
"NAME, checkpoints" the trace of its series, "NAME, heads" its heads at every checkpoint. At the last step NAME also has
`perplexity_authors`: what the authors' code calls perplexity, the mean over sentences of 2 to the loss in nats.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from normgrowth import engine
from normgrowth.engine import Engine
from normgrowth.lab.build import corpus_of, new_model
from normgrowth.lab.data.corpus import Corpus, Row, describe, padded
from normgrowth.lab.evaluate import NextToken
from normgrowth.lab.settings import TrainSettings
from normgrowth.lab.sweep import one_thread
from normgrowth.lab.train import train
from normgrowth.network.heads.heads import heads
from normgrowth.network.hidden_states import evaluating
from normgrowth.network.models.encoder_folder import load_weights
from normgrowth.network.models.encoders import LanguageModel
from normgrowth.network.models.load import load_model
from normgrowth.records import Block, Records
from normgrowth.trace import trace

# Of evaluations and of the tracker, of model and layers: what pages draw and claims are judged by.
KEPT = (
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
)
TRACED = ("norm", "cosine", "angle", "step_size", "alignment", "total_share_steps")
FACTS = (
    "window",
    "tolerance",
    "thresholds",
    "kinds",
    "saturated_kinds",
    "notes",
)  # of heads: no paths among them
Progress = Callable[[int, int, str], None]  # done, of how many, what

SENTENCES = 200  # of the development part, as in the paper's Figure 3


def measured(
    folder: Path,
    settings: TrainSettings,
    corpus: Corpus,
    *,
    window: int | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Records:
    """What is kept of a run that `train` has made. window: for the published form of Figure 3, at the last step."""
    run, name, series = Records.read(folder), folder.resolve().name, folder / "checkpoints"
    checkpoints = sorted(series.iterdir())
    parts = [
        _only(run, KEPT),
        _only(trace(series, run=f"{name}, checkpoints"), TRACED),
        _authors_perplexity(name, checkpoints[-1], settings, corpus),
    ]
    lines = sentences(corpus)
    for path in checkpoints:
        last = path == checkpoints[-1]
        tell(f"{name}: heads of {path.name}")
        found = heads(
            load_model(path),
            lines,
            step=_step(path),
            window=window if last else None,
            run=f"{name}, heads",
        )
        parts.append(found)
    facts: dict[str, Any] = {
        key: run.made_by[key] for key in ("settings", "steps", "best_step", "parameters")
    }
    facts["corpus"] = describe(corpus, settings.dev_sentences)
    facts["heads"] = {key: parts[-1].made_by[key] for key in FACTS}
    return Records.joined(parts, {"command": "lab", **facts})


def together(models: Mapping[str, Records]) -> Records:
    """The records of several models as one table, which claims are judged by."""
    facts = {
        name: {
            key: one.made_by["settings"][key] for key in ("kind", "optimizer", "leaking", "corpus", "seed")
        }
        for name, one in models.items()
    }
    made_by = {
        "command": "reproduce",
        "stage": "lab",
        "models": facts,
        "selection": {"include": next(iter(models.values())).made_by["settings"].get("include")},
        "heads": {name: one.made_by["heads"] for name, one in models.items()},
        "corpora": {one.made_by["settings"]["corpus"]: one.made_by["corpus"] for one in models.values()},
    }
    return Records.joined(models.values(), made_by)


def train_and_measure(corpus: Corpus, window: bool, task: tuple[str, TrainSettings]) -> Records:
    """The task of one model: trained with one thread, so that its weights do not depend on the machine's cores."""
    folder, settings = Path(task[0]), task[1]
    with one_thread():
        train(settings, folder, corpus=corpus)
        return measured(folder, settings, corpus, window=corpus.positions if window else None)


def lab(
    folder: Path,
    models: Mapping[str, TrainSettings],
    *,
    data: Path | None = None,
    window: bool = True,
    on: Engine,
    progress: Progress | None = None,
) -> Records:
    """Train these models, in folders of their names, and keep what `measured` keeps of each."""
    found: dict[str, Records] = {}
    by_corpus: dict[str, list[str]] = {}
    for name, settings in models.items():
        by_corpus.setdefault(settings.corpus, []).append(name)
    for names in by_corpus.values():
        corpus = corpus_of(models[names[0]], data)
        tasks = [(str(folder / name), models[name]) for name in names]
        for place, records in engine.map(partial(train_and_measure, corpus, window), tasks, on=on):
            found[names[place]] = records
            if progress:
                progress(len(found), len(models), names[place])
    return together({name: found[name] for name in models})


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def _authors_perplexity(name: str, checkpoint: Path, settings: TrainSettings, corpus: Corpus) -> Records:
    model = new_model(settings, corpus)
    load_weights(checkpoint, model)
    nats = sentence_losses(model, corpus.valid[: settings.dev_sentences])
    values = {"perplexity_authors": np.array([[np.exp2(nats).mean()]])}
    block = Block("model", ["model"], [None], [None], [_step(checkpoint)], values)
    return Records.from_blocks(name, [block], {})


def sentence_losses(model: LanguageModel, rows: Sequence[Row], batch: int = 16) -> NDArray[np.float64]:
    """Nats per token of each row: `evaluate` sums over all tokens, the authors' code takes a mean over sentences."""
    predict, found = NextToken(model), list[float]()
    with evaluating(model):
        for start in range(0, len(rows), batch):
            ids, real = (torch.from_numpy(array) for array in padded(rows[start : start + batch]))
            logits, targets = predict.logits(ids, real), ids[:, 1:][real[:, 1:]]
            nats = functional.cross_entropy(logits, targets, reduction="none").double()
            found += [own.mean().item() for own in nats.split(real[:, 1:].sum(1).tolist())]
    return np.array(found)


def sentences(corpus: Corpus) -> list[str]:
    words = corpus.vocabulary.words
    return [" ".join(words[i] for i in row[1:-1]) for row in corpus.valid[:SENTENCES]]


def _only(records: Records, quantities: Sequence[str]) -> Records:
    """Of the model and its layers."""
    parts = [
        records.where(level=level, quantity=quantity)
        for level in ("model", "layer")
        for quantity in quantities
    ]
    return Records.joined([part for part in parts if len(part)], records.made_by)
