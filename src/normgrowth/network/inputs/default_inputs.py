"""Default inputs of a model: sentences, token ids, pixels; the same at every call."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normgrowth.errors import InputError
from normgrowth.network.models.load import FROM_PYTHON, LoadedModel, vocabulary_size

if TYPE_CHECKING:
    from torch import Tensor, nn

Texts = str | Path | Sequence[str]  # a file, or sentences
SENTENCES = 100
SHORTEST = 8  # minimum words of a sentence of the Python documentation
TOPICS = "the Python documentation (pydoc_data.topics)"
AS_WORDS = "words numbered in order of appearance, because there is no tokenizer (tokenizer= passes one)"
MOST_UNKNOWN = 0.1  # maximum share of unknown tokens without a warning
SPECIAL = ("pad", "bos", "eos", "cls", "sep", "mask")


@dataclass(frozen=True)
class Inputs:
    """Keyword arguments for a model, and a note on their source."""

    tensors: "dict[str, Tensor]"
    note: str
    unknown_share: float | None = None  # share of unknown tokens; None: not text
    warning: str = ""  # set if the share is too large


def default_inputs(
    model: "LoadedModel | nn.Module",
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
    size = vocabulary_size(model)
    if asked != "input_ids" or size is None:
        raise InputError(f"{type(model).__name__}: takes {asked}, not text; {FROM_PYTHON}")
    lines, source = (read_sentences(texts), str(texts)) if isinstance(texts, str | Path) else (texts, "text")
    if lines is None:
        lines, source = documentation(), TOPICS
    positions = getattr(config, "max_position_embeddings", None)
    most = min(length, positions) if isinstance(positions, int) and positions > 0 else length
    if tokenizer is None:
        rows, note = word_ids(lines, size, _special(config)), f"{source}, {AS_WORDS}"
    else:
        rows = [tokenizer(line, truncation=True, max_length=most)["input_ids"] for line in lines]
        note = f"{source}, through the model's tokenizer"
    rows = _equal([row for row in rows if len(row)], sentences, most)
    if not rows:
        raise InputError(f"{source}: contains no sentence")
    if (largest := max(map(max, rows))) >= size:
        raise InputError(
            f"{source}: the tokenizer returns token {largest}, but vocab_size in config.json is {size}"
        )
    share = unknown_share(rows, tokenizer, config, size)
    note = f"{len(rows)} × {len(rows[0])} tokens of {note}{unknown_said(share)}"
    return Inputs(_tensors(config, rows, size), note, share, unknown_warning(share, tokenizer))


def read_sentences(path: str | Path, most: int = SENTENCES) -> list[str]:
    """The first `most` non-blank lines of a file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror or error}; pass a text file, or a list of sentences"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from None
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    if not lines:
        raise InputError(f"{path}: contains no sentence; expected one sentence per line")
    return lines[:most]


@cache
def documentation(most: int = SENTENCES) -> list[str]:
    """Distinct prose sentences of at least eight words from the documentation that comes with Python."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise InputError(
            "this Python has no pydoc_data.topics (its documentation): pass a text file"
        ) from None
    found: dict[str, None] = {}
    for name in sorted(topics):
        for paragraph in re.split(r"\n\s*\n", topics[name]):
            for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])", " ".join(paragraph.split())):
                plain = re.fullmatch(r"[A-Z][\w\s,;()'’\"-]*[.!?]", sentence)
                if plain and len(sentence.split()) >= SHORTEST:
                    found[sentence] = None
    return list(found)[:most]


def word_ids(lines: Sequence[str], size: int, special: frozenset[int] = frozenset()) -> list[list[int]]:
    """Words as ids in order of appearance; the first id represents all words beyond the vocabulary size."""
    free = [token for token in range(size) if token not in special] or list(range(size))
    unknown, numbers = free[0], iter(free[1:])
    known: dict[str, int] = {}
    rows = []
    for line in lines:
        row = []
        for word in line.split():
            if word not in known:
                known[word] = next(numbers, unknown)
            row.append(known[word])
        rows.append(row)
    return rows


def unknown_share(rows: Sequence[Sequence[int]], tokenizer: Any, config: Any, size: int) -> float:
    """The share of unknown tokens among the tokens that are not special."""
    if tokenizer is None:
        special = _special(config)
        unknown = next((token for token in range(size) if token not in special), 0)
    else:
        unknown = _unknown_id(tokenizer)
        special = {getattr(tokenizer, f"{name}_token_id", None) for name in SPECIAL} - {unknown}
    tokens = [token for row in rows for token in row if token not in special]
    return sum(token == unknown for token in tokens) / len(tokens) if tokens else 0.0


def _unknown_id(tokenizer: Any) -> int | None:
    """The unknown token's id from the tokenizer or, for a fast tokenizer, from its backend model."""
    found = getattr(tokenizer, "unk_token_id", None)
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    name = getattr(model, "unk_token", None)
    return found if found is not None or model is None or name is None else model.token_to_id(name)


def unknown_said(share: float) -> str:
    return f" ({share:.1%} of its tokens unknown)" if share else ""


def unknown_warning(share: float, tokenizer: Any) -> str:
    """A warning with advice if too many tokens are unknown, else ""."""
    if share <= MOST_UNKNOWN:
        return ""
    said = f"{share:.1%} of the tokens are unknown to the model (more than {MOST_UNKNOWN:.0%}) and look alike to it"
    if tokenizer is None:
        return f"{said}: the text has more words than the vocabulary; use a shorter text, or a model with a tokenizer"
    return (
        f"{said}: the tokenizer may be incomplete or belong to another model; check tokenizer.json or vocab.txt in its "
        "folder, or use a text in the model's language"
    )


def _special(config: Any) -> frozenset[int]:
    names = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "sep_token_id")
    found = (getattr(config, name, None) for name in names)
    return frozenset(token for token in found if isinstance(token, int))


def _equal(rows: list[list[int]], count: int, length: int) -> list[list[int]]:
    """The first rows that are long enough, or else the longest row."""
    long = [row[:length] for row in rows if len(row) >= length][:count]
    return long or [max(rows, key=len)] if rows else []


def _tensors(config: Any, rows: list[list[int]], size: int) -> "dict[str, Tensor]":
    import torch

    ids = torch.tensor(rows)
    tensors = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if getattr(config, "is_encoder_decoder", False):
        tensors["decoder_input_ids"] = shifted_right(ids, config, size)
    return tensors


def shifted_right(ids: "Tensor", config: Any, size: int) -> "Tensor":
    """Decoder inputs for predicting these tokens: the start token, then all tokens but the last."""
    import torch

    return torch.cat([torch.full_like(ids[:, :1], start_token(config, size)), ids[:, :-1]], 1)


def start_token(config: Any, size: int) -> int:
    """The decoder's start token; 0 if the config has none."""
    start = getattr(config, "decoder_start_token_id", None)
    if not isinstance(start, int):
        return 0
    if not 0 <= start < size:
        raise InputError(f"config.json: decoder_start_token_id is {start}, but vocab_size is {size}")
    return start


def _pixels(config: Any, seed: int) -> "Tensor":
    import torch

    side = getattr(config, "image_size", None) or 224
    height, width = (side, side) if isinstance(side, int) else side
    channels = getattr(config, "num_channels", None) or 3
    return torch.randn(2, channels, height, width, generator=torch.Generator().manual_seed(seed))
