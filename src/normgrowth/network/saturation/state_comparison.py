"""The forward passes of `saturation`: cosines between hidden states of a network and of its saturated limit."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normgrowth.engine import Progress, Steps
from normgrowth.errors import InputError
from normgrowth.limit.growing_parameters import fixed_within
from normgrowth.limit.growing_parameters.fixed import note_on_fixed
from normgrowth.network.compared_networks import ComparedNetworks
from normgrowth.network.hidden_states import (
    Network,
    evaluating,
    measured_stack,
    out_of_memory_hint,
    random_twin,
    running,
    stack_states,
)
from normgrowth.network.inputs.batches import Batch, decoder_batch, make_batches, model_info, read_input
from normgrowth.network.inputs.tokenized_text import Sentences, Texts
from normgrowth.network.models.load import LoadedModel
from normgrowth.network.saturation.level_options import LevelOptions
from normgrowth.network.saturation.published_form import published_form
from normgrowth.network.saturation.result import EXACT, HARD, Saturation
from normgrowth.records import Block, Records

Floats = NDArray[np.float64]
MOST_UNCHANGED = 0.05  # larger changes are not rounding in any dtype


class Method(NamedTuple):
    """A comparison of states: its quantity, and the factor of the weights (None: no finite factor)."""

    quantity: str
    scale: float | None = None

    def with_suffix(self, suffix: str) -> "Method":
        return self._replace(quantity=self.quantity + suffix)

    def __str__(self) -> str:
        return self.quantity if self.scale is None else f"{self.quantity} at c = {self.scale:g}"


Sums = dict[Method, Floats]  # (sentences, layers): cosines summed over the tokens of a sentence


def measure_saturation(
    loaded: LoadedModel,
    run: str,
    texts: Texts | None,
    batches: list[Any] | None,
    options: LevelOptions,
    progress: Progress | None,
) -> Saturation:
    """The levels of one model; see `saturation`."""
    model, random_init, seed = loaded.model, options.random_init, options.seed
    notes = [*loaded.notes, *note_on_fixed(options.fixed)]
    form = published_form(model, loaded.random, options) if options.as_published else None
    if form is not None:
        options = form.options
        notes += form.notes
    stack = measured_stack(model, options.states, options.stack)
    whole = Network(*stack_states(model, options.states, stack))
    text, given = read_input(loaded, whole.network, texts, batches, options)
    notes += text.notes if text else []
    passes = _Passes(
        whole, options, fixed_within(model, whole, options.fixed), training=form is not None and form.training
    )
    given, remarks = _batches(passes, model, stack, text, given)
    notes += remarks
    tell = Steps(progress, len(given) * (1 + random_init), loaded.source)
    sums, counts = passes.over(given, notes, tell)
    values = {}
    for method, found in sums.items():
        values[method], values[method.with_suffix("_stderr")] = _mean_and_error(
            found, _counts(method, counts)
        )
    baselines: dict[Method, list[Floats]] = {}
    for number in range(random_init):
        # In the published form, random networks run with dropout, and a random XLNet has all of its layers.
        passes.training = form is not None
        states = options.states if form is None else None
        passes.network = Network(*stack_states(random_twin(model, seed + 1 + number), states, stack))
        found, _ = passes.over(given, notes, tell)
        for method, one in found.items():
            baselines.setdefault(method, []).append(_mean_and_error(one, _counts(method, counts))[0])
    for method, several in baselines.items():
        values[method.with_suffix("_random")] = np.mean(several, 0)
        spread = np.std(several, 0, ddof=1) if len(several) > 1 else np.full_like(several[0], np.nan)
        values[method.with_suffix("_random_std")] = spread
    return Saturation(
        records=Records.from_blocks(run, _blocks(values, counts, stack, loaded.step)),
        source=loaded.source,
        models={run: model_info(loaded, text, len(counts), int(counts.sum()))},
        notes=tuple(dict.fromkeys(notes)),
        **options.shared_with(Saturation, stack=None if stack == "layer" else stack),
    )


def _batches(
    passes: "_Passes", model: nn.Module, stack: str, text: Sentences | None, batches: list[Batch]
) -> tuple[list[Batch], list[str]]:
    """Batches for the measured stack, and notes; batches have one length if padding would change the states."""
    options, padded = passes.options, text is not None and any(batch.padded for batch in batches)

    def for_stack(batches: list[Batch]) -> list[Batch]:
        if stack != "decoder":
            return batches
        return [decoder_batch(batch, model, options.decoder_input) for batch in batches]

    alone = passes.training or (stack == "decoder" and options.decoder_input == "start")
    if not padded or not (alone or passes.padding_shows(for_stack(batches))):
        return for_stack(batches), []
    assert text is not None
    apart = make_batches(text, passes.network.network, options.batch_tokens, pad=False)
    said = "padding would change this network's states, so only sentences of equal length share a batch"
    return for_stack(apart), [] if alone else [said]


class _Passes:
    """The passes of a network over batches. training: with dropout, which is seeded."""

    def __init__(
        self, network: Network, options: LevelOptions, fixed: Sequence[str], *, training: bool
    ) -> None:
        self.network, self.options, self.fixed, self.training = network, options, fixed, training

    def over(
        self, batches: Sequence[Batch], notes: list[str], tell: Callable[[], None]
    ) -> tuple[Sums, Floats]:
        """The sums of cosines and the number of tokens of every sentence."""
        whole, options = self.network, self.options
        parts: dict[Method, list[Floats]] = {}
        counts: list[Floats] = []
        networks = ComparedNetworks(
            whole, self.fixed, exact=options.exact, c=options.c, hard_attention=options.hard_attention
        )
        with evaluating(whole, training=self.training, seed=options.seed):
            for batch in batches:
                with out_of_memory_hint(whole, batch.size):
                    with running(whole, batch.size):
                        own = whole(batch.inputs)
                    real = _real(own, batch)
                    for variant, states in networks.outputs(batch.inputs):
                        quantity = HARD if variant.name == "hard_attention" else EXACT
                        _compare(Method(quantity, variant.c), own, states, real, parts)
                counts.append(real.sum(1).double().cpu().numpy())
                tell()
        sums = {method: np.concatenate(found) for method, found in parts.items()}
        notes += networks.notes
        for method, found in sums.items():
            bad = [_name(layer, "layer") for layer, good in enumerate(np.isfinite(found).T) if not good.all()]
            if bad and not method.quantity.endswith("_others"):  # NaN in the same layers
                exact = method == Method(EXACT)
                why = "a state is zero or not finite" if exact else "overflow, or a state is zero"
                notes.append(f"{method} is NaN at {', '.join(bad)}: {why}")
        return sums, np.concatenate(counts)

    def padding_shows(self, batches: Sequence[Batch]) -> bool:
        """Whether the most padded sentence has different states in its batch than alone.

        Not every network uses the mask.
        """
        shares = [
            0.0 if batch.real is None else 1 - float(batch.real[-1].double().mean()) for batch in batches
        ]
        together = batches[int(np.argmax(shares))].rows([0, -1])
        assert together.real is not None
        length = int(together.real[-1].sum())
        unchanged = padding_tolerance(next(self.network.parameters()).dtype)
        alone = together.rows([-1], length)
        with evaluating(self.network), running(self.network, together.size):
            for a, b in zip(self.network(together.inputs), self.network(alone.inputs), strict=True):
                if float((a[-1, :length] - b[0]).double().norm()) > unchanged * float(b.double().norm()):
                    return True
        both, one = (self.over([batch], [], lambda: None)[0] for batch in (together, alone))
        apart = [np.nan_to_num(np.abs(both[method][-1] - one[method][-1])).max() for method in both]
        return max(apart) > unchanged * length


def _real(states: Sequence[Tensor], batch: Batch) -> Tensor:
    shape = tuple(states[0].shape[:2])
    if any(state.ndim != 3 or tuple(state.shape[:2]) != shape for state in states):
        raise InputError(
            f"all states must have the same shape (rows, tokens, size), got {[tuple(s.shape) for s in states]}"
        )
    if batch.real is None:
        return torch.ones(shape, dtype=torch.bool, device=states[0].device)
    if tuple(batch.real.shape) != shape:
        raise InputError(
            f"mask has shape {tuple(batch.real.shape)}, but states have (rows, tokens) = {shape}"
        )
    return batch.real


def _compare(
    method: Method,
    own: Sequence[Tensor],
    other: Sequence[Tensor],
    real: Tensor,
    parts: dict[Method, list[Floats]],
) -> None:
    """Add sums over the real tokens of each row, (rows, layers): the cosine to the token's own saturated state, and the
    mean cosine to the saturated states of the row's other tokens. In float64; NaN where a cosine is undefined.
    """
    same, others = [], []
    count = real.sum(1)
    for a, b in zip(own, other, strict=True):
        a, b = (x.double() / x.double().norm(dim=-1, keepdim=True) for x in (a, b))  # (rows, tokens, size)
        here = real.to(a.device)[..., None]
        a, b = (torch.where(here, x, 0.0) for x in (a, b))
        cosine = (a * b).sum(-1).clamp(-1, 1).sum(1)
        same.append(cosine)
        # Σᵢ Σⱼ≠ᵢ aᵢ·bⱼ = (Σᵢ aᵢ)·(Σⱼ bⱼ) − Σᵢ aᵢ·bᵢ
        every = (a.sum(1) * b.sum(1)).sum(-1)
        others.append((every - cosine) / (count.to(a.device) - 1).clamp(min=1))
    parts.setdefault(method, []).append(torch.stack(same, 1).cpu().numpy())
    parts.setdefault(method.with_suffix("_others"), []).append(torch.stack(others, 1).cpu().numpy())


def _counts(method: Method, counts: Floats) -> Floats:
    """The number of counted tokens of each sentence: a single token has no other tokens."""
    return np.where(counts > 1, counts, 0.0) if method.quantity.endswith("_others") else counts


def _mean_and_error(sums: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Means over tokens and standard errors over sentences, for embeddings, blocks and, last, the mean over blocks."""
    sums = np.column_stack([sums, sums[:, 1:].mean(1)])[counts > 0]
    counts = counts[counts > 0]
    tokens, rows = counts.sum(), len(counts)
    if rows == 0:
        return np.full(sums.shape[1], np.nan), np.full(sums.shape[1], np.nan)
    mean = sums.sum(0) / tokens
    rest = np.square(sums - mean * counts[:, None]).sum(0)
    error = np.sqrt(rest * rows / (rows - 1)) / tokens if rows > 1 else np.full_like(mean, np.nan)
    return mean, error


def _blocks(values: Mapping[Method, Floats], counts: Floats, stack: str, step: int) -> list[Block]:
    """Blocks of layers and of the model for each factor of the weights, after a block with the size of the text."""
    sizes = {"evaluation_tokens": counts.sum(), "evaluation_sentences": len(counts)}
    blocks = [Block.of_model([step], sizes)]
    # In the published form, a trained XLNet has one layer less than a random one.
    for scale, size in dict.fromkeys((method.scale, len(value)) for method, value in values.items()):
        alike = {m.quantity: v for m, v in values.items() if (m.scale, len(v)) == (scale, size)}
        of_layers = {quantity: value[None, :-1] for quantity, value in alike.items()}
        of_model = {quantity: value[None, -1:] for quantity, value in alike.items()}
        layers = size - 1
        names, none = [_name(layer, stack) for layer in range(layers)], [None] * layers
        numbers = [None if layer == 0 else layer - 1 for layer in range(layers)]
        axes = {} if scale is None else {"scale": scale}
        blocks.append(Block("layer", names, numbers, none, [step], of_layers, constants=axes))
        blocks.append(replace(blocks[0], values=of_model, constants=axes))
    return blocks


def _name(layer: int, stack: str) -> str:
    return f"{stack}.{layer - 1}" if layer else "embeddings"


def padding_tolerance(dtype: torch.dtype) -> float:
    """The relative change of a state by padding that counts as rounding: 3 · √eps of the dtype, at most 0.05."""
    return min(3 * torch.finfo(dtype).eps ** 0.5, MOST_UNCHANGED)
