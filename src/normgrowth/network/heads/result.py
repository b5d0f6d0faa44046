"""`Heads`: statistics of every attention head, in the network and in its saturated limit (section 4.3, Figure 3).

Quantities of each head are means over queries unless noted otherwise. A query that sees only one position (the first
token of a causal model) has no choice and is excluded from all of them. Padding counts neither as query nor as key.

in the saturated network, by the exact limit (`saturated`)
    attended                   positions with at least half of the largest weight: one, or all that tie
    attended_share             attended / visible
    attended_spread            (attended − 1) / (visible − 1): 0 for an argmax, 1 for a mean, whatever the length
    attended_distance          mean of |q − k| over the attended positions
    saturated_largest_share, saturated_first_share, saturated_previous_share    as below
    saturated_distance         total variation distance between its weights and those of the network itself
    attended… with a value c in the column `scale`: the same for the network with c times its weights, in float64 (on
                               request)
in the network itself
    visible                    positions that a query sees; one_share: 1 / visible, the share of one position
    entropy                    H in nats; entropy_share: H / log n for n visible positions
    effective, effective_2     effective number of positions: e^H and 1 / Σ A²
    largest_share              the largest weight
    first_share                weight on the first token (attention sink), mean over the queries that see it
    previous_share             weight on the previous token, mean over the queries that see it
    learned_sink_share         weight on a learned sink (GPT-OSS): one more position that every query sees, at
                               distance 0; saturated_learned_sink_share is the same in the limit
    distance                   mean attention distance, Σ A·|q − k|
    visible_distance           mean of |q − k| over the visible positions: the distance of a position drawn at random
    hard_distance              total variation distance to the hard attention of its own scores
    largest_logit              the largest absolute score over all queries
    gap                        the largest score minus the second largest; the median over queries
    hard_scale                 the factor on the scores at which 9 of 10 queries have at most `tolerance` of their
                               weight outside the largest position; infinite if more than one in ten has a tie
in the published form (on request: `window`)
    attended_window            the authors' count: every sentence is padded to N tokens, padding counts as query
                               and as key, mean over all N queries

Level "head" has one row per head. Levels "layer" and "model" have the mean over heads; the maximum for largest_logit;
the median for gap and hard_scale. Notes name what was left out. `kinds` classifies heads by the thresholds below.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, nan
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from normgrowth.network.measured import ModelInfo
from normgrowth.records import Records
from normgrowth.results import Result
from normgrowth.text import one_line, visible

Floats = NDArray[np.float64]

TOLERANCE = 0.01  # a hard head has at most this share of its weight outside the largest position

# Kinds of heads; the first that fits applies. Each has a threshold for the network itself and one for its limit.
KINDS = ("mean-like", "sink", "previous-token", "argmax-like", "in between")
THRESHOLDS = {  # lower bounds
    "mean-like": {"entropy_share": 0.9, "attended_spread": 0.9},
    "sink": {"first_share": 0.5, "saturated_first_share": 0.5},  # the share of a learned sink is added
    "previous-token": {"previous_share": 0.5, "saturated_previous_share": 0.5},
    "argmax-like": {"largest_share": 0.75, "saturated_largest_share": 0.75},
}

# kind -> the quantity that is largest in the clearest heads of this kind
CLEAREST = {
    "argmax-like": "largest_share",
    "previous-token": "previous_share",
    "sink": "first_share",
    "mean-like": "entropy_share",
}
MOST_SHOWN = 4  # heads in one figure


@dataclass(frozen=True)
class HeadPattern:
    """The attention weights of one head on one sentence, one row per query."""

    __repr__ = one_line

    soft: tuple[tuple[float, ...], ...]
    saturated: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class AttentionPatterns:
    """The attention of some heads on one sentence, in the network itself and in the saturated network."""

    __repr__ = one_line

    tokens: tuple[str, ...]
    heads: dict[str, HeadPattern]
    sentence: str = ""


@dataclass(frozen=True)
class MeasuredHeads:
    """The heads of one model. kinds, saturated_kinds: the kind of each head by its name; empty if unknown."""

    __repr__ = one_line

    model: ModelInfo
    kinds: dict[str, str] = field(default_factory=dict)
    saturated_kinds: dict[str, str] = field(default_factory=dict)
    patterns: AttentionPatterns | None = None


@dataclass(frozen=True)
class HeadTable:
    """The heads of one model at its last step, with their layers, quantities and kinds ("" if unknown).

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
        """Names of typical heads: the clearest of each kind, then heads with the most weight on one position."""
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
    """Statistics of the attention heads of models.

    models: models by run. c: the measured factors of the weights. window: the length of the published form.
    tolerance: maximum weight outside the largest position in a hard head. thresholds: thresholds of the kinds.
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

    def __repr__(self) -> str:
        """One line: the models and how many heads of each kind they have."""
        found = [kind for one in self.models.values() for kind in one.kinds.values()]
        kinds = ", ".join(f"{found.count(kind)} {kind}" for kind in KINDS if kind in found)
        return f"Heads({visible(self.source)}, {len(found):,} heads{f': {kinds}' if kinds else ''})"

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


def kind(quantities: Mapping[str, float], *, of_saturated: bool = False) -> str:
    """The kind of a head from its quantities, in the network itself or saturated; "" if quantities are missing."""
    learned = quantities.get("saturated_learned_sink_share" if of_saturated else "learned_sink_share", 0.0)
    for name in KINDS[:-1]:
        quantity, least = list(THRESHOLDS[name].items())[of_saturated]
        if quantity not in quantities:
            return ""
        if quantities[quantity] + (learned if name == "sink" else 0.0) >= least:
            return name
    return KINDS[-1]


def kinds(records: Records, *, of_saturated: bool = False) -> dict[tuple[str, int, str], str]:
    """The kind of every head in the records, by run, step and name."""
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
