"""The passes of `saturation`: cosines between the states of a network and those of its saturated limit."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normgrowth.errors import InputError
from normgrowth.limit.findings import Finding, messages
from normgrowth.limit.parameters import fixed_within
from normgrowth.limit.parameters.fixed import note
from normgrowth.limit.saturated import saturated
from normgrowth.network.hidden_states import (
    Network,
    States,
    check_scales,
    check_weights,
    evaluating,
    measured_part,
    names_of_network,
    out_of_memory_hint,
    random_twin,
    running,
)
from normgrowth.network.inputs.batches import Batch, Texts, make_batches, model_info, read_input
from normgrowth.network.models.load import LoadedModel, load_model
from normgrowth.network.overflow import OverflowAsNan
from normgrowth.network.saturation.saturation import EXACT, HARD, Progress, Saturation
from normgrowth.network.scaled_weights import scaled_weights
from normgrowth.records import Block, Records

Floats = NDArray[np.float64]
Sums = dict[str, Floats]  # method -> (sentences, layers): cosines, summed over the tokens of a sentence

MOST_UNCHANGED = 0.05  # beyond that no rounding is the reason, in any dtype


@dataclass(frozen=True)
class _Methods:
    """How to saturate: by the exact limit, at values of c, or both; which parameters do not grow."""

    exact: bool
    c: tuple[float, ...]
    hard_attention: bool
    fixed: tuple[str, ...]  # names of the Network's parameters


def measure(
    model: "str | Path | nn.Module | LoadedModel",
    texts: "Texts | None",
    batches: Iterable[Any] | None,
    *,
    tokenizer: Any,
    sentences: int,
    c: tuple[float, ...],
    exact: bool,
    hard_attention: bool,
    fixed: tuple[str, ...],
    batch_tokens: int,
    states: States | None,
    load: Mapping[str, Any] | None = None,
    random_init: int = 0,
    seed: int = 0,
    run: str | None = None,
    progress: Progress | None = None,
) -> Saturation:
    """The levels of one model; see `saturation`. load: options of `load_model` for a model by its name."""
    check_scales(c)
    if isinstance(model, str | Path):
        if progress is not None:
            progress(0, 1, f"{model}: loading")
        model = load_model(model, **(load or {}))
    loaded = model if isinstance(model, LoadedModel) else LoadedModel(type(model).__name__, model)
    tokenizer, model = tokenizer or loaded.tokenizer, loaded.model
    check_weights(model)
    part = measured_part(model, states)
    whole = Network(part, states)
    methods = _Methods(exact, c, hard_attention, tuple(fixed_within(model, whole, fixed)))
    text, passes = read_input(model, part, texts, batches, tokenizer, sentences, batch_tokens)
    notes = [*loaded.notes, *note(fixed), *(text.notes if text else [])]
    if text and any(batch.padded for batch in passes) and _padding_shows(whole, passes, methods):
        passes = make_batches(text, part, batch_tokens, pad=False)
        notes.append(
            "padding would change this network's states: only sentences of equal length share a pass"
        )
    tell = _Steps(progress, len(passes) * (1 + random_init), loaded.source)
    sums, counts = _measure(whole, passes, methods, notes, tell)
    values = {}
    for method, found in sums.items():
        values[method], values[f"{method}_stderr"] = _mean_and_error(found, _counts(method, counts))
    baselines: dict[str, list[Floats]] = {}
    for number in range(random_init):
        twin = Network(measured_part(random_twin(model, seed + 1 + number), states), states)
        found, _ = _measure(twin, passes, methods, notes, tell)
        for method, one in found.items():
            baselines.setdefault(method, []).append(_mean_and_error(one, _counts(method, counts))[0])
    for method, several in baselines.items():
        values[f"{method}_random"] = np.mean(several, 0)
        spread = np.std(several, 0, ddof=1) if len(several) > 1 else np.full_like(several[0], np.nan)
        values[f"{method}_random_std"] = spread
    run = run or loaded.source
    stack = "encoder" if part is not model else "layer"
    return Saturation(
        records=Records.from_blocks(run, _blocks(values, counts, stack)),
        source=loaded.source,
        models={run: model_info(loaded, text, len(counts), int(counts.sum()))},
        c=c,
        exact=exact,
        hard_attention=hard_attention,
        fixed=fixed,
        random_init=random_init,
        seed=seed,
        notes=tuple(dict.fromkeys(notes)),
    )


def _measure(
    whole: Network, batches: Sequence[Batch], methods: _Methods, notes: list[str], tell: Callable[[], None]
) -> tuple[Sums, Floats]:
    """Sums of cosines of every sentence, and its number of tokens."""
    parts: dict[str, list[Floats]] = {}
    counts: list[Floats] = []
    limit, doubtful = saturated(whole, fixed=methods.fixed), False
    hard = saturated(whole, attention_only=True)
    findings: dict[Finding, None] = {}
    with evaluating(whole):
        for batch in batches:
            with out_of_memory_hint(whole, batch.size):
                with running(whole, batch.size):
                    own = whole(batch.inputs)
                real = _real(own, batch)
                if methods.exact:
                    with names_of_network():
                        states = limit(batch.inputs)
                    _compare(EXACT, own, states, real, parts)
                    doubtful = doubtful or limit.doubtful > 0
                    findings |= dict.fromkeys(limit.findings)
                for c in methods.c:
                    with scaled_weights(whole, c, fixed=methods.fixed), OverflowAsNan():
                        scaled = whole(batch.inputs)
                    _compare(f"{EXACT}_c{c:g}", own, scaled, real, parts)
                if methods.hard_attention:
                    with names_of_network():
                        states = hard(batch.inputs)
                    _compare(HARD, own, states, real, parts)
            counts.append(real.sum(1).double().cpu().numpy())
            tell()
    sums = {method: np.concatenate(found) for method, found in parts.items()}
    notes += messages(findings)
    if doubtful:
        notes.append("the limit has ties that an order left out might decide; tied positions share alike")
    for method, found in sums.items():
        bad = [_name(layer, "layer") for layer, good in enumerate(np.isfinite(found).T) if not good.all()]
        if bad and not method.endswith("_others"):  # the same ones
            why = "a state is zero or not finite" if method == EXACT else "overflow, or a state that is zero"
            notes.append(f"{method} is NaN at {', '.join(bad)}: {why}")
    return sums, np.concatenate(counts)


def _real(states: Sequence[Tensor], batch: Batch) -> Tensor:
    shape = tuple(states[0].shape[:2])
    if any(state.ndim != 3 or tuple(state.shape[:2]) != shape for state in states):
        raise InputError(
            f"states of unlike shape, {[tuple(s.shape) for s in states]}: (rows, tokens, size) is wanted"
        )
    if batch.real is None:
        return torch.ones(shape, dtype=torch.bool, device=states[0].device)
    if tuple(batch.real.shape) != shape:
        raise InputError(f"a mask of {tuple(batch.real.shape)} for states of {shape} (rows, tokens)")
    return batch.real


def _compare(
    method: str,
    own: Sequence[Tensor],
    other: Sequence[Tensor],
    real: Tensor,
    parts: dict[str, list[Floats]],
) -> None:
    """Add sums over the real tokens of each row, (rows, layers): cosines to the token's own saturated state, and to
    those of the row's other tokens, mean over them. In float64; NaN where a cosine is undefined.
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
    parts.setdefault(f"{method}_others", []).append(torch.stack(others, 1).cpu().numpy())


def _counts(method: str, counts: Floats) -> Floats:
    """The tokens of each sentence that count: a token alone has no others."""
    return np.where(counts > 1, counts, 0.0) if method.endswith("_others") else counts


def _mean_and_error(sums: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Of embeddings, blocks and, last, the mean over blocks: means over tokens, and their errors over sentences."""
    sums = np.column_stack([sums, sums[:, 1:].mean(1)])[counts > 0]
    counts = counts[counts > 0]
    tokens, rows = counts.sum(), len(counts)
    if rows == 0:
        return np.full(sums.shape[1], np.nan), np.full(sums.shape[1], np.nan)
    mean = sums.sum(0) / tokens
    rest = np.square(sums - mean * counts[:, None]).sum(0)
    error = np.sqrt(rest * rows / (rows - 1)) / tokens if rows > 1 else np.full_like(mean, np.nan)
    return mean, error


def _blocks(values: Mapping[str, Floats], counts: Floats, stack: str) -> list[Block]:
    layers = len(next(iter(values.values()))) - 1
    names, none = [_name(layer, stack) for layer in range(layers)], [None] * layers
    numbers = [None if layer == 0 else layer - 1 for layer in range(layers)]
    own = {"evaluation_tokens": counts.sum().reshape(1, 1)}
    own["evaluation_sentences"] = np.array([[float(len(counts))]])
    means = {quantity: value[None, -1:] for quantity, value in values.items()}
    return [
        Block("layer", names, numbers, none, [0], {quantity: v[None, :-1] for quantity, v in values.items()}),
        Block("model", ["model"], [None], [None], [0], means | own),
    ]


def _name(layer: int, stack: str) -> str:
    return f"{stack}.{layer - 1}" if layer else "embeddings"


def padding_tolerance(dtype: torch.dtype) -> float:
    """How far padding may move a state by rounding, relative to its size: half of the digits of the dtype, times 3."""
    return min(3 * torch.finfo(dtype).eps ** 0.5, MOST_UNCHANGED)


def _padding_shows(whole: Network, batches: Sequence[Batch], methods: _Methods) -> bool:
    """Whether a sentence gives the same alone as in the batch that pads it most. Not all networks heed a mask."""
    shares = [0.0 if batch.real is None else 1 - float(batch.real[-1].double().mean()) for batch in batches]
    together = batches[int(np.argmax(shares))].rows([0, -1])
    assert together.real is not None
    length = int(together.real[-1].sum())
    unchanged = padding_tolerance(next(whole.parameters()).dtype)
    alone = together.rows([-1], length)
    with evaluating(whole), running(whole, together.size):
        for a, b in zip(whole(together.inputs), whole(alone.inputs), strict=True):
            if float((a[-1, :length] - b[0]).double().norm()) > unchanged * float(b.double().norm()):
                return True
    both, one = (_measure(whole, [batch], methods, [], lambda: None)[0] for batch in (together, alone))
    apart = [np.nan_to_num(np.abs(both[method][-1] - one[method][-1])).max() for method in both]
    return max(apart) > unchanged * length


class _Steps:
    def __init__(self, progress: Progress | None, total: int, label: str):
        self.progress, self.total, self.label, self.done = progress, total, label, 0

    def __call__(self) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total, self.label)
