"""Measures one model for `heads`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np
from torch import nn

from normgrowth.engine import Progress
from normgrowth.errors import InputError
from normgrowth.limit.growing_parameters import fixed_within
from normgrowth.limit.growing_parameters.fixed import note_on_fixed
from normgrowth.network.heads.passes import Passes, head_name, layer_numbers
from normgrowth.network.heads.patterns import patterns
from normgrowth.network.heads.result import Heads, MeasuredHeads, kind
from normgrowth.network.heads.statistics import Floats, PaddingSeen, Tally
from normgrowth.network.hidden_states import measured_part
from normgrowth.network.inputs.batches import Batch, make_batches, model_info, read_input
from normgrowth.network.inputs.tokenized_text import Sentences, Texts
from normgrowth.network.measure import PassOptions
from normgrowth.network.models.load import LoadedModel
from normgrowth.records import Block, Records

HARD_QUERIES = Fraction(9, 10)  # share of the queries that must be hard

# How values of heads are aggregated per layer and per model; the default is the mean.
_TOGETHER: dict[str, Callable[[Floats], Any]] = {
    "largest_logit": np.max,
    "gap": np.median,
    "hard_scale": np.median,
}


@dataclass(frozen=True, kw_only=True)
class HeadOptions(PassOptions):
    """Options of `heads`."""

    window: int | None
    tolerance: float
    show: str | None = field(compare=False)
    show_heads: Sequence[str] = field(compare=False)
    step: int | None = field(compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.show_heads and self.show is None:
            raise InputError("show_heads needs a sentence: pass it as show")
        if self.window is not None and self.window < 2:
            raise InputError(f"window must be >= 2, got {self.window}")
        if not 0 < self.tolerance < 0.5:
            raise InputError(f"tolerance must be between 0 and 0.5, got {self.tolerance:g}")


def measure_heads(
    loaded: LoadedModel,
    run: str,
    texts: Texts | None,
    batches: list[Any] | None,
    options: HeadOptions,
    progress: Progress | None,
) -> Heads:
    """The heads of one model; see `heads`."""
    model, tokenizer, window = loaded.model, loaded.tokenizer, options.window
    part = measured_part(model, None) if hasattr(model, "main_input_name") else model
    text, given = read_input(loaded, part, texts, batches, options)
    notes = [*loaded.notes, *note_on_fixed(options.fixed), *(text.notes if text else [])]
    if part is not model:
        notes.append("encoder-decoder model: the heads of the encoder are measured")
    if window and text is None:
        raise InputError("window pads sentences: pass texts, not inputs")
    filled = _filled(text, window, part, tokenizer, options.batch_tokens, notes) if text and window else []
    fixed = fixed_within(model, part, options.fixed)
    passes = Passes(part, options.c, options.exact, options.tolerance, notes, fixed)
    try:
        passes.over(given, filled, progress, loaded.source)
    except PaddingSeen:
        if text is None:
            raise InputError(
                "the heads attend to padding because no mask hides it: pass batches of sentences of equal length"
            ) from None
        given = make_batches(text, part, options.batch_tokens, pad=False)
        notes.append("the heads would attend to padding, so only sentences of equal length share a batch")
        passes.over(given, filled, progress, loaded.source)
    if passes.undecided:
        notes.append(
            f"{passes.undecided:,} queries have ties in the limit that more orders might break; "
            "tied positions get equal weight"
        )
    if passes.doubtful:
        notes.append(f"{passes.doubtful:,} values of the limit may depend on orders that were not computed")
    step = loaded.step if options.step is None else options.step
    blocks = _blocks(passes, "encoder" if part is not model else "layer", step)
    own, saturated = (_kinds(blocks[0], of_saturated) for of_saturated in (False, True))
    info = model_info(loaded, text, passes.sentences, passes.tokens)
    found = Heads(
        records=Records.from_blocks(run, blocks),
        source=loaded.source,
        models={run: MeasuredHeads(info, own, saturated)},
        **options.shared_with(Heads),
    )
    if options.show is not None:
        chosen = list(options.show_heads) or found.tables[0].clearest()
        shown, remarks = patterns(loaded, options.show, chosen, fixed=options.fixed)
        notes += [f"show: {remark}" for remark in remarks]
        found = replace(found, models={run: MeasuredHeads(info, own, saturated, shown)})
    return replace(found, notes=tuple(dict.fromkeys(notes)))


def _filled(
    text: Sentences, window: int, part: nn.Module, tokenizer: Any, tokens: int, notes: list[str]
) -> list[Batch]:
    """Sentences cut or padded to the window, without a padding mask, as in the authors' code."""
    positions = getattr(getattr(part, "config", None), "max_position_embeddings", None)
    if isinstance(positions, int) and 0 < positions < window:
        raise InputError(f"window is {window} tokens, but the model has only {positions} positions")
    end = getattr(tokenizer, "ids", {}).get("<eos>", text.pad)
    cut = sum(len(row["input_ids"]) > window for row in text.rows)
    if cut:
        notes.append(f"{cut} of {len(text.rows)} sentences were cut at {window} tokens to fit the window")
    rows = [
        {name: (cells + [end if name == "input_ids" else 0] * window)[:window] for name, cells in row.items()}
        for row in text.rows
    ]
    return make_batches(replace(text, rows=rows), part, max(tokens, window))


def _values(tally: Tally) -> dict[str, Floats]:
    """The quantities of each head."""
    found = {name: tally.mean(name) for name in tally.sums}
    found |= {name: value.numpy() for name, value in tally.largest.items()}
    for name in tally.kept:
        one = np.median if name == "gap" else _enough
        found[name] = np.array([one(values) if len(values) else np.nan for values in tally.all(name)])
    return found


def _enough(factors: Floats) -> float:
    """The smallest factor that suffices for the share HARD_QUERIES of the queries."""
    last = ceil(HARD_QUERIES * len(factors)) - 1
    return np.partition(factors, last)[last]


def _blocks(passes: Passes, stack: str, step: int) -> list[Block]:
    """One block each of heads, layers and the model; the same again for each c."""
    layers = {
        number: _values(passes.tallies[where]) for where, number in layer_numbers(passes.tallies).items()
    }
    if not all("entropy" in values for values in layers.values()):
        raise InputError("no token has more than one position to attend to: pass longer sentences")
    heads = {layer: len(values["entropy"]) for layer, values in layers.items()}
    blocks = _of_values(layers, heads, stack, step)
    counts = {"evaluation_tokens": passes.tokens, "evaluation_sentences": passes.sentences}
    sizes = {name: np.array([[float(count)]]) for name, count in counts.items() if count}
    blocks[-1] = replace(blocks[-1], values={**blocks[-1].values, **sizes})
    for c, tallies in passes.scaled.items():
        places = layer_numbers(passes.tallies).items()
        at_c = {number: _values(tallies[where]) if where in tallies else {} for where, number in places}
        blocks += [replace(one, constants={"scale": c}) for one in _of_values(at_c, heads, stack, step)]
    return blocks


def _of_values(
    layers: Mapping[int, Mapping[str, Floats]], heads: Mapping[int, int], stack: str, step: int
) -> list[Block]:
    """Blocks of heads, layers and model. layers: quantities of the heads of each layer. heads: number of heads."""
    items = [(layer, head) for layer, count in heads.items() for head in range(count)]
    of_heads, of_layers, of_model = {}, {}, {}
    for quantity in dict.fromkeys(name for values in layers.values() for name in values):
        # Layers may differ only in whether they have a learned sink.
        parts = [layers[layer].get(quantity, np.zeros(count)) for layer, count in heads.items()]
        together = _TOGETHER.get(quantity, np.mean)
        every = np.concatenate(parts)
        of_heads[quantity] = every[None]
        of_layers[quantity] = np.array([[together(part) for part in parts]])
        of_model[quantity] = np.array([[together(every)]])
    names, stacks = [head_name(stack, *item) for item in items], [f"{stack}.{layer}" for layer in layers]
    return [
        Block("head", names, [layer for layer, _ in items], [None] * len(items), [step], of_heads),
        Block("layer", stacks, list(layers), [None] * len(layers), [step], of_layers),
        Block("model", ["model"], [None], [None], [step], of_model),
    ]


def _kinds(block: Block, of_saturated: bool) -> dict[str, str]:
    """The kind of every head; empty if the deciding quantities were not measured."""
    rows = [
        {quantity: float(values[0, i]) for quantity, values in block.values.items()}
        for i in range(len(block.names))
    ]
    found = {name: kind(row, of_saturated=of_saturated) for name, row in zip(block.names, rows, strict=True)}
    return found if all(found.values()) else {}
