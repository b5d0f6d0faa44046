"""`saturation`: how close a network is to its saturated limit, layer by layer (the paper's section 4.1).

The level of a layer is the mean over real tokens of cos(f(x; θ), s f(x; θ)), where s f is the exact limit of
f(x; cθ) as c grows (`saturated`), or, as in the paper, f(x; cθ) itself at a large c.

    saturation                 by the exact limit
    saturation_c1000           at c = 1000
    saturation_hard_attention  the weights as they are, and every softmax of attention as its limit
    …_others                   the same with the saturated states of the other tokens of the sentence
    …_stderr                   standard error, over sentences: the tokens of one are not independent
    …_random, …_random_std     mean and standard deviation over networks with random weights
    evaluation_tokens, evaluation_sentences    of the text that was measured with (of the model)

Only the excess over the cosine to *other* tokens indicates saturation: where all states of a network share a
direction, each is close to every saturated one, whatever attention does.

Level "layer": the embeddings (name "embeddings", no layer number), then the output of each block, numbered from 0
as in every record; the last one is the output of the network, after its final norm if it has one. Level "model":
the mean over blocks. A level that is undefined for one token (overflow; a state of zero) is NaN, and notes say so.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from normgrowth.checkpoints.selection import CountedParameters, Selection
from normgrowth.errors import InputError
from normgrowth.lint.finding import Finding
from normgrowth.network.measured import ModelInfo, each_once, from_sidecar, naming
from normgrowth.network.result_folder import ResultFolder
from normgrowth.records import Records
from normgrowth.results import Provenance, Result
from normgrowth.stored_result import StoredResult

if TYPE_CHECKING:
    from torch import nn

    from normgrowth.network.hidden_states import States
    from normgrowth.network.models.load import LoadedModel

Floats = NDArray[np.float64]
Progress = Callable[[int, int, str], None]  # passes done, of how many, of what
EXACT, HARD = "saturation", "saturation_hard_attention"
SENTENCES = 100
BATCH_TOKENS = 2048
EMBEDDINGS = -1  # where layers are numbered
SCALED = re.compile(r"saturation_c([^_]+)")


def quantity_at(c: float | None) -> str:
    """The quantity of levels at c; infinity is the exact limit, None is hard attention."""
    return HARD if c is None else EXACT if c == inf else f"{EXACT}_c{c:g}"


@dataclass(frozen=True)
class LayerCurve:
    """The levels of one network at one c: of the embeddings and blocks, and the mean over blocks.

    c: infinity is the exact limit, None is hard attention. baseline: the mean over networks of the same architecture
    with random weights.
    layers: 0 is the first block; EMBEDDINGS comes before. errors: standard error over sentences; of a baseline,
    deviation over seeds. others: the same with other tokens' saturated states.
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
        """Where in `layers` the blocks are: all but the embeddings."""
        return [i for i, layer in enumerate(self.layers) if layer != EMBEDDINGS]


@dataclass(frozen=True, kw_only=True)
class Saturation(Result):
    """Levels of saturation of models, or of every checkpoint of a series together with its trace.

    models: by run. c: the factors of the weights; exact, hard_attention: whether these were measured. random_init:
    networks with random weights that were measured for each model. Of a series: config is what the checkpoints are
    weights of, steps are those that have levels, and selection, counted and findings are those of its trace.
    """

    kind: ClassVar[str] = "saturation"

    source: str = ""
    models: dict[str, ModelInfo] = field(default_factory=dict)
    c: tuple[float, ...] = ()
    exact: bool = True
    hard_attention: bool = False
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
        """Every c that was measured, first infinity: the exact limit; last None: hard attention."""
        return [*([inf] if self.exact else []), *self.c, *([None] if self.hard_attention else [])]

    @property
    def curves(self) -> list[LayerCurve]:
        """Levels by layer, of models that were measured once: models, values of c, and baselines after the model."""
        found = []
        for run in self.records.distinct("run"):
            rows = _levels(self.records, run)
            known = self.models.get(run) or ModelInfo(run)
            for c in self.scales:
                method = quantity_at(c)
                for baseline, own, error in ((False, "", "_stderr"), (True, "_random", "_random_std")):
                    if f"{method}{own}" in rows:
                        names = (f"{method}{own}", f"{method}{error}", f"{method}_others{own}")
                        found.append(_curve(rows, names, run, c, known.random_weights or baseline, baseline))
        return found

    def to_json(self, *, tensors: bool = False) -> dict[str, Any]:
        """All fields and the records; of a series, rows of single tensors only with `tensors`."""
        return super().to_json(tensors=tensors)

    @classmethod
    def from_stored(cls, stored: StoredResult) -> Self:
        """The result whose table and fields were read from a folder, also of an earlier version."""
        current = stored.fields.get("kind") == cls.kind
        return super().from_stored(stored if current else _from_schema_1(stored))


def saturation(
    model: "str | Path | nn.Module | LoadedModel | Sequence[Any]",
    texts: "str | Path | Sequence[str] | None" = None,
    *,
    batches: Iterable[Any] | None = None,
    tokenizer: Any = None,
    config: "str | Path | nn.Module | LoadedModel | None" = None,
    sentences: int = SENTENCES,
    c: Sequence[float] = (1000,),
    exact: bool = True,
    hard_attention: bool = False,
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
    """The saturation level of every layer of a model; the model is left as it was, to the bit.

    model: a module, a name as `load_model` takes it, or several of them. With `config`: a series of checkpoints as
    `trace` takes it; each is measured, and the records have the trace, too.
    texts: sentences, or a file with one a line; without, sentences of the Python documentation. batches: instead of
    texts, tensors by name; `attention_mask` says what is padding. Of a model with encoder and decoder the encoder is
    measured.
    config: what the checkpoints are weights of: a config.json, a folder or hub id that has one, or a module, which
    has its own weights back afterwards. A checkpoint with NaN or infinite weights has no levels, and `problems` names
    the parameter. include, endpoint: of a series, as for `trace`.
    c: factors of the weights; c times the weights need one more copy of them at most. exact: measure the exact limit.
    hard_attention: also compare with the same weights and every softmax of attention replaced by its limit.
    random_init: also measure this many networks of the same architecture with random weights, from the seeds after
    `seed`, one at a time.
    fixed: parameters that do not grow, by name or pattern, as `saturated` takes them (`["*.A_log"]`).
    states: for modules that are not of transformers: a function of the module and a batch that returns its states,
    each (rows, tokens, size), first the embeddings, then the output of every block.
    dtype, attention, model_type: for a name, as `load_model` takes them. run: the name of a single model's run.
    out: output folder; with a series, the same call resumes. overwrite: replace another result there.
    """
    if not (exact or c or hard_attention) or batch_tokens < 1 or sentences < 1 or random_init < 0:
        raise InputError(
            "saturation needs exact=True or a value of c, and at least one sentence and one token per batch"
        )
    load = {"seed": seed, "dtype": dtype, "attention": attention, "model_type": model_type}
    passes = {
        "tokenizer": tokenizer,
        "sentences": sentences,
        "c": tuple(float(one) for one in c),
        "exact": exact,
        "hard_attention": hard_attention,
        "fixed": tuple(fixed),
        "batch_tokens": batch_tokens,
        "states": states,
    }
    if config is not None:
        from normgrowth.network.models.load import load_model
        from normgrowth.network.saturation.saturation_series import of_series

        if random_init:
            raise InputError("random_init is for models, not for a series")
        source: Any = model
        if isinstance(source, list | tuple) and len(source) == 1:
            source = source[0]
        return of_series(
            source,
            config if not isinstance(config, str | Path) else load_model(config, **load),
            texts,
            batches,
            include=include,
            endpoint=endpoint,
            run=run,
            out=out,
            overwrite=overwrite,
            progress=progress,
            **passes,
        )
    from normgrowth.network.saturation.state_comparison import measure

    models: list[Any] = list(model) if isinstance(model, list | tuple) else [model]
    names = each_once(models)
    request = {"model": names, "text": _named(texts), "sentences": sentences, "c": list(passes["c"])}
    request |= {
        "exact": exact,
        "hard_attention": hard_attention,
        "random_init": random_init,
        "fixed": list(fixed),
        **load,
    }
    folder = ResultFolder(out, "saturation", request, overwrite)
    if batches is not None:
        batches = [batches] if hasattr(batches, "keys") or hasattr(batches, "shape") else list(batches)
    parts = []
    for one, name in zip(models, names, strict=True):
        with naming(one):
            found = measure(
                one,
                texts,
                batches,
                load=load,
                random_init=random_init,
                seed=seed,
                run=run or name,
                progress=progress,
                **passes,
            )
        parts.append(found)
    several = len(parts) > 1
    notes = [f"{f'{part.source}: ' if several else ''}{note}" for part in parts for note in part.notes]
    result = replace(
        parts[0],
        records=Records.joined([part.records for part in parts]),
        source=", ".join(names),
        models={run: known for part in parts for run, known in part.models.items()},
        notes=tuple(notes),
        provenance=Provenance.now(),
    )
    folder.write(result)
    return result


def _named(texts: Any) -> Any:
    return str(texts) if isinstance(texts, str | Path) or texts is None else "sentences from Python"


def _levels(records: Records, run: str) -> dict[str, dict[int | None, float]]:
    """quantity -> layer -> level; the mean over blocks under None."""
    found: dict[str, dict[int | None, float]] = {}
    for row in records.where(run=run).table.to_pylist():
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
    """Results of earlier versions, and of other commands that measured levels: what they say of each run."""
    records, fields = stored.records, stored.fields
    # Another command also measured something else.
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
    quantities = records.distinct("quantity")
    scales = [float(found[1]) for name in quantities if (found := SCALED.fullmatch(name))]
    random = [float(found[1]) for name in quantities if (found := SCALED.match(name))]
    added: dict[str, Any] = {
        "models": models,
        "c": list(dict.fromkeys([*scales, *random])),
        "exact": any(name.startswith(EXACT) and not SCALED.match(name) for name in quantities),
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


__all__ = ["LayerCurve", "Saturation", "quantity_at", "saturation"]
