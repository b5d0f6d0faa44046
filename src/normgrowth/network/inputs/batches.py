"""Batches of sentences of similar length, with little padding and a maximum number of tokens."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from normgrowth.errors import InputError
from normgrowth.network.inputs.default_inputs import shifted_right, start_token
from normgrowth.network.inputs.tokenized_text import Row, Sentences, Texts, read_rows
from normgrowth.network.measure import PassOptions
from normgrowth.network.measured import GIVEN, ModelInfo, TextInfo
from normgrowth.network.models.load import LoadedModel, vocabulary_size

MOST_PADDING = 0.2  # maximum share of padding in a batch


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
