"""`behavior`: predictions of a language model when it is saturated (sections 4.3 and 6 of the paper).

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

Each comes with the bounds of a bootstrap interval over sentences (`…_low`, `…_high`; tokens of one sentence are not
independent) and with the mean over networks of the same architecture with random weights (`…_random`). A causal model
predicts each token from the tokens before it. A masked model predicts tokens that were masked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from normgrowth.engine import Progress
from normgrowth.errors import InputError
from normgrowth.network.measured import ModelInfo, measure_each, source_of
from normgrowth.results import Result

if TYPE_CHECKING:
    from torch import nn

    from normgrowth.network.models.load import LoadedModel

Objective = Literal["causal", "masked"]
NETWORKS = ("soft", "hard_attention", "scaled", "saturated")
QUANTITIES = ("accuracy", "agreement", "loss", "legal_share")
SENTENCES = 100
BATCH_TOKENS = 2048
SCALES = (2.0, 10.0, 100.0, 1000.0)
MASKED = 0.15  # share of the tokens of a sentence, as in BERT's training


@dataclass(frozen=True)
class Estimate:
    """A mean over tokens with a bootstrap interval over sentences. random: the mean over random networks."""

    value: float
    low: float
    high: float
    random: float = nan


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


@dataclass(frozen=True)
class BehaviorOptions:
    """How predictions are measured; the fields are options of `behavior`."""

    tokenizer: Any = None
    objective: Objective | None = None
    masked_share: float = MASKED
    language: str | None = None
    longest: int | None = None
    sentences: int = SENTENCES
    c: tuple[float, ...] = SCALES
    exact: bool = True
    hard_attention: bool = True
    fixed: tuple[str, ...] = ()
    random_init: int = 1
    seed: int = 0
    confidence: float = 0.95
    bootstrap: int = 1000
    batch_tokens: int = BATCH_TOKENS


def behavior(
    model: "str | Path | nn.Module | LoadedModel | Sequence[Any]",
    texts: "str | Path | Sequence[str] | None" = None,
    *,
    tokenizer: Any = None,
    objective: Literal["causal", "masked"] | None = None,
    masked_share: float = MASKED,
    language: str | None = None,
    longest: int | None = None,
    sentences: int = SENTENCES,
    c: Sequence[float] = SCALES,
    exact: bool = True,
    hard_attention: bool = True,
    random_init: int = 1,
    seed: int = 0,
    fixed: Sequence[str] = (),
    confidence: float = 0.95,
    bootstrap: int = 1000,
    batch_tokens: int = BATCH_TOKENS,
    dtype: str | None = None,
    attention: str | None = None,
    model_type: str | None = None,
    run: str | None = None,
    out: Path | str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Behavior:
    """Predictions of a language model: unchanged, with hard attention, with c times its weights, and saturated.

    model: a causal or masked language model with its head, a name for `load_model`, or a list of these. A module must
    return logits (rows, tokens, vocabulary), as a tensor or as `.logits`.
    texts: sentences, or a file with one sentence per line. Default: words of `language` if it is given, else sentences
    of the Python documentation.
    objective: "causal" or "masked" (default: by the architecture). masked_share: share of the tokens of each sentence
    that a masked model predicts, drawn from the seed.
    language: a formal language of the lab ("dyck2", "anbncn"): also measure which predictions are legal. longest: the
    maximum number of symbols per word.
    c: factors of the weights. exact: measure the saturated network. hard_attention: measure the network with unchanged
    weights and hard attention. random_init: number of networks of the same architecture with random weights, with the
    seeds after `seed`. fixed: parameters that do not grow, as names or patterns (see `saturated`).
    confidence, bootstrap: level and number of replicates of the intervals over sentences; 0 replicates: no intervals.
    dtype, attention, model_type: options of `load_model` for a model given by name. run: name of the run of a single
    model.
    out: output folder; overwrite: replace another result there.
    """
    from normgrowth.network.behavior.predictions import measure

    if sentences < 1 or batch_tokens < 1 or random_init < 0 or bootstrap < 0:
        raise InputError("sentences and batch_tokens must be >= 1, random_init and bootstrap >= 0")
    if not 0 < confidence < 1 or not 0 < masked_share <= 1:
        raise InputError(
            f"confidence and masked_share must be between 0 and 1, got {confidence:g} and {masked_share:g}"
        )
    load = {"seed": seed, "dtype": dtype, "attention": attention, "model_type": model_type}
    options = BehaviorOptions(
        tokenizer,
        objective,
        masked_share,
        language,
        longest,
        sentences,
        tuple(float(one) for one in c),
        exact,
        hard_attention,
        tuple(fixed),
        random_init,
        seed,
        confidence,
        bootstrap,
        batch_tokens,
    )

    def measured(one: Any, name: str) -> Behavior:
        return measure(one, texts, options, load=load, run=run or name, progress=progress)

    request = {"text": source_of(texts), "sentences": sentences, "c": list(options.c), "exact": exact}
    request |= {"hard_attention": hard_attention, "objective": objective, "masked_share": masked_share}
    request |= {"language": language, "longest": longest, "random_init": random_init, "fixed": list(fixed)}
    request |= {"confidence": confidence, "bootstrap": bootstrap, **load}
    return measure_each(model, measured, "behavior", request, out, overwrite)


__all__ = ["Behavior", "Estimate", "NetworkBehavior", "behavior"]
