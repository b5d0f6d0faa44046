"""Language models of the stage `language_models`: their training, and the results of each (sections 3, 4.1 and 4.3).

The records of a run are its evaluations, the records of the tracker and the margins of training tokens at equally
spaced checkpoints. At the last step they also have `perplexity_authors`, the perplexity of the authors' code: the mean
over sentences of 2 to the loss in nats. The trace has the equally spaced checkpoints, the heads a few of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from normgrowth import engine
from normgrowth.behavior import behavior
from normgrowth.heads import heads
from normgrowth.lab.build import corpus_of, new_model
from normgrowth.lab.data.corpus import Corpus, Row, describe, padded
from normgrowth.lab.evaluate import NextToken, margins
from normgrowth.lab.run import Run
from normgrowth.lab.settings import TrainSettings
from normgrowth.lab.sweep_run import one_thread
from normgrowth.limit.saturated import saturated
from normgrowth.network.behavior.margins import normalized, weight_norm
from normgrowth.network.heads.result import Heads
from normgrowth.network.hidden_states import evaluating
from normgrowth.network.models.encoder_folder import load_weights
from normgrowth.network.models.encoders import LanguageModel
from normgrowth.network.models.load import load_model
from normgrowth.paper.evidence import TrainedModel, TrainedModels
from normgrowth.paper.stages.stage import StageContext
from normgrowth.records import Block, Records
from normgrowth.stored_result import StoredResult
from normgrowth.trace import trace
from normgrowth.train import train

# The quantities of evaluations and of the tracker, of model, parts and layers, that pages and claims use.
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
TRACED = (
    *("norm", "cosine", "angle", "step_size", "alignment", "total_share_steps"),
    *("share_grown", "share_sign_changed", "log_ratio_q05", "log_ratio_q50", "log_ratio_q95"),
)
HEADS_EVERY = 5  # of the equally spaced checkpoints, and the last one
INTERVALS = 3  # least number of equal intervals between checkpoints
SENTENCES = 200  # sentences of the development part, as in the paper's Figure 3


def measured(
    folder: Path,
    settings: TrainSettings,
    corpus: Corpus,
    *,
    window: int | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> TrainedModel:
    """The results to keep of a training run. window: for Figure 3 as published, at the last step."""
    run, name, series = (
        Run.from_stored(StoredResult.read(folder)),
        folder.resolve().name,
        folder / "checkpoints",
    )
    checkpoints = equally_spaced(sorted(series.iterdir()))
    traced = trace(checkpoints, run=name, scalars=True)
    parts = [
        _only(run.records, KEPT),
        _authors_perplexity(name, checkpoints[-1], settings, corpus),
    ]
    tell(f"{name}: margins")
    parts.append(normalized_margins(name, checkpoints, settings, corpus))
    lines, own_heads = sentences(corpus), list[Heads]()
    for path in dict.fromkeys([*checkpoints[::HEADS_EVERY], checkpoints[-1]]):
        tell(f"{name}: heads of {path.name}")
        last = path == checkpoints[-1]
        own = heads(
            load_model(path),
            lines,
            sentences=SENTENCES,
            step=_step(path),
            window=window if last else None,
            run=name,
        )
        own_heads.append(own)
    tell(f"{name}: predictions of {checkpoints[-1].name}")
    summary = describe(corpus, settings.dev_sentences)
    return TrainedModel(
        name,
        replace(run, records=Records.joined(parts), corpus=summary),
        replace(traced, records=_only(traced.records, TRACED), source=name),
        replace(own_heads[-1], records=Records.joined([own.records for own in own_heads]), source=name),
        replace(behavior(checkpoints[-1], lines, run=name), source=name),
    )


def equally_spaced(checkpoints: Sequence[Path]) -> list[Path]:
    """The checkpoints at the multiples of one interval, the smallest whose multiples up to the last step are all there.

    Cosines and step sizes between checkpoints at unequal distances cannot be compared. All checkpoints if fewer than 3
    intervals are equal, as in one epoch that is evaluated at powers of two.
    """
    found = {_step(path): path for path in checkpoints}
    last = max(found)
    for interval in (step for step in sorted(found.keys() - {0}) if step * INTERVALS <= last):
        if last % interval == 0 and found.keys() >= (steps := set(range(0, last + 1, interval))):
            return [found[step] for step in sorted(steps)]
    return [*checkpoints]


def train_and_measure(corpus: Corpus, window: bool, task: tuple[str, TrainSettings]) -> TrainedModel:
    """Train and measure one model, with one thread so that its weights do not depend on the number of cores."""
    folder, settings = Path(task[0]), task[1]
    with one_thread():
        train(settings, folder, corpus=corpus)
        return measured(folder, settings, corpus, window=corpus.positions if window else None)


def train_models(
    context: StageContext, models: Mapping[str, TrainSettings], *, window: bool = True
) -> TrainedModels:
    """Train the models, each in a folder of its name, and return the result of `measured` for each."""
    found: dict[str, TrainedModel] = {}
    by_corpus: dict[str, list[str]] = {}
    for name, settings in models.items():
        by_corpus.setdefault(settings.corpus, []).append(name)
    for names in by_corpus.values():
        corpus = corpus_of(models[names[0]], context.data)
        tasks = [(str(context.folder / name), models[name]) for name in names]
        work = partial(train_and_measure, corpus, window)
        for place, model in engine.map(work, tasks, on=context.engine):
            found[names[place]] = model
            context.done(len(found), len(models), names[place])
    return TrainedModels(tuple(found[name] for name in models))


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def normalized_margins(
    name: str, checkpoints: Sequence[Path], settings: TrainSettings, corpus: Corpus
) -> Records:
    """Margins of training tokens at these checkpoints: least and median, divided by ‖θ‖ᵏ, and the share above zero.

    θ: all parameters. k: the degree of the logits, so that growing weights alone do not change a normalized margin.
    """
    rows = corpus.train[:SENTENCES]
    model = new_model(settings, corpus)
    limit = saturated(model)
    limit(torch.from_numpy(padded(rows[:1])[0][:, :-1]))
    degree = float(limit.degrees[""] or 0)
    found = []
    for checkpoint in checkpoints:
        load_weights(checkpoint, model)
        own, norm = margins(NextToken(model), rows), weight_norm(model)
        ends = (normalized(float(value), norm, degree) for value in (own.min(), np.median(own)))
        found.append((*ends, (own > 0).mean(), degree))
    names = ("normalized_margin_least", "normalized_margin", "share_separated", "logit_degree")
    columns: dict[str, NDArray[np.float64]] = dict(zip(names, np.array(found).T, strict=True))
    steps = [_step(checkpoint) for checkpoint in checkpoints]
    return Records.from_blocks(name, [Block.of_model(steps, columns)])


def _authors_perplexity(name: str, checkpoint: Path, settings: TrainSettings, corpus: Corpus) -> Records:
    model = new_model(settings, corpus)
    load_weights(checkpoint, model)
    nats = sentence_losses(model, corpus.valid[: settings.dev_sentences])
    values = {"perplexity_authors": np.exp2(nats).mean()}
    return Records.from_blocks(name, [Block.of_model([_step(checkpoint)], values)])


def sentence_losses(model: LanguageModel, rows: Sequence[Row], batch: int = 16) -> NDArray[np.float64]:
    """The loss of each row in nats per token. `evaluate` sums over all tokens, the authors' code averages sentences."""
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
    """The records of these quantities, of the model, its parts and its layers."""
    parts = [
        records.where(level=level, quantity=quantity)
        for level in ("model", "part", "layer")
        for quantity in quantities
    ]
    return Records.joined([part for part in parts if len(part)])
