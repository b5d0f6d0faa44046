"""`heads`: what every attention head of a network does, as it is and saturated (section 4.3, Figure 3).

Quantities of each head, means over queries unless something else is said. A query that sees one position only (the
first token of a causal model) has nothing to choose and is left out of all of them; padding counts neither as query
nor as key.

in the saturated network, by the exact limit (`saturated`)
    attended                   positions with at least half of the largest weight: one, or all that tie
    attended_share             of the visible ones
    attended_spread            (attended − 1) / (visible − 1): 0 for an argmax, 1 for a mean, whatever the length
    saturated_largest_share, saturated_first_share, saturated_previous_share    as below
    saturated_distance         total variation distance between its weights and those of the network itself
    attended, attended_share, attended_spread with a value c in the column `scale`: the same counts with the weights
                               times c, in float64 (on request)
in the network itself
    visible                    positions that a query sees; one_share: 1 / visible, the share of one position
    entropy                    in nats; entropy_share: over log n, n visible positions
    effective, effective_2     positions in effect: e^H and 1 / Σ A²
    largest_share              the largest weight
    first_share                weight on the first token, mean over the queries that see it: an attention sink
    previous_share             weight on the token before, mean over the queries that see it
    learned_sink_share         weight on a learned sink, in models with such (GPT-OSS): one more position that every
                               query sees, at no distance; saturated_learned_sink_share, the same in the limit
    distance                   mean distance looked, Σ A·|q − k|
    hard_distance              total variation distance to its own scores made hard
    largest_logit              the largest score in size, over all queries
    gap                        between the largest score and the next: the median over queries
    hard_scale                 the factor on the scores at which, for 9 of 10 queries, no more than `tolerance` of the
                               weight is beside the largest; infinite if more than one in ten has a tie
in the published form (on request: `window`)
    attended_window            as the authors count: every sentence filled up to N tokens, padding counts as query
                               and as key, mean over all N queries

Level "head" has a row for each; "layer" and "model" the mean over their heads, of largest_logit the largest, of gap and
hard_scale the median. Notes say what was left out. `kinds` names what a head does, by the thresholds below.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import InputError
from normgrowth.network.measured import ModelInfo, each_batch, from_sidecar, measure_each, source_of
from normgrowth.records import Records
from normgrowth.results import Result
from normgrowth.stored_result import StoredResult
from normgrowth.text import one_line

if TYPE_CHECKING:
    from torch import nn

    from normgrowth.network.models.load import LoadedModel

Floats = NDArray[np.float64]
Progress = Callable[[int, int, str], None]  # passes done, of how many, of what

SENTENCES = 200  # as in the paper's Figure 3
BATCH_TOKENS = 2048
TOLERANCE = 0.01  # of the weight may be beside the largest, and the head still be called hard

# What a head is called: the first that fits. In the network itself, then saturated.
KINDS = ("mean-like", "sink", "previous-token", "argmax-like", "in between")
THRESHOLDS = {  # at least
    "mean-like": {"entropy_share": 0.9, "attended_spread": 0.9},
    "sink": {"first_share": 0.5, "saturated_first_share": 0.5},  # and what is on a learned sink
    "previous-token": {"previous_share": 0.5, "saturated_previous_share": 0.5},
    "argmax-like": {"largest_share": 0.75, "saturated_largest_share": 0.75},
}

# kind -> what makes it clear
CLEAREST = {
    "argmax-like": "largest_share",
    "previous-token": "previous_share",
    "sink": "first_share",
    "mean-like": "entropy_share",
}
MOST_SHOWN = 4  # heads beside each other


@dataclass(frozen=True)
class HeadPattern:
    """The weights of one head on one sentence, a row for each query."""

    __repr__ = one_line

    soft: tuple[tuple[float, ...], ...]
    saturated: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class AttentionPatterns:
    """The attention of some heads on one sentence, in the network itself and in the saturated one."""

    __repr__ = one_line

    tokens: tuple[str, ...]
    heads: dict[str, HeadPattern]
    sentence: str = ""


@dataclass(frozen=True)
class MeasuredHeads:
    """What is known of the heads of one model. kinds, saturated_kinds: of each head by its name; empty if unknown."""

    __repr__ = one_line

    model: ModelInfo
    kinds: dict[str, str] = field(default_factory=dict)
    saturated_kinds: dict[str, str] = field(default_factory=dict)
    patterns: AttentionPatterns | None = None


@dataclass(frozen=True)
class HeadTable:
    """The heads of one model at its last step: of each, its layer, its quantities, its kinds ("" if unknown).

    scale: the c at which attended positions were counted; None: in the exact limit.
    """

    run: str
    step: int
    names: list[str]
    layers: list[int | None]
    values: dict[str, Floats]  # quantity -> (heads,)
    by_layer: dict[int, dict[str, float]]
    model: dict[str, float]
    kinds: list[str]
    saturated_kinds: list[str]
    scale: float | None = None

    def of(self, quantity: str) -> Floats:
        return self.values.get(quantity, np.full(len(self.names), nan))

    @property
    def depth(self) -> list[int]:
        return sorted({layer for layer in self.layers if layer is not None})

    @property
    def form(self) -> str:
        """The quantity closest to the published form of Figure 3; "" if no attended positions were counted."""
        return next((name for name in ("attended_window", "attended") if name in self.values), "")

    def clearest(self, most: int = MOST_SHOWN) -> list[str]:
        """The names of heads worth a look: the clearest of each kind, then those with most weight on one position."""
        found: list[str] = []
        for kind, quantity in CLEAREST.items():
            own = np.array([name == kind for name in self.kinds])
            if own.any():
                found.append(self.names[int(np.where(own, self.of(quantity), -inf).argmax())])
        rest = np.argsort(-self.of("largest_share"))
        found += [self.names[i] for i in rest if self.names[i] not in found]
        return sorted(found[:most], key=self.names.index)


@dataclass(frozen=True, kw_only=True)
class Heads(Result):
    """What the attention heads of models do.

    models: by run. c: the factors of the weights that were measured, too. window: the length of the published form.
    tolerance: weight beside the largest in a hard head. thresholds: those of the kinds.
    """

    kind: ClassVar[str] = "heads"

    source: str = ""
    models: dict[str, MeasuredHeads] = field(default_factory=dict)
    exact: bool = True
    c: tuple[float, ...] = ()
    window: int | None = None
    tolerance: float = TOLERANCE
    fixed: tuple[str, ...] = ()
    thresholds: dict[str, dict[str, float]] = field(default_factory=lambda: THRESHOLDS)

    @property
    def tables(self) -> list[HeadTable]:
        """The heads of each model, at its last step."""
        found = []
        for run in self.records.distinct("run"):
            rows = self.records.where(run=run).table.to_pylist()
            step = max((row["step"] for row in rows if row["level"] == "head"), default=None)
            if step is not None:
                known = self.models.get(run) or MeasuredHeads(ModelInfo(run))
                found.append(_table(run, step, [row for row in rows if row["step"] == step], known))
        return found

    @classmethod
    def from_stored(cls, stored: StoredResult) -> Self:
        """The result whose table and fields were read from a folder, also of an earlier version."""
        current = stored.fields.get("kind") == cls.kind
        return super().from_stored(stored if current else _from_schema_1(stored))


def heads(
    model: "str | Path | nn.Module | LoadedModel | Sequence[Any]",
    texts: "str | Path | Sequence[str] | None" = None,
    *,
    inputs: Any = None,
    tokenizer: Any = None,
    sentences: int = SENTENCES,
    exact: bool = True,
    c: Sequence[float] = (),
    window: int | None = None,
    tolerance: float = TOLERANCE,
    show: str | None = None,
    show_heads: Sequence[str] = (),
    batch_tokens: int = BATCH_TOKENS,
    fixed: Sequence[str] = (),
    seed: int = 0,
    dtype: str | None = None,
    attention: str | None = None,
    model_type: str | None = None,
    step: int = 0,
    run: str | None = None,
    out: Path | str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Heads:
    """What every attention head of a model does; the model is left as it was, to the bit.

    model: a module, a name as `load_model` takes it, or several of them. Of a model with encoder and decoder the
    encoder is measured.
    texts: sentences, or a file with one a line; without, sentences of the Python documentation.
    inputs: instead of texts, a batch or a list of batches: token ids, or tensors by name, of which `attention_mask`
    says what is padding.
    exact: measure the saturated network, too, by its limit. c: also measure with the weights times each c, which
    needs a copy of the model in float64. window: measure the published form, too, on sentences filled up to so many
    tokens. tolerance: weight beside the largest in a hard head, for hard_scale.
    show: a sentence whose attention patterns are kept; show_heads: of which heads, by name (the clearest).
    fixed: parameters that do not grow, by name or pattern, as `saturated` takes them (`["*.A_log"]`).
    seed, dtype, attention, model_type: for a name, as `load_model` takes them. step, run: of the records.
    out: output folder; overwrite: replace another result there.
    """
    from normgrowth.network.heads.measurement import measure

    if show_heads and show is None:
        raise InputError("show_heads are drawn on a sentence: give one with show")
    load = {"seed": seed, "dtype": dtype, "attention": attention, "model_type": model_type}
    factors, batches = tuple(float(factor) for factor in c), each_batch(inputs)

    def measured(one: Any, name: str) -> Heads:
        return measure(
            one,
            texts,
            batches,
            load=load,
            tokenizer=tokenizer,
            sentences=sentences,
            exact=exact,
            c=factors,
            window=window,
            tolerance=tolerance,
            show=show,
            show_heads=show_heads,
            batch_tokens=batch_tokens,
            fixed=tuple(fixed),
            step=step,
            run=run or name,
            progress=progress,
        )

    request = {"text": source_of(texts), "sentences": sentences, "window": window, "c": list(factors)}
    request |= {"exact": exact, "tolerance": tolerance, "fixed": list(fixed), **load}
    return measure_each(model, measured, "heads", request, out, overwrite)


def kind(quantities: Mapping[str, float], *, of_saturated: bool = False) -> str:
    """What a head is called by its quantities: as it is, or in the saturated network. "" if these are not known."""
    learned = quantities.get("saturated_learned_sink_share" if of_saturated else "learned_sink_share", 0.0)
    for name in KINDS[:-1]:
        quantity, least = list(THRESHOLDS[name].items())[of_saturated]
        if quantity not in quantities:
            return ""
        if quantities[quantity] + (learned if name == "sink" else 0.0) >= least:
            return name
    return KINDS[-1]


def kinds(records: Records, *, of_saturated: bool = False) -> dict[tuple[str, int, str], str]:
    """The kind of every head of records, by run, step and name."""
    found: dict[tuple[str, int, str], dict[str, float]] = {}
    for row in records.where(level="head").table.to_pylist():
        found.setdefault((row["run"], row["step"], row["name"]), {})[row["quantity"]] = row["value"]
    return {head: kind(quantities, of_saturated=of_saturated) for head, quantities in found.items()}


def _table(run: str, step: int, rows: list[dict[str, Any]], known: MeasuredHeads) -> HeadTable:
    counted = [row.get("scale") for row in rows if row["quantity"].startswith("attended")]
    scale = None if None in counted else next(iter(counted), None)
    rows = [row for row in rows if row.get("scale") in (None, scale)]
    own = [row for row in rows if row["level"] == "head"]
    layers = {row["name"]: row["layer"] for row in own}
    place = {name: i for i, name in enumerate(layers)}
    values: dict[str, Floats] = {}
    for row in own:
        values.setdefault(row["quantity"], np.full(len(place), nan))[place[row["name"]]] = row["value"]
    by_layer: dict[int, dict[str, float]] = {}
    for row in rows:
        if row["level"] == "layer":
            by_layer.setdefault(row["layer"], {})[row["quantity"]] = row["value"]
    return HeadTable(
        run,
        step,
        list(layers),
        list(layers.values()),
        values,
        by_layer,
        {row["quantity"]: row["value"] for row in rows if row["level"] == "model"},
        [known.kinds.get(name, "") for name in layers],
        [known.saturated_kinds.get(name, "") for name in layers],
        scale,
    )


def _from_schema_1(stored: StoredResult) -> StoredResult:
    """Results of earlier versions, and of other commands that measured heads: what they say of each run."""
    records, fields = stored.records, stored.fields
    known = fields.get("runs")
    models: dict[str, Any] = {}
    first: Mapping[str, Any] = {}
    for run in records.distinct("run"):
        own = known.get(run) if isinstance(known, dict) else None
        own = own if isinstance(own, dict) else fields
        first = first or own
        rows = records.where(run=run, level="model").table.to_pylist()
        parts = {key: own[key] for key in ("kinds", "saturated_kinds", "patterns") if own.get(key)}
        sizes = {row["quantity"]: row["value"] for row in rows}
        models[run] = {"model": from_sidecar(run, own, sizes), **parts}
    kept = ("exact", "window", "tolerance", "fixed", "thresholds")
    added = {key: first[key] for key in kept if first.get(key) is not None}
    if isinstance(first.get("scales"), list):
        added["c"] = first["scales"]
    shared = {key: fields[key] for key in ("command", "source", "notes", "problems") if fields.get(key)}
    return StoredResult(records, {**shared, **added, "models": models})


__all__ = [
    "AttentionPatterns",
    "HeadPattern",
    "HeadTable",
    "Heads",
    "MeasuredHeads",
    "heads",
    "kind",
    "kinds",
]
