"""`Behavior`: predictions of a language model when it is saturated (sections 4.3 and 6 of the paper).

These networks read the same sentences:

    soft             the unchanged network
    hard_attention   the unchanged weights, with every attention softmax replaced by its limit
    scaled           the network with c times its weights; the column `scale` is c
    saturated        the exact limit of growing weights (`saturated`)

Quantities of each network, over all tokens to predict:

    accuracy         share of tokens where the token is the top prediction
    agreement        share of tokens where the top prediction equals that of the soft network
    loss             mean of −log p(token) in nats; left out in the limit, where it is infinite
    legal_share      share of tokens where the top prediction is legal in the formal language

The soft network also has the margins of its tokens (section 2.1): the logit of the right token minus the largest other
logit.

    margin, margin_least                           median and least over the tokens to predict
    normalized_margin, normalized_margin_least     both divided by ‖θ‖ᵏ, θ all growing parameters
    logit_degree                                   k, the degree of the logits

Each share and loss comes with the bounds of a bootstrap interval over sentences (`…_low`, `…_high`; tokens of one
sentence are not independent) and with the mean over networks of the same architecture with random weights
(`…_random`). A causal model predicts each token from the tokens before it. A masked model predicts tokens that were
masked.
"""

from dataclasses import dataclass, field
from math import nan
from typing import ClassVar, Literal

from normgrowth.network.measured import ModelInfo
from normgrowth.results import Result

Objective = Literal["causal", "masked"]
NETWORKS = ("soft", "hard_attention", "scaled", "saturated")
MARGINS = ("margin", "margin_least", "normalized_margin", "normalized_margin_least", "logit_degree")
QUANTITIES = ("accuracy", "agreement", "loss", "legal_share")


@dataclass(frozen=True)
class Estimate:
    """A mean over tokens with a bootstrap interval over sentences. random: the mean over random networks."""

    value: float
    low: float
    high: float
    random: float = nan


@dataclass(frozen=True)
class Margins:
    """Margins of the soft network over all tokens to predict. Normalized: divided by ‖θ‖ᵏ, where k is the degree of the
    logits; NaN if there is no degree.
    """

    run: str
    median: float
    least: float
    normalized_median: float = nan
    normalized_least: float = nan
    degree: float = nan


@dataclass(frozen=True)
class NetworkBehavior:
    """The predictions of one network. network: one of NETWORKS. c: the factor of the weights, only for "scaled"."""

    run: str
    network: str
    c: float | None
    accuracy: Estimate
    agreement: Estimate
    loss: Estimate | None
    legal_share: Estimate | None


@dataclass(frozen=True, kw_only=True)
class Behavior(Result):
    """Predictions of language models, soft and saturated.

    models: models by run. objective: "causal" or "masked" for each run. c: the factors of the weights. language: the
    formal language of the input. confidence, bootstrap: level and number of replicates of the intervals.
    """

    kind: ClassVar[str] = "behavior"

    source: str = ""
    models: dict[str, ModelInfo] = field(default_factory=dict)
    objective: dict[str, Objective] = field(default_factory=dict)
    c: tuple[float, ...] = ()
    exact: bool = True
    hard_attention: bool = True
    language: str | None = None
    fixed: tuple[str, ...] = ()
    random_init: int = 0
    seed: int = 0
    confidence: float = 0.95
    bootstrap: int = 1000

    @property
    def margins(self) -> list[Margins]:
        """The margins of each run; empty in results of earlier versions."""
        soft = self.records.where(level="model", name="soft")
        values = {
            run: {
                name: float(rows.series(name)[1][-1])
                for name in MARGINS
                if len((rows := soft.where(run=run)).where(quantity=name))
            }
            for run in soft.distinct("run")
        }
        return [
            Margins(run, *(own.get(name, nan) for name in MARGINS))
            for run, own in values.items()
            if MARGINS[0] in own
        ]

    @property
    def networks(self) -> list[NetworkBehavior]:
        """Every network of every run: first the soft network, then growing c, last the saturated network."""
        values: dict[tuple[str, str, float | None], dict[str, float]] = {}
        for row in self.records.where(level="model").table.to_pylist():
            if row["name"] in NETWORKS:
                key = row["run"], row["name"], row.get("scale")
                values.setdefault(key, {})[row["quantity"]] = row["value"]
        runs = list(dict.fromkeys(run for run, *_ in values))
        order = sorted(values, key=lambda key: (runs.index(key[0]), NETWORKS.index(key[1]), key[2] or 0.0))
        found = []
        for run, network, c in order:
            parts = [_estimate(values[run, network, c], quantity) for quantity in QUANTITIES]
            accuracy, agreement = (part or Estimate(nan, nan, nan) for part in parts[:2])
            found.append(NetworkBehavior(run, network, c, accuracy, agreement, *parts[2:]))
        return found


def _estimate(values: dict[str, float], quantity: str) -> Estimate | None:
    if quantity not in values:
        return None
    ends = (values.get(f"{quantity}{end}", nan) for end in ("_low", "_high", "_random"))
    return Estimate(values[quantity], *ends)
