"""`saturation`: how close a network is to its saturated limit, layer by layer (the paper's section 4.1).

The level of a layer is the mean over real tokens of cos(f(x; θ), s f(x; θ)), where s f is the exact limit of
f(x; cθ) as c grows (`saturated`), or, as in the paper, f(x; cθ) itself at a large c.

    saturation                 against the exact limit; in rows with a value c in the column `scale`, against f(x; cθ)
    saturation_hard_attention  against the same weights with every attention softmax replaced by its limit
    …_others                   the same, but with the saturated states of the other tokens of the sentence
    …_stderr                   standard error over sentences, because tokens of one sentence are not independent
    …_random, …_random_std     mean and standard deviation over networks with random weights
    evaluation_tokens, evaluation_sentences    size of the text (level "model")

Only the excess over the cosine to *other* tokens indicates saturation: if all states of a network share a
direction, each state is close to every saturated state, with or without saturation.

Level "layer": the embeddings (name "embeddings", no layer number), then the output of each block, numbered from 0
as in every record; the last one is the output of the network, after its final norm if it has one. Level "model":
the mean over blocks. A level that is undefined for one token (overflow; a state of zero) is NaN, and notes say so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from normgrowth.checkpoints.parameters.selection import CountedParameters, Selection
from normgrowth.engine import Progress
from normgrowth.errors import InputError
from normgrowth.lint.finding import Finding
from normgrowth.network.measured import ModelInfo, each_batch, from_sidecar, measure_each, source_of
from normgrowth.records import Records
from normgrowth.results import Result
from normgrowth.stored_result import StoredResult

if TYPE_CHECKING:
    from torch import nn

    from normgrowth.network.hidden_states import States
    from normgrowth.network.models.load import LoadedModel

Floats = NDArray[np.float64]
Stack = Literal["encoder", "decoder"]
DecoderInput = Literal["shifted", "start"]
EXACT, HARD = "saturation", "saturation_hard_attention"
SENTENCES = 100
BATCH_TOKENS = 2048
EMBEDDINGS = -1  # number of the embeddings in `LayerCurve.layers`


def quantity_at(c: float | None) -> str:
    """The quantity of levels at c; infinity is the exact limit, None is hard attention."""
    return HARD if c is None else EXACT


def scale_at(c: float | None) -> float | None:
    """The value of the column `scale` in the rows of levels at c."""
    return None if c is None or c == inf else c


@dataclass(frozen=True)
class LayerCurve:
    """The levels of one network at one c: embeddings, blocks, and the mean over blocks.

    c: infinity is the exact limit, None is hard attention. baseline: whether this is the mean over networks of the same
    architecture with random weights. layers: EMBEDDINGS, then block numbers from 0. errors: standard error over
    sentences; for a baseline, standard deviation over seeds. others: levels against other tokens' saturated states.
    """

    run: str
    c: float | None
    random_weights: bool
    baseline: bool
    layers: list[int]
    values: Floats
    errors: Floats
    others: Floats
    mean: float

    @property
    def blocks(self) -> list[int]:
        """Indices of the blocks in `layers`: all but the embeddings."""
        return [i for i, layer in enumerate(self.layers) if layer != EMBEDDINGS]


@dataclass(frozen=True, kw_only=True)
class Saturation(Result):
    """Saturation levels of models, or of every checkpoint of a series together with its trace.

    models: models by run. c: the factors of the weights. exact, hard_attention: whether these were measured. stack: the
    measured stack of an encoder-decoder model. as_published: measured as in the authors' script. random_init: number of
    networks with random weights per model. For a series: config is the architecture of the checkpoints, steps are the
    steps with levels, and selection, counted and findings come from its trace.
    """

    kind: ClassVar[str] = "saturation"
    many_tensors: ClassVar[bool] = True

    source: str = ""
    models: dict[str, ModelInfo] = field(default_factory=dict)
    c: tuple[float, ...] = ()
    exact: bool = True
    hard_attention: bool = False
    stack: Stack | None = None
    as_published: bool = False
    fixed: tuple[str, ...] = ()
    random_init: int = 0
    seed: int = 0
    config: str | None = None
    steps: tuple[int, ...] = ()
    selection: Selection | None = None
    counted: CountedParameters | None = None
    findings: tuple[Finding, ...] | None = None

    @property
    def scales(self) -> list[float | None]:
        """Every measured c: first infinity (the exact limit), last None (hard attention)."""
        return [*([inf] if self.exact else []), *self.c, *([None] if self.hard_attention else [])]

    @property
    def curves(self) -> list[LayerCurve]:
        """Levels by layer of models without a series: for each model and c, the model and then its baseline."""
        found = []
        for run in self.records.distinct("run"):
            own_rows = self.records.where(run=run)
            known = self.models.get(run) or ModelInfo(run)
            for c in self.scales:
                method, rows = quantity_at(c), _levels(own_rows.where(scale=scale_at(c)))
                for baseline, own, error in ((False, "", "_stderr"), (True, "_random", "_random_std")):
                    if f"{method}{own}" in rows:
                        names = (f"{method}{own}", f"{method}{error}", f"{method}_others{own}")
                        found.append(_curve(rows, names, run, c, known.random_weights or baseline, baseline))
        return found

    @classmethod
    def from_stored(cls, stored: StoredResult) -> Self:
        """The result from the table and fields of a folder, which an earlier version may have written."""
        current = stored.fields.get("kind") == cls.kind
        return super().from_stored(stored if current else _from_schema_1(stored))


@dataclass(frozen=True)
class LevelOptions:
    """How levels are measured; the fields are options of `saturation`."""

    tokenizer: Any = None
    sentences: int = SENTENCES
    c: tuple[float, ...] = (1000.0,)
    exact: bool = True
    hard_attention: bool = False
    fixed: tuple[str, ...] = ()
    batch_tokens: int = BATCH_TOKENS
    states: "States | None" = None
    stack: Stack | None = None
    decoder_input: DecoderInput = "shifted"
    as_published: bool = False


def saturation(
    model: "str | Path | nn.Module | LoadedModel | Sequence[Any]",
    texts: "str | Path | Sequence[str] | None" = None,
    *,
    inputs: Any = None,
    tokenizer: Any = None,
    config: "str | Path | nn.Module | LoadedModel | None" = None,
    sentences: int = SENTENCES,
    c: Sequence[float] = (1000,),
    exact: bool = True,
    hard_attention: bool = False,
    stack: Literal["encoder", "decoder"] | None = None,
    decoder_input: Literal["shifted", "start"] = "shifted",
    as_published: bool = False,
    random_init: int = 0,
    seed: int = 0,
    fixed: Sequence[str] = (),
    batch_tokens: int = BATCH_TOKENS,
    states: "States | None" = None,
    dtype: str | None = None,
    attention: str | None = None,
    model_type: str | None = None,
    include: str = "blocks",
    endpoint: str | None = None,
    run: str | None = None,
    out: Path | str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Saturation:
    """The saturation level of every layer of a model. The model stays bit-identical.

    model: a module, a name for `load_model`, or a list of these. With `config`: a series of checkpoints as for `trace`;
    every checkpoint is measured, and the records include the trace.
    texts: sentences, or a file with one sentence per line (default: sentences of the Python documentation).
    inputs: instead of texts, a batch or a list of batches: token ids, or a dict of tensors, where `attention_mask`
    marks padding.
    config: the architecture of the checkpoints: a config.json, a folder or hub id that has one, or a module, whose
    weights are restored afterwards. A checkpoint with NaN or infinite weights has no levels, and `problems` names
    the parameter. include, endpoint: options of `trace` for a series.
    c: factors of the weights; each needs at most one extra copy of the weights. exact: measure the exact limit.
    hard_attention: also compare with the same weights and every attention softmax replaced by its limit.
    stack: the measured stack of an encoder-decoder model (default: the encoder). decoder_input: input of the decoder:
    "shifted", the start token and then the sentence (teacher forcing), or "start", only the start token.
    as_published: measure as in the authors' script, see `saturation/published_form.py`.
    random_init: also measure this many networks of the same architecture with random weights, with the seeds after
    `seed`, one at a time.
    fixed: parameters that do not grow, as names or patterns (`["*.A_log"]`, see `saturated`).
    states: for modules other than transformers models: a function of the module and a batch that returns the hidden
    states, each (rows, tokens, size): first the embeddings, then the output of every block.
    dtype, attention, model_type: options of `load_model` for a model given by name. run: name of the run of a single
    model.
    out: output folder; for a series, the same call resumes. overwrite: replace another result there.
    """
    if not (exact or c or hard_attention) or batch_tokens < 1 or sentences < 1 or random_init < 0:
        raise InputError(
            "saturation needs exact=True or a value of c, and sentences and batch_tokens must be >= 1"
        )
    load = {"seed": seed, "dtype": dtype, "attention": attention, "model_type": model_type}
    factors = tuple(float(one) for one in c)
    options = LevelOptions(
        tokenizer=tokenizer,
        sentences=sentences,
        c=factors,
        exact=exact,
        hard_attention=hard_attention,
        fixed=tuple(fixed),
        batch_tokens=batch_tokens,
        states=states,
        stack=stack,
        decoder_input=decoder_input,
        as_published=as_published,
    )
    if config is not None:
        from normgrowth.network.models.load import load_model
        from normgrowth.network.saturation.saturation_series import of_series

        if random_init or as_published:
            raise InputError("random_init and as_published are for models, not for a series")
        source: Any = model
        if isinstance(source, list | tuple) and len(source) == 1:
            source = source[0]
        architecture = load_model(config, **load) if isinstance(config, str | Path) else config
        place = {"run": run, "out": out, "overwrite": overwrite, "progress": progress}
        return of_series(
            source, architecture, texts, inputs, options, include=include, endpoint=endpoint, **place
        )
    from normgrowth.network.saturation.state_comparison import measure

    batches = each_batch(inputs)

    def measured(one: Any, name: str) -> Saturation:
        return measure(
            one,
            texts,
            batches,
            options,
            load=load,
            random_init=random_init,
            seed=seed,
            run=run or name,
            progress=progress,
        )

    request = {"text": source_of(texts), "sentences": sentences, "c": list(factors), "exact": exact}
    request |= {"hard_attention": hard_attention, "random_init": random_init, "fixed": list(fixed), **load}
    request |= {"stack": stack} if stack else {}
    request |= {"decoder_input": decoder_input} if decoder_input != "shifted" else {}
    request |= {"as_published": True} if as_published else {}
    return measure_each(model, measured, "saturation", request, out, overwrite)


def _levels(records: Records) -> dict[str, dict[int | None, float]]:
    """quantity -> layer -> level; the mean over blocks under None."""
    found: dict[str, dict[int | None, float]] = {}
    for row in records.table.to_pylist():
        if row["quantity"].startswith(EXACT):
            layer = EMBEDDINGS if row["layer"] is None else row["layer"]
            layer = None if row["level"] == "model" else layer
            found.setdefault(row["quantity"], {})[layer] = row["value"]
    return found


def _curve(
    rows: dict[str, dict[int | None, float]],
    quantities: tuple[str, str, str],
    run: str,
    c: float | None,
    random_weights: bool,
    baseline: bool,
) -> LayerCurve:
    level = rows[quantities[0]]
    layers = sorted(layer for layer in level if layer is not None)
    values, errors, others = (
        np.array([rows.get(quantity, {}).get(layer, nan) for layer in layers]) for quantity in quantities
    )
    return LayerCurve(run, c, random_weights, baseline, layers, values, errors, others, level.get(None, nan))


def _from_schema_1(stored: StoredResult) -> StoredResult:
    """Convert a result of schema 1, which other commands that measured levels also wrote."""
    records, fields = stored.records, stored.fields
    # The records of another command also have other quantities.
    if fields.get("command") not in ("saturation", "published", None):
        fields = {key: fields[key] for key in ("notes", "problems") if fields.get(key)}
    known, series = fields.get("runs"), fields.get("saturation")
    models = {}
    for run in records.distinct("run"):
        own = known.get(run) if isinstance(known, dict) else None
        own = own if isinstance(own, dict) else series if isinstance(series, dict) else fields
        rows = records.where(run=run, level="model").table.to_pylist()
        models[run] = from_sidecar(run, own, {row["quantity"]: row["value"] for row in rows})
    first = next(iter(known.values()), fields) if isinstance(known, dict) else fields
    first = first if isinstance(first, dict) else {}
    scales = records.distinct("scale") if "scale" in records.table.column_names else []
    exact = records.where(scale=None).distinct("quantity")
    added: dict[str, Any] = {
        "models": models,
        "c": [c for c in scales if c is not None],
        "exact": any(name.startswith(EXACT) for name in exact),
        **{name: first[name] for name in ("random_init", "seed", "fixed") if name in first},
    }
    if isinstance(series, dict):
        steps = records.where(level="model").table.to_pylist()
        added["config"] = series.get("config") or ""
        added["steps"] = list(
            dict.fromkeys(row["step"] for row in steps if row["quantity"].startswith(EXACT))
        )
    else:
        added["steps"] = []
    return StoredResult(records, {**fields, **added})


__all__ = ["LayerCurve", "Saturation", "quantity_at", "saturation", "scale_at"]
