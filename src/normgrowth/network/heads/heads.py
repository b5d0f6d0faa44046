"""`heads`: what every attention head of a network does, and what its saturated self does (section 4.3, Figure 3).

Quantities of each head, means over queries unless something else is said. A query that sees one position only (the
first token of a causal model) has nothing to choose and is left out of all of them; padding neither asks nor is asked.

in the saturated network, by the exact limit (`saturated`)
    attended                   positions with at least half of the largest weight: one, or all that tie
    attended_share             of the visible ones
    attended_spread            (attended − 1) / (visible − 1): 0 for an argmax, 1 for a mean, whatever the length
    saturated_largest_share, saturated_first_share, saturated_previous_share    as below
    saturated_distance         total variation distance between its weights and those of the network itself
    attended_c1000, …          the same counts with the weights times c = 1000, in float64 (on request)
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
    attended_window            as the authors count: every sentence filled up to N tokens, padding asks and is asked,
                               mean over all N queries

Level "head" has a row for each; "layer" and "model" the mean over their heads, of largest_logit the largest, of gap and
hard_scale the median. Notes say what was left out. `kinds` names what a head does, by the thresholds below.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np
from torch import nn

from normgrowth.errors import InputError
from normgrowth.limit.parameters import fixed_within
from normgrowth.limit.parameters.fixed import note
from normgrowth.network.heads.passes import Passes, head_name, numbers
from normgrowth.network.heads.statistics import Floats, PaddingSeen, Tally
from normgrowth.network.hidden_states import check_scales, check_weights, measured_part
from normgrowth.network.inputs.batches import FROM_PYTHON, Batch, Sentences, Texts, make_batches, read_input
from normgrowth.network.models.load import Loaded
from normgrowth.records import Block, Records

Progress = Callable[[int, int, str], None]  # passes done, of how many, of what

SENTENCES = 200  # as in the paper's Figure 3
BATCH_TOKENS = 2048
TOLERANCE = 0.01  # of the weight may be beside the largest, and the head still be called hard
HARD_QUERIES = Fraction(9, 10)  # of the queries must be so

# What a head is called: the first that fits. In the network itself, then in its saturated self.
KINDS = ("mean-like", "sink", "previous-token", "argmax-like", "in between")
THRESHOLDS = {  # at least
    "mean-like": {"entropy_share": 0.9, "attended_spread": 0.9},
    "sink": {"first_share": 0.5, "saturated_first_share": 0.5},  # and what is on a learned sink
    "previous-token": {"previous_share": 0.5, "saturated_previous_share": 0.5},
    "argmax-like": {"largest_share": 0.75, "saturated_largest_share": 0.75},
}

# How heads of a layer, or of the model, become one number; the mean if nothing else is said.
_TOGETHER: dict[str, Callable[[Floats], Any]] = {
    "largest_logit": np.max,
    "gap": np.median,
    "hard_scale": np.median,
}


def heads(
    model: "nn.Module | Loaded",
    texts_or_batches: "Texts | Iterable[Any] | None" = None,
    *,
    tokenizer: Any = None,
    sentences: int = SENTENCES,
    exact: bool = True,
    scales: Sequence[float] = (),
    window: int | None = None,
    tolerance: float = TOLERANCE,
    batch_tokens: int = BATCH_TOKENS,
    fixed: Sequence[str] = (),
    step: int = 0,
    run: str | None = None,
    progress: Progress | None = None,
) -> Records:
    """What every head attends to, as records; the model is left as it was, to the bit.

    texts_or_batches: sentences, a file with one a line, or batches (tensors by name; `attention_mask` says what is
    padding); without, sentences of the Python documentation. Of a model with encoder and decoder the encoder is
    measured. exact: the saturated network too, by its limit. scales: and with the weights times each c, which needs
    a copy of the model in float64. window: the published form too, on sentences filled up to so many tokens.
    tolerance: that of hard_scale. fixed: parameters that do not grow, by name or pattern, as `saturated` takes them
    (`["*.A_log"]`). step: of the records. `made_by` has the kind of each head.
    """
    if isinstance(model, Loaded):
        loaded, model = model, model.model
        tokenizer = tokenizer or loaded.tokenizer
    else:
        loaded = Loaded(type(model).__name__, model)
    _check(sentences, batch_tokens, scales, window, tolerance)
    check_weights(model)
    part = measured_part(model, None) if hasattr(model, "main_input_name") else model
    text, batches = read_input(model, part, texts_or_batches, tokenizer, sentences, batch_tokens)
    notes = [*loaded.notes, *note(fixed), *(text.notes if text else [])]
    if part is not model:
        notes.append("of a model with encoder and decoder, the heads of the encoder are measured")
    if window and text is None:
        raise InputError("window fills up sentences: give sentences, not batches")
    filled = _filled(text, window, part, tokenizer, batch_tokens, notes) if text and window else []

    def told(done: int, total: int) -> None:
        if progress is not None:
            progress(done, total, loaded.source)

    passes = Passes(part, tuple(scales), exact, tolerance, notes, fixed_within(model, part, fixed))
    try:
        passes.over(batches, filled, told)
    except PaddingSeen:
        if text is None:
            raise InputError(
                "its heads attend to padding, which no mask hides: give batches of sentences of one length"
            ) from None
        batches = make_batches(text, part, batch_tokens, pad=False)
        notes.append("its heads would attend to padding: only sentences of equal length share a pass")
        passes.over(batches, filled, told)
    if passes.undecided:
        notes.append(
            f"{passes.undecided:,} queries tie in the limit where an order that was left out might decide; "
            "tied positions share alike"
        )
    blocks = _blocks(passes, "encoder" if part is not model else "layer", step)
    made_by = {
        "command": "heads",
        "source": loaded.source,
        "random_weights": loaded.random,
        "architecture": type(model).__name__,
        **(text.facts() if text else FROM_PYTHON),
        "exact": exact,
        "scales": list(map(float, scales)),
        "window": window,
        "tolerance": tolerance,
        "fixed": list(fixed),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "notes": list(dict.fromkeys(notes)),
        "problems": [],
    }
    records = Records.from_blocks(run or loaded.source, blocks, made_by)
    return Records(records.table, made_by | _kinds_of_blocks(blocks[0]))


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


def _check(
    sentences: int, tokens: int, scales: Sequence[float], window: int | None, tolerance: float
) -> None:
    if sentences < 1 or tokens < 1 or (window is not None and window < 2):
        raise InputError("heads need at least one sentence, one token a batch, and a window of two")
    check_scales(scales)
    if not 0 < tolerance < 0.5:
        raise InputError(f"tolerance is {tolerance:g}: it must lie between 0 and 0.5")


def _filled(
    text: Sentences, window: int, part: nn.Module, tokenizer: Any, tokens: int, notes: list[str]
) -> list[Batch]:
    """Sentences cut and filled up to the window; nothing says what is padding, as in the authors' code."""
    positions = getattr(getattr(part, "config", None), "max_position_embeddings", None)
    if isinstance(positions, int) and 0 < positions < window:
        raise InputError(f"a window of {window} tokens: the model has {positions} positions")
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
    """Of each head, one number for each quantity."""
    found = {name: tally.mean(name) for name in tally.sums}
    found |= {name: value.numpy() for name, value in tally.largest.items()}
    for name in tally.kept:
        one = np.median if name == "gap" else _enough
        found[name] = np.array([one(values) if len(values) else np.nan for values in tally.all(name)])
    return found


def _enough(factors: Floats) -> float:
    """The least factor that is enough for so many of the queries."""
    last = ceil(HARD_QUERIES * len(factors)) - 1
    return np.partition(factors, last)[last]


def _blocks(passes: Passes, stack: str, step: int) -> list[Block]:
    """A block of heads, one of layers, one of the model."""
    layers = {number: _values(passes.tallies[where]) for where, number in numbers(passes.tallies).items()}
    if not all("entropy" in values for values in layers.values()):
        raise InputError("no token has more than one position to attend to: give longer sentences")
    items = [(layer, head) for layer, values in layers.items() for head in range(len(values["entropy"]))]
    of_heads, of_layers, of_model = {}, {}, {}
    for quantity in dict.fromkeys(name for values in layers.values() for name in values):
        # A layer may lack a learned sink, and nothing else.
        parts = [values.get(quantity, np.zeros(len(values["entropy"]))) for values in layers.values()]
        together = _TOGETHER.get(quantity, np.mean)
        every = np.concatenate(parts)
        of_heads[quantity] = every[None]
        of_layers[quantity] = np.array([[together(part) for part in parts]])
        of_model[quantity] = np.array([[together(every)]])
    for unit, count in (("tokens", passes.tokens), ("sentences", passes.sentences)):
        of_model |= {f"evaluation_{unit}": np.array([[float(count)]])} if count else {}
    names, stacks = [head_name(stack, *item) for item in items], [f"{stack}.{layer}" for layer in layers]
    return [
        Block("head", names, [layer for layer, _ in items], [None] * len(items), [step], of_heads),
        Block("layer", stacks, list(layers), [None] * len(layers), [step], of_layers),
        Block("model", ["model"], [None], [None], [step], of_model),
    ]


def _kinds_of_blocks(block: Block) -> dict[str, Any]:
    """For `made_by`: the kind of every head, how many there are of each, and the thresholds."""
    rows = [
        {quantity: float(values[0, i]) for quantity, values in block.values.items()}
        for i in range(len(block.names))
    ]
    found: dict[str, Any] = {"thresholds": THRESHOLDS}
    for key, of_saturated in (("kinds", False), ("saturated_kinds", True)):
        named = {
            name: kind(row, of_saturated=of_saturated) for name, row in zip(block.names, rows, strict=True)
        }
        if all(named.values()):
            counts = Counter(named.values())
            found[key] = named
            found[f"{key}_counts"] = {name: counts[name] for name in KINDS}
    return found
