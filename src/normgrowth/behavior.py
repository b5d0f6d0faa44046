"""Behavior: what a language model predicts when it is saturated."""

TYPE_CHECKING = False  # not imported from typing, so that `import normgrowth` stays fast
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any, Literal

    from torch import nn

    from normgrowth.engine import Progress
    from normgrowth.network.behavior.result import Behavior
    from normgrowth.network.models.load import LoadedModel


def behavior(
    model: "str | Path | nn.Module | LoadedModel | Sequence[Any]",
    texts: "str | Path | Sequence[str] | None" = None,
    *,
    tokenizer: "Any" = None,
    objective: 'Literal["causal", "masked"] | None' = None,
    masked_share: float = 0.15,
    language: str | None = None,
    longest: int | None = None,
    sentences: int = 100,
    c: "Sequence[float]" = (2.0, 10.0, 100.0, 1000.0),
    exact: bool = True,
    hard_attention: bool = True,
    random_init: int = 1,
    seed: int = 0,
    fixed: "Sequence[str]" = (),
    confidence: float = 0.95,
    bootstrap: int = 1000,
    batch_tokens: int = 2048,
    dtype: str | None = None,
    attention: str | None = None,
    model_type: str | None = None,
    run: str | None = None,
    out: "Path | str | None" = None,
    overwrite: bool = False,
    progress: "Progress | None" = None,
) -> "Behavior":
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

    >>> found = ng.behavior(model, ["the cat sat on the mat", "it was tired"], c=[10], bootstrap=100)
    >>> [network.network for network in found.networks]
    ['soft', 'hard_attention', 'scaled', 'saturated']
    """
    arguments = locals()
    from normgrowth.network.behavior.predictions import BehaviorOptions, measure_behavior
    from normgrowth.network.behavior.result import Behavior
    from normgrowth.network.measure import measure_each

    place: dict[str, Any] = {"run": run, "out": out, "overwrite": overwrite, "progress": progress}
    options = BehaviorOptions.among(arguments)
    return measure_each(measure_behavior, model, texts, None, options, kind=Behavior, **place)
