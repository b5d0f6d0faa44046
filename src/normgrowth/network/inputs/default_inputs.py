"""Default inputs of a model: sentences, token ids, pixels; the same at every call."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from normgrowth.errors import InputError
from normgrowth.network.inputs.tokenized_text import Texts, read_rows, unknown_share, unknown_warning
from normgrowth.network.models.load import FROM_PYTHON, LoadedModel, vocabulary_size


@dataclass(frozen=True)
class Inputs:
    """Keyword arguments for a model, and a note on their source."""

    tensors: dict[str, Tensor]
    note: str
    unknown_share: float | None = None  # share of unknown tokens; None: not text
    warning: str = ""  # set if the share is too large


def default_inputs(
    model: LoadedModel | nn.Module,
    texts: Texts | None = None,
    *,
    tokenizer: Any = None,
    sentences: int = 4,
    length: int = 24,
    seed: int = 0,
) -> Inputs:
    """Model inputs from a few sentences, all cut to one length, so that no padding is needed.

    texts: sentences, or a file with one sentence per line (default: sentences of the Python documentation). Sentences
    with fewer than `length` tokens are skipped if there are longer ones. Without a tokenizer, words get ids in order
    of appearance. Vision models get noise as pixels.
    """
    if isinstance(model, LoadedModel):
        tokenizer, model = tokenizer or model.tokenizer, model.model
    config = getattr(model, "config", None)
    asked = getattr(model, "main_input_name", None)
    if config is None or asked is None:
        raise InputError(
            f"{type(model).__name__}: its inputs are unknown; {FROM_PYTHON}, with example inputs (inputs=)"
        )
    if asked == "pixel_values":
        return Inputs({"pixel_values": _pixels(config, seed)}, f"noise as pixels, seed {seed}")
    text = read_rows(model, texts, tokenizer, length=length)
    size = vocabulary_size(model) or 0
    rows = _equal([row["input_ids"] for row in text.rows], sentences, length)
    text = replace(text, unknown_share=unknown_share(rows, tokenizer, config, size))  # of these sentences
    note = f"{len(rows)} × {len(rows[0])} tokens of {text.source}"
    warning = unknown_warning(text.unknown_share, tokenizer)
    return Inputs(_tensors(config, rows, size), note, text.unknown_share, warning)


def _equal(rows: list[list[int]], count: int, length: int) -> list[list[int]]:
    """The first rows with this length, or else the longest row."""
    return [row for row in rows if len(row) == length][:count] or [max(rows, key=len)]


def _tensors(config: Any, rows: list[list[int]], size: int) -> dict[str, Tensor]:
    ids = torch.tensor(rows)
    tensors = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if getattr(config, "is_encoder_decoder", False):
        tensors["decoder_input_ids"] = shifted_right(ids, config, size)
    return tensors


def shifted_right(ids: Tensor, config: Any, size: int) -> Tensor:
    """Decoder inputs for predicting these tokens: the start token, then all tokens but the last."""
    return torch.cat([torch.full_like(ids[:, :1], start_token(config, size)), ids[:, :-1]], 1)


def start_token(config: Any, size: int) -> int:
    """The decoder's start token; 0 if the config has none."""
    start = getattr(config, "decoder_start_token_id", None)
    if not isinstance(start, int):
        return 0
    if not 0 <= start < size:
        raise InputError(f"config.json: decoder_start_token_id is {start}, but vocab_size is {size}")
    return start


def _pixels(config: Any, seed: int) -> Tensor:
    side = getattr(config, "image_size", None) or 224
    height, width = (side, side) if isinstance(side, int) else side
    channels = getattr(config, "num_channels", None) or 3
    return torch.randn(2, channels, height, width, generator=torch.Generator().manual_seed(seed))
