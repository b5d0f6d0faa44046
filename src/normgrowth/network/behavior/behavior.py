"""`behavior`: what a language model predicts when it is saturated (sections 4.3 and 6 of the paper).

The same sentences are read by

    soft             the network as it is
    hard_attention   its own weights, and every softmax of attention as its limit
    scaled           the network with c times its weights; the column `scale` is c
    saturated        the exact limit of growing weights (`saturated`)

and of each of them there is, over all tokens to predict,

    accuracy         share of tokens that it ranks first
    agreement        share of tokens where it ranks first what the soft network does
    loss             −log p(token) in nats, mean over tokens; infinite in the limit, and left out there
    legal_share      of a formal language: share of places where what it ranks first may follow there

with the bounds of a bootstrap interval over sentences (`…_low`, `…_high`: the tokens of a sentence are not independent)
and the mean over networks of the same architecture with random weights (`…_random`). A causal model predicts each token
from those before; of a masked model some tokens are masked and predicted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from normgrowth.errors import InputError
from normgrowth.network.measured import ModelInfo, measure_each, source_of
from normgrowth.results import Result

if TYPE_CHECKING:
    from torch import nn

    from normgrowth.network.models.load import LoadedModel

Progress = Callable[[int, int, str], None]  # passes done, of how many, of what
Objective = Literal["causal", "masked"]
NETWORKS = ("soft", "hard_attention", "scaled", "saturated")
QUANTITIES = ("accuracy", "agreement", "loss", "legal_share")
SENTENCES = 100
BATCH_TOKENS = 2048
SCALES = (2.0, 10.0, 100.0, 1000.0)
MASKED = 0.15  # of the tokens of a sentence, as BERT was trained


@dataclass(frozen=True)
class Estimate:
    """A mean over tokens with its interval over sentences; random: the mean over networks with random weights."""

    value: float
    low: float
    high: float
    random: float = nan


@dataclass(frozen=True)
class NetworkBehavior:
    """What one network predicts. network: of NETWORKS; c: the factor of the weights, of "scaled" only."""

    run: str
    network: str
    c: float | None
    accuracy: Estimate
    agreement: Estimate
    loss: Estimate | None
    legal_share: Estimate | None


@dataclass(frozen=True, kw_only=True)
class Behavior(Result):
    """What language models predict, soft and saturated.

    models: by run. objective: of each run, whether tokens are predicted from those before, or masked. c: the factors of
    the weights. language: the formal language whose words are read. confidence, bootstrap: of the intervals.
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
        """Every network of every run, first the soft one, then with growing c, last the saturated one."""
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
    """How predictions are measured; each field is the option of `behavior` of that name."""

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
    """What a language model predicts: as it is, with hard attention, with c times its weights, and saturated.

    model: a causal or masked language model with its head, a name as `load_model` takes it, or several of them. A
    module must return logits (rows, tokens, vocabulary), as a tensor or as `.logits`.
    texts: sentences, or a file with one a line; without, words of `language`, else sentences of the Python
    documentation.
    objective: "causal" or "masked" (default: by the architecture). masked_share: of the tokens of each sentence that a
    masked model has to predict, drawn from the seed.
    language: a formal language of the lab ("dyck2", "anbncn"): also measure which predictions may follow. longest: its
    words have at most this many symbols.
    c: factors of the weights. exact: measure the saturated network. hard_attention: measure the network with its own
    weights and hard attention. random_init: networks of the same architecture with random weights, from the seeds after
    `seed`. fixed: parameters that do not grow, by name or pattern, as `saturated` takes them.
    confidence, bootstrap: of the intervals over sentences; 0 replicates: no intervals.
    dtype, attention, model_type: for a name, as `load_model` takes them. run: the name of a single model's run.
    out: output folder; overwrite: replace another result there.
    """
    from normgrowth.network.behavior.predictions import measure

    if sentences < 1 or batch_tokens < 1 or random_init < 0 or bootstrap < 0:
        raise InputError("behavior needs at least one sentence, one token per batch, and no negative counts")
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
