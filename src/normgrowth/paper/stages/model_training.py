"""Language models of the stage `language_models`: their training, and the records of each (sections 3, 4.1 and 4.3).

Each model has four runs of records: NAME has its evaluations, the records of the tracker and the margins of training
tokens at every checkpoint, "NAME, checkpoints" the trace of its checkpoints, "NAME, heads" its heads at every
checkpoint, "NAME, behavior" the predictions of its last checkpoint, soft and saturated. At the last step NAME also has
`perplexity_authors`, the perplexity of the authors' code: the mean over sentences of 2 to the loss in nats.
`paper.evidence` reads them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from normgrowth import engine
from normgrowth.behavior import behavior
from normgrowth.checkpoints.parameters.selection import Selection
from normgrowth.heads import heads
from normgrowth.lab.build import corpus_of, new_model
from normgrowth.lab.data.corpus import Corpus, Row, describe, padded
from normgrowth.lab.evaluate import NextToken, margins
from normgrowth.lab.run import Run
from normgrowth.lab.settings import TrainSettings
from normgrowth.lab.sweep_run import one_thread
from normgrowth.limit.saturated import saturated
from normgrowth.network.heads.result import Heads
from normgrowth.network.hidden_states import evaluating
from normgrowth.network.models.encoder_folder import load_weights
from normgrowth.network.models.encoders import LanguageModel
from normgrowth.network.models.load import load_model
from normgrowth.paper.evidence import HeadFields, LanguageModelFields, ModelFields, ModelSettings
from normgrowth.paper.stages.stage import StageContext
from normgrowth.records import Block, Records
from normgrowth.serialization.json_types import converted
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
SENTENCES = 200  # sentences of the development part, as in the paper's Figure 3


def measured(
    folder: Path,
    settings: TrainSettings,
    corpus: Corpus,
    *,
    window: int | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> StoredResult:
    """The records and fields to keep of a training run. window: for Figure 3 as published, at the last step."""
    run, name, series = (
        Run.from_stored(StoredResult.read(folder)),
        folder.resolve().name,
        folder / "checkpoints",
    )
    checkpoints = sorted(series.iterdir())
    parts = [
        _only(run.records, KEPT),
        _only(trace(series, run=f"{name}, checkpoints", scalars=True).records, TRACED),
        _authors_perplexity(name, checkpoints[-1], settings, corpus),
    ]
    tell(f"{name}: margins")
    parts.append(normalized_margins(name, checkpoints, settings, corpus))
    lines = sentences(corpus)
    found: Heads | None = None
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
        parts.append(found.records)
    tell(f"{name}: predictions of {checkpoints[-1].name}")
    parts.append(behavior(checkpoints[-1], lines, run=f"{name}, behavior").records)
    fields = {
        "command": "lab",
        "settings": asdict(run.settings),
        "steps": run.steps,
        "best_step": run.best_step,
        "parameters": run.parameters,
        "corpus": asdict(describe(corpus, settings.dev_sentences)),
        "heads": asdict(_head_fields(found)) if found else {},
    }
    return StoredResult(Records.joined(parts), fields)


def _head_fields(heads: Heads) -> HeadFields:
    """The fields to keep of the heads at the last checkpoint, in addition to their records."""
    (known,) = heads.models.values()
    kinds = {"kinds": known.kinds, "saturated_kinds": known.saturated_kinds}
    return HeadFields(heads.window, heads.tolerance, heads.thresholds, **kinds, notes=heads.notes)


def _with_epochs(model: ModelFields) -> ModelSettings:
    """The settings, with the number of passes over the training part computed from the steps."""
    if model.steps is None or model.settings.batch is None:
        return model.settings
    epochs = model.steps * model.settings.batch / model.corpus.sentences["train"]
    return replace(model.settings, epochs_trained=epochs)


def joined_models(models: Mapping[str, StoredResult]) -> StoredResult:
    """The results of several models as one result, by which claims are judged."""
    known = {name: converted(one.fields, ModelFields, name) for name, one in models.items()}
    include = next(iter(known.values())).settings.include
    fields = LanguageModelFields(
        models={name: _with_epochs(one) for name, one in known.items()},
        heads={name: one.heads for name, one in known.items()},
        corpora={one.settings.corpus: one.corpus for one in known.values()},
        selection=Selection(include) if include else None,
    )
    said = {"command": "reproduce", "stage": "language_models", **asdict(fields)}
    return StoredResult(Records.joined([one.records for one in models.values()]), said)


def train_and_measure(corpus: Corpus, window: bool, task: tuple[str, TrainSettings]) -> StoredResult:
    """Train and measure one model, with one thread so that its weights do not depend on the number of cores."""
    folder, settings = Path(task[0]), task[1]
    with one_thread():
        train(settings, folder, corpus=corpus)
        return measured(folder, settings, corpus, window=corpus.positions if window else None)


def train_models(
    context: StageContext, models: Mapping[str, TrainSettings], *, window: bool = True
) -> StoredResult:
    """Train the models, each in a folder of its name, and return the result of `measured` for each."""
    found: dict[str, StoredResult] = {}
    by_corpus: dict[str, list[str]] = {}
    for name, settings in models.items():
        by_corpus.setdefault(settings.corpus, []).append(name)
    for names in by_corpus.values():
        corpus = corpus_of(models[names[0]], context.data)
        tasks = [(str(context.folder / name), models[name]) for name in names]
        work = partial(train_and_measure, corpus, window)
        for place, stored in engine.map(work, tasks, on=context.engine):
            found[names[place]] = stored
            context.done(len(found), len(models), names[place])
    return joined_models({name: found[name] for name in models})


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def normalized_margins(
    name: str, checkpoints: Sequence[Path], settings: TrainSettings, corpus: Corpus
) -> Records:
    """Margins of training tokens at each checkpoint: least and median, divided by ‖θ‖ᵏ, and the share above zero.

    θ: all parameters. k: the degree of the logits, so that growing weights alone do not change a normalized margin.
    """
    rows = corpus.train[:SENTENCES]
    model = new_model(settings, corpus)
    limit = saturated(model)
    limit(torch.from_numpy(padded(rows[:1])[0][:, :-1]))
    degree = float(limit.degrees[""] or 0)
    steps, norms = trace(checkpoints[0].parent, include="all").records.where(level="model").series("norm")
    found = []
    for checkpoint in checkpoints:
        load_weights(checkpoint, model)
        own = margins(NextToken(model), rows)
        found.append((own.min(), np.median(own), (own > 0).mean()))
    least, median, separated = np.array(found).T
    columns = {
        "normalized_margin_least": least / norms**degree,
        "normalized_margin": median / norms**degree,
        "share_separated": separated,
        "logit_degree": np.full(len(steps), degree),
    }
    values = {quantity: column[:, None] for quantity, column in columns.items()}
    return Records.from_blocks(name, [Block("model", ["model"], [None], [None], steps.tolist(), values)])


def _authors_perplexity(name: str, checkpoint: Path, settings: TrainSettings, corpus: Corpus) -> Records:
    model = new_model(settings, corpus)
    load_weights(checkpoint, model)
    nats = sentence_losses(model, corpus.valid[: settings.dev_sentences])
    values = {"perplexity_authors": np.array([[np.exp2(nats).mean()]])}
    block = Block("model", ["model"], [None], [None], [_step(checkpoint)], values)
    return Records.from_blocks(name, [block])


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
