"""Batches of sentences of similar length, with little padding and a maximum number of tokens."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normgrowth.errors import InputError
from normgrowth.network.inputs.default_inputs import (
    AS_WORDS,
    SENTENCES,
    TOPICS,
    Texts,
    _special,
    documentation,
    read_sentences,
    shifted_right,
    start_token,
    unknown_said,
    unknown_share,
    unknown_warning,
    word_ids,
)
from normgrowth.network.measure import PassOptions
from normgrowth.network.measured import GIVEN, ModelInfo, TextInfo
from normgrowth.network.models.load import LoadedModel, vocabulary_size

WORD_PIECES = 512  # maximum tokens of a sentence, as in the paper
MOST_PADDING = 0.2  # maximum share of padding in a batch

Row = dict[str, list[int]]  # input_ids, and token_type_ids if the tokenizer returns them


@dataclass(frozen=True)
class Batch:
    """Arguments of one pass; `real` (rows, tokens) is False for padding, None if nothing is padded."""

    inputs: Any
    real: Tensor | None

    @property
    def padded(self) -> bool:
        return self.real is not None and not bool(self.real.all())

    @property
    def size(self) -> int:
        return 0 if self.real is None else self.real.numel()

    def rows(self, chosen: list[int], length: int | None = None) -> "Batch":
        inputs = {name: tensor[chosen, :length] for name, tensor in self.inputs.items()}
        return Batch(inputs, None if self.real is None else self.real[chosen, :length])


@dataclass(frozen=True)
class Sentences:
    """Tokenized sentences, with notes for the user."""

    rows: list[Row]
    pad: int
    source: str
    notes: list[str]
    tokenized: bool  # by the model's tokenizer; else words got ids in order of appearance
    unknown_share: float  # share of unknown tokens


def read_rows(
    model: nn.Module, texts: Texts | None, tokenizer: Any = None, most: int = SENTENCES
) -> Sentences:
    """The first `most` non-blank sentences, cut at 512 tokens or at the model's last position."""
    config, asked = getattr(model, "config", None), getattr(model, "main_input_name", "input_ids")
    size = vocabulary_size(model)
    if config is None or asked != "input_ids" or size is None:
        what = f"takes {asked}, not text" if config is not None else "its inputs are unknown"
        raise InputError(f"{type(model).__name__}: {what}; pass inputs instead of texts")
    if texts is None:
        lines, source = documentation(), TOPICS
    elif isinstance(texts, str | Path):
        lines, source = read_sentences(texts, most), str(texts)
    elif not all(isinstance(one, str) for one in texts):
        raise InputError("texts must be sentences or a file name; pass tensors as inputs=")
    else:
        lines, source = [line for line in texts if line.strip()], "text"
    lines, longest = lines[:most], _longest(model, config)
    rows: list[Row]
    if tokenizer is None:
        rows = [{"input_ids": ids} for ids in word_ids(lines, size, _special(config))]
        cut = sum(len(row["input_ids"]) > longest for row in rows)
        source += f", {AS_WORDS}"
    else:
        rows = [_tokens(tokenizer, line, longest) for line in lines]
        full = [line for line, row in zip(lines, rows, strict=True) if len(row["input_ids"]) == longest]
        cut = sum(len(_tokens(tokenizer, line, 10 * WORD_PIECES)["input_ids"]) > longest for line in full)
        source += ", through the model's tokenizer"
    rows = [row for row in rows if row["input_ids"]]
    if not rows:
        raise InputError(f"{source}: contains no sentence")
    if (largest := max(max(row["input_ids"]) for row in rows)) >= size:
        raise InputError(
            f"{source}: the tokenizer returns token {largest}, but vocab_size in config.json is {size}"
        )
    share = unknown_share([row["input_ids"] for row in rows], tokenizer, config, size)
    source += unknown_said(share)
    notes = [warning] if (warning := unknown_warning(share, tokenizer)) else []
    notes += [f"{cut} of {len(rows)} sentences were cut at {longest} tokens"] if cut else []
    pads = (getattr(config, "pad_token_id", None), getattr(tokenizer, "pad_token_id", None), 0)
    pad = next(token for token in pads if isinstance(token, int) and 0 <= token < size)
    rows = [{k: v[:longest] for k, v in row.items()} for row in rows]
    return Sentences(rows, pad, source, notes, tokenizer is not None, share)


def model_info(loaded: LoadedModel, text: Sentences | None, sentences: int, tokens: int) -> ModelInfo:
    """The description of a model in a result. text: None if batches were given."""
    given = TextInfo(GIVEN) if text is None else TextInfo(text.source, text.tokenized, text.unknown_share)
    return ModelInfo(
        loaded.source,
        type(loaded.model).__name__,
        str(next(loaded.model.parameters()).dtype).removeprefix("torch."),
        loaded.random,
        replace(given, sentences=sentences, tokens=tokens),
    )


def make_batches(sentences: Sentences, network: nn.Module, tokens: int, *, pad: bool = True) -> list[Batch]:
    """Batches sorted by length. Without `pad` or without an attention mask, a batch has sentences of one length."""
    takes_mask = "attention_mask" in inspect.signature(network.forward).parameters
    rows = sorted(sentences.rows, key=lambda row: -len(row["input_ids"]))
    groups: list[list[Row]] = []
    for row in rows:
        if groups and _fits(groups[-1], row, tokens, pad and takes_mask):
            groups[-1].append(row)
        else:
            groups.append([row])
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    return [_batch(group, sentences.pad, takes_mask, device) for group in groups]


def read_input(
    loaded: LoadedModel,
    part: nn.Module,
    texts: Texts | None,
    inputs: Sequence[Any] | None,
    options: PassOptions,
) -> tuple[Sentences | None, list[Batch]]:
    """The sentences (None if `inputs` is given), and the batches for a part of the model."""
    if inputs is not None:
        if texts is not None:
            raise InputError("pass texts or inputs, not both")
        return None, given_batches(inputs)
    text = read_rows(loaded.model, texts, loaded.tokenizer, options.sentences)
    return text, make_batches(text, part, options.batch_tokens)


def given_batches(batches: Sequence[Any]) -> list[Batch]:
    """The user's batches unchanged: dicts of tensors, or any input of the user's function. A mask marks real tokens."""
    found = []
    for batch in batches:
        named = batch if isinstance(batch, Mapping) else {}
        mask = named.get("attention_mask", named.get("mask"))  # "mask" is the name in normgrowth's encoders
        real = mask.bool() if isinstance(mask, Tensor) and mask.ndim == 2 else None
        found.append(Batch(batch, real))
    if not found:
        raise InputError("inputs must have at least one batch")
    return found


def decoder_batch(batch: Batch, model: nn.Module, how: str) -> Batch:
    """The batch with decoder inputs added if it has none; `real` marks the decoder tokens that are measured.

    how: "shifted": the start token, then the encoder's tokens; "start": only the start token.
    """
    inputs = dict(batch.inputs) if isinstance(batch.inputs, Mapping) else {"input_ids": batch.inputs}
    if not {"decoder_input_ids", "decoder_inputs_embeds"}.isdisjoint(inputs):
        mask = inputs.get("decoder_attention_mask")
        return Batch(inputs, mask.bool() if isinstance(mask, Tensor) else None)
    ids = inputs.get("input_ids")
    size = vocabulary_size(model)
    if not isinstance(ids, Tensor) or size is None:
        raise InputError(
            f"{type(model).__name__}: the inputs of its decoder are unknown; pass decoder_input_ids"
        )
    if how == "start":
        first = torch.full_like(ids[:, :1], start_token(model.config, size))
        return Batch({**inputs, "decoder_input_ids": first}, torch.ones_like(first, dtype=torch.bool))
    return Batch({**inputs, "decoder_input_ids": shifted_right(ids, model.config, size)}, batch.real)


def _fits(group: list[Row], row: Row, tokens: int, pad: bool) -> bool:
    longest, length = len(group[0]["input_ids"]), len(row["input_ids"])
    size = longest * (len(group) + 1)
    real = sum(len(member["input_ids"]) for member in group) + length
    alike = group[0].keys() == row.keys() and (longest == length or pad)
    return alike and size <= tokens and size - real <= MOST_PADDING * size


def _batch(group: list[Row], pad: int, takes_mask: bool, device: torch.device) -> Batch:
    longest = len(group[0]["input_ids"])

    def filled(name: str) -> Tensor:
        filling = pad if name == "input_ids" else 0
        cells = [row[name] + [filling] * (longest - len(row[name])) for row in group]
        return torch.tensor(cells, device=device)

    inputs = {name: filled(name) for name in group[0]}
    lengths = torch.tensor([len(row["input_ids"]) for row in group], device=device)
    real = torch.arange(longest, device=device) < lengths[:, None]
    if takes_mask:
        inputs["attention_mask"] = real.long()
    return Batch(inputs, real)


def _tokens(tokenizer: Any, line: str, longest: int) -> Row:
    """Tokens of a line. The tokenizer truncates, which keeps the end token."""
    found = tokenizer(line, truncation=True, max_length=longest)
    ids = list(found["input_ids"])
    types = found.get("token_type_ids") if hasattr(found, "get") else None
    return {"input_ids": ids} | ({"token_type_ids": list(types)} if types is not None else {})


def _longest(model: nn.Module, config: Any) -> int:
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions <= 0:
        return WORD_PIECES
    for name, module in model.named_modules():
        # RoBERTa and related models number positions from padding_idx + 1.
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            positions -= int(module.padding_idx) + 1  # type: ignore[arg-type]
            break
    return max(1, min(WORD_PIECES, positions))
