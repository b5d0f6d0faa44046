"""The attention on one sentence, soft and saturated: the data of the figure of single heads."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from normgrowth.errors import InputError
from normgrowth.limit.growing_parameters import fixed_within
from normgrowth.limit.module_names import counted
from normgrowth.network.attention_capture import Call, seen
from normgrowth.network.heads.call_sites import Where
from normgrowth.network.heads.passes import Passes, head_name, layer_numbers, run_without_cache
from normgrowth.network.heads.result import AttentionPatterns, HeadPattern
from normgrowth.network.hidden_states import (
    evaluating,
    measured_part,
    out_of_memory_hint,
    running,
)
from normgrowth.network.inputs.batches import make_batches
from normgrowth.network.inputs.tokenized_text import read_rows
from normgrowth.network.models.load import LoadedModel

MOST_TOKENS = 64  # maximum length of a shown sentence: more tokens are not legible in a figure
DIGITS = 4


def patterns(
    loaded: LoadedModel, sentence: str, chosen: Sequence[str], *, fixed: Sequence[str] = ()
) -> tuple[AttentionPatterns, list[str]]:
    """The attention weights of some heads on one sentence, and notes on the sentence.

    chosen: names of heads, as in the result of `heads`. Sentences are cut at 64 tokens. The notes name words that are
    unknown to the model. fixed: parameters that do not grow, as for `heads`.
    """
    model, tokenizer = loaded.model, loaded.tokenizer
    if not sentence.strip():
        raise InputError("show must not be an empty sentence")
    part = measured_part(model, None) if hasattr(model, "main_input_name") else model
    text = read_rows(model, [sentence], tokenizer, 1)
    ids = text.rows[0]["input_ids"]
    notes = [f"the sentence was cut at {MOST_TOKENS} tokens"] if len(ids) > MOST_TOKENS else []
    text.rows[0] = {name: cells[:MOST_TOKENS] for name, cells in text.rows[0].items()}
    ids = ids[:MOST_TOKENS]
    notes += _unknown(ids, sentence, tokenizer)
    (batch,) = make_batches(text, part, MOST_TOKENS)

    soft: dict[Where, Tensor] = {}
    hard: dict[Where, Tensor] = {}

    def saw(call: Call) -> None:
        if call.shape[2] == call.shape[3] - call.sinks == len(ids):
            soft[call.where] = call.scores(0, len(ids)).softmax(-1)[0, ..., : len(ids)].cpu()

    def saw_weights(where: Where, start: int, weights: Tensor) -> None:
        assert not start  # so few tokens form a single block
        hard[where] = weights[0, ..., : len(ids)].double().cpu()

    passes = Passes(part, (), True, 0.0, notes, fixed_within(model, part, fixed))
    with evaluating(part), out_of_memory_hint(part, len(ids)):
        with running(part, len(ids)), seen(part, saw):
            run_without_cache(part, part, batch.inputs)
        passes.in_the_limit(batch, saw_weights, hard.clear)
    stack = "encoder" if part is not model else "layer"
    known = {
        head_name(stack, layer, h): {"soft": soft[where][h], "saturated": hard[where][h]}
        for where, layer in layer_numbers(soft).items()
        for h in range(len(soft[where]))
    }
    unknown = next((name for name in chosen if name not in known), None)
    if unknown is not None:
        there = (
            f"there are {next(iter(known))} to {list(known)[-1]}" if known else "no attention was captured"
        )
        raise InputError(f"no head {unknown}: {there}")
    found = {name: HeadPattern(**{key: _rows(one) for key, one in known[name].items()}) for name in chosen}
    return AttentionPatterns(tuple(_tokens(ids, sentence, tokenizer)), found, sentence), notes


def _rows(weights: Tensor) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in weights.round(decimals=DIGITS).tolist())


def _tokens(ids: list[int], sentence: str, tokenizer: Any) -> list[str]:
    """The tokens as strings."""
    if hasattr(tokenizer, "convert_ids_to_tokens"):
        return [str(token) for token in tokenizer.convert_ids_to_tokens(ids)]
    words = getattr(tokenizer, "words", None)
    return [words[i] for i in ids] if words is not None else sentence.split()[: len(ids)]


def _unknown(ids: list[int], sentence: str, tokenizer: Any) -> list[str]:
    if hasattr(tokenizer, "ids"):
        strange = [word for word in sentence.split() if word not in tokenizer.ids]
        named = f": {', '.join(strange[:3])}" if strange else ""
        count = len(strange)
    else:
        unknown = getattr(tokenizer, "unk_token_id", None)
        count, named = sum(token == unknown for token in ids), ""
    return [f"{counted(count, 'word')} of the sentence unknown to the model{named}"] if count else []
