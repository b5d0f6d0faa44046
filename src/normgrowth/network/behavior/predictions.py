"""The passes of `behavior`: the top prediction and the loss of each network for every token."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from normgrowth.engine import Progress, Steps
from normgrowth.errors import InputError
from normgrowth.limit.growing_parameters import fixed_within
from normgrowth.limit.growing_parameters.fixed import note_on_fixed
from normgrowth.network.behavior.legality import Legality, words_of_language
from normgrowth.network.behavior.margins import normalized, token_margins, weight_norm
from normgrowth.network.behavior.result import NETWORKS, Behavior, Objective
from normgrowth.network.compared_networks import ComparedNetworks, Variant
from normgrowth.network.hidden_states import (
    evaluating,
    out_of_memory_hint,
    random_twin,
    running,
)
from normgrowth.network.inputs.batches import make_batches, model_info
from normgrowth.network.inputs.tokenized_text import Sentences, Texts, read_rows
from normgrowth.network.measure import PassOptions
from normgrowth.network.models.encoder_folder import Words
from normgrowth.network.models.load import LoadedModel
from normgrowth.records import Block, Records

Floats = NDArray[np.float64]
Sums = dict[str, Floats]  # quantity -> (sentences,): sums over the tokens to predict


@dataclass(frozen=True, kw_only=True)
class BehaviorOptions(PassOptions):
    """Options of `behavior`."""

    objective: Objective | None
    masked_share: float
    language: str | None
    longest: int | None
    hard_attention: bool
    random_init: int
    confidence: float
    bootstrap: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.random_init < 0 or self.bootstrap < 0:
            raise InputError("random_init and bootstrap must be >= 0")
        if not 0 < self.confidence < 1 or not 0 < self.masked_share <= 1:
            raise InputError(
                "confidence and masked_share must be between 0 and 1, "
                f"got {self.confidence:g} and {self.masked_share:g}"
            )

    @property
    def load(self) -> dict[str, Any]:
        return {**super().load, "head": True}


@dataclass(frozen=True)
class _Task:
    """Sentences of one length: the inputs of the model and the tokens to predict.

    numbers: indices of the sentences. places: (rows, tokens), True where a prediction counts. targets: (rows, tokens).
    """

    numbers: tuple[int, ...]
    inputs: Any
    places: Tensor
    targets: Tensor


@dataclass(frozen=True)
class _Pass:
    """The predictions of a module. sums: for each network over the tokens of every sentence. tokens: their number.

    margins: of the soft network, for each token. norm: ‖θ‖. degree: of the logits; None: unknown or not uniform.
    """

    sums: dict[Variant, Sums]
    tokens: Floats
    margins: Floats
    norm: float
    degree: float | None

    def margin_block(self) -> Block:
        """The least and the median margin of the soft network, and both divided by ‖θ‖ᵏ."""
        found = {"margin_least": float(self.margins.min()), "margin": float(np.median(self.margins))}
        if self.degree is not None:
            found |= {
                f"normalized_{name}": normalized(value, self.norm, self.degree)
                for name, value in found.items()
            }
            found["logit_degree"] = self.degree
        arrays = {name: np.array([[value]]) for name, value in found.items()}
        return Block("model", ["soft"], [None], [None], [0], arrays)


class LogitsOf(nn.Module):
    """A language model whose output is its logits (rows, tokens, vocabulary)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        found = self.network(**inputs)
        logits = found if isinstance(found, Tensor) else getattr(found, "logits", None)
        if not isinstance(logits, Tensor) or logits.ndim != 3:
            raise InputError(
                f"{type(self.network).__name__} returns no logits (rows, tokens, vocabulary): pass a causal or masked "
                "language model with its head"
            )
        return logits


def measure_behavior(
    loaded: LoadedModel,
    run: str,
    texts: Texts | None,
    _: object,
    options: BehaviorOptions,
    progress: Progress | None,
) -> Behavior:
    """The predictions of one model; see `behavior`."""
    tokenizer, module = loaded.tokenizer, loaded.model
    if texts is None and options.language is not None:
        texts = words_of_language(options.language, options.sentences, options.longest, options.seed)
    text = read_rows(module, texts, tokenizer, options.sentences)
    notes = [*loaded.notes, *note_on_fixed(options.fixed), *text.notes]
    objective = options.objective or _objective(module)
    tasks = list(_tasks(module, text, tokenizer, objective, options))
    legality = None
    if options.language is not None:
        legality = Legality(options.language, tokenizer, text.rows, options.longest, objective)
    passes = _Passes(tasks, len(text.rows), options, legality, notes)
    tell = Steps(progress, len(tasks) * (1 + options.random_init), loaded.source)
    found = passes.over(module, tell)
    tokens = found.tokens
    baselines = [
        passes.over(random_twin(module, options.seed + 1 + i), tell).sums for i in range(options.random_init)
    ]
    blocks = [
        _block(network, own, [one[network] for one in baselines if network in one], tokens, options)
        for network, own in sorted(found.sums.items(), key=lambda item: NETWORKS.index(item[0].name))
    ]
    blocks.append(found.margin_block())
    blocks.append(
        Block.of_model([0], {"evaluation_tokens": tokens.sum(), "evaluation_sentences": len(tokens)})
    )
    return Behavior(
        records=Records.from_blocks(run, blocks),
        source=loaded.source,
        models={run: model_info(loaded, text, len(tokens), int(tokens.sum()))},
        notes=tuple(dict.fromkeys(notes)),
        **options.shared_with(Behavior, objective={run: objective}),
    )


class _Passes:
    """The passes of all compared networks over all sentences."""

    def __init__(
        self,
        tasks: Sequence[_Task],
        sentences: int,
        options: BehaviorOptions,
        legality: Legality | None,
        notes: list[str],
    ) -> None:
        self.tasks, self.sentences, self.options = tasks, sentences, options
        self.legality, self.notes = legality, notes

    def over(self, module: nn.Module, tell: Callable[[], None]) -> _Pass:
        """The predictions of every compared network of a module."""
        whole, options = LogitsOf(module), self.options
        networks = ComparedNetworks(
            whole,
            fixed_within(module, whole, options.fixed),
            exact=options.exact,
            c=options.c,
            hard_attention=options.hard_attention,
        )
        tokens, sums, tied = np.zeros(self.sentences), dict[Variant, Sums](), 0
        margins: list[Tensor] = []
        with evaluating(whole):
            for task in self.tasks:
                size = task.places.numel()
                np.add.at(tokens, list(task.numbers), task.places.sum(1).cpu().numpy())
                with out_of_memory_hint(whole, size):
                    with running(whole, size):
                        logits = whole(task.inputs)
                    margins.append(token_margins(logits[task.places].double(), task.targets[task.places]))
                    self._add(sums, Variant("soft"), task, logits, first := logits.argmax(-1))
                    for variant, logits in networks.outputs(task.inputs):
                        self._add(sums, variant, task, logits, first)
                        if variant.name == "saturated":
                            best = (logits == logits.amax(-1, keepdim=True)).sum(-1) > 1
                            tied += int((best & task.places).sum())
                tell()
        self.notes += networks.notes
        self._say(tied, sums)
        degree = networks.limit.degrees.get("") if networks.limit else None
        return _Pass(
            sums,
            tokens,
            torch.cat(margins).cpu().numpy(),
            weight_norm(whole, networks.fixed),
            None if degree is None else float(degree),
        )

    def _add(
        self, sums: dict[Variant, Sums], network: Variant, task: _Task, logits: Tensor, soft: Tensor
    ) -> None:
        """Add one pass. soft: the top predictions of the soft network."""
        first, places = logits.argmax(-1), task.places
        found = {"accuracy": first == task.targets, "agreement": first == soft}
        if self.legality is not None:
            found["legal_share"] = self.legality.allows(task.numbers, first)
        if network.name != "saturated":  # where the loss is infinite
            wide = logits.double().flatten(0, 1)
            loss = functional.cross_entropy(wide, task.targets.flatten(), reduction="none")
            found["loss"] = loss.view(task.targets.shape)
        overflown = (~logits.isfinite()).any(-1) & places
        own = sums.setdefault(network, {})
        for quantity, values in found.items():
            counted = torch.where(places, values.double(), 0.0).masked_fill(overflown, torch.nan).sum(1)
            whole = own.setdefault(quantity, np.zeros(self.sentences))
            np.add.at(whole, list(task.numbers), counted.cpu().numpy())

    def _say(self, tied: int, sums: Mapping[Variant, Sums]) -> None:
        if tied:
            self.notes.append(
                f"several tokens tie for the top prediction of the limit at {tied:,} places; the first one is used"
            )
        lost = [network for network, own in sums.items() if not np.isfinite(own["accuracy"]).all()]
        for network in lost:
            at = "" if network.c is None else f" at c = {network.c:g}"
            self.notes.append(f"{network.name}{at}: logits overflow, so its quantities are NaN there")


def _objective(module: nn.Module) -> Objective:
    """ "masked" if the class name of the model ends with "ForMaskedLM", else "causal"."""
    return "masked" if type(module).__name__.endswith("ForMaskedLM") else "causal"


def _tasks(
    module: nn.Module, text: Sentences, tokenizer: Any, objective: Objective, options: BehaviorOptions
) -> Iterator[_Task]:
    """The sentences in batches of equal length: without padding, it does not matter how a model treats a mask."""
    # Each row carries its number, so that sums can be assigned to sentences after sorting.
    numbered = replace(
        text, rows=[{**row, "number": [i] * len(row["input_ids"])} for i, row in enumerate(text.rows)]
    )
    source = np.random.default_rng(options.seed)
    mask = _mask_token(module, tokenizer) if objective == "masked" else None
    for batch in make_batches(numbered, module, options.batch_tokens, pad=False):
        inputs = {name: tensor for name, tensor in batch.inputs.items() if name != "number"}
        numbers, ids = batch.inputs["number"][:, 0].tolist(), inputs["input_ids"]
        if mask is not None:
            places = _masked_places(ids, tokenizer, options.masked_share, source)
            inputs["input_ids"] = ids.masked_fill(places, mask)
            targets = ids
        else:
            end = tokenizer.eos_token_id if isinstance(tokenizer, Words) else None
            last = torch.full_like(ids[:, :1], 0 if end is None else end)
            targets, places = torch.cat([ids[:, 1:], last], 1), torch.ones_like(ids, dtype=torch.bool)
            places[:, -1] = end is not None  # only vocabularies of the lab have a known end mark
        if bool(places.any()):
            yield _Task(tuple(numbers), inputs, places, targets)


def _mask_token(module: nn.Module, tokenizer: Any) -> int:
    config = getattr(module, "config", None)
    known = (getattr(one, "mask_token_id", None) for one in (tokenizer, config))
    found = next((token for token in known if isinstance(token, int)), None)
    if found is None:
        raise InputError(
            f"{type(module).__name__} predicts masked tokens, but no mask token is known: pass a tokenizer that has one"
        )
    return found


def _masked_places(ids: Tensor, tokenizer: Any, share: float, source: np.random.Generator) -> Tensor:
    """True at a random share of the non-special tokens of each row, at least one per row."""
    special = torch.tensor(sorted(getattr(tokenizer, "all_special_ids", [])), device=ids.device)
    free = ~torch.isin(ids, special)
    places = torch.zeros_like(free)
    for row, open_ in enumerate(free):
        there = open_.nonzero().flatten().tolist()
        count = min(len(there), max(1, round(share * len(there))))
        places[row, source.permutation(there)[:count].astype(np.int64).tolist()] = True
    return places


def _block(
    network: Variant, own: Sums, random: Sequence[Sums], tokens: Floats, options: BehaviorOptions
) -> Block:
    values: dict[str, float] = {}
    for quantity, sums in own.items():
        values[quantity] = float(sums.sum() / tokens.sum())
        if options.bootstrap:
            low, high = interval(sums, tokens, options.bootstrap, options.confidence, options.seed)
            values |= {f"{quantity}_low": low, f"{quantity}_high": high}
        if random:
            values[f"{quantity}_random"] = float(
                np.mean([one[quantity].sum() / tokens.sum() for one in random])
            )
    axes = {} if network.c is None else {"scale": network.c}
    arrays = {name: np.array([[value]]) for name, value in values.items()}
    return Block("model", [network.name], [None], [None], [0], arrays, constants=axes)


def interval(
    sums: Floats, tokens: Floats, replicates: int, confidence: float, seed: int
) -> tuple[float, float]:
    """Bounds of a mean over tokens: percentiles over replicates that draw sentences with replacement."""
    kept = tokens > 0
    sums, tokens = sums[kept], tokens[kept]
    count = len(tokens)
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), replicates)
    means = (drawn @ sums) / (drawn @ tokens)
    if not np.isfinite(means).all():
        return np.nan, np.nan
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
