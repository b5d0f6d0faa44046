"""Sentences for language models: read from a file or from Python's documentation, and turned into token ids."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from normgrowth.errors import InputError
from normgrowth.network.models.load import vocabulary_size

Texts = str | Path | Sequence[str]  # a file, or sentences
Row = dict[str, list[int]]  # input_ids, and token_type_ids if the tokenizer returns them
SENTENCES = 100
WORD_PIECES = 512  # maximum tokens of a sentence, as in the paper
SHORTEST = 8  # minimum words of a sentence of the Python documentation
TOPICS = "the Python documentation (pydoc_data.topics)"
AS_WORDS = "words numbered in order of appearance, because there is no tokenizer (tokenizer= passes one)"
MOST_UNKNOWN = 0.1  # maximum share of unknown tokens without a warning
SPECIAL = ("pad", "bos", "eos", "cls", "sep", "mask")


@dataclass(frozen=True)
class Sentences:
    """Tokenized sentences, with notes for the user."""

    rows: list[Row]
    pad: int
    origin: str
    notes: list[str]
    tokenized: bool  # by the model's tokenizer; else words got ids in order of appearance
    unknown_share: float  # share of unknown tokens

    @property
    def source(self) -> str:
        """The origin, with the share of unknown tokens."""
        share = f" ({self.unknown_share:.1%} of its tokens unknown)" if self.unknown_share else ""
        return f"{self.origin}{share}"


def read_rows(
    model: nn.Module,
    texts: Texts | None,
    tokenizer: Any = None,
    most: int = SENTENCES,
    length: int = WORD_PIECES,
) -> Sentences:
    """The first `most` non-blank sentences, cut at this length or at the model's last position."""
    config, asked = getattr(model, "config", None), getattr(model, "main_input_name", "input_ids")
    size = vocabulary_size(model)
    if config is None or asked != "input_ids" or size is None:
        what = f"takes {asked}, not text" if config is not None else "its inputs are unknown"
        raise InputError(f"{type(model).__name__}: {what}; pass inputs instead of texts")
    if texts is None:
        lines, source = documentation(most), TOPICS
    elif isinstance(texts, str | Path):
        lines, source = read_sentences(texts, most), str(texts)
    elif not all(isinstance(one, str) for one in texts):
        raise InputError("texts must be sentences or a file name; pass tensors as inputs=")
    else:
        lines, source = [line for line in texts if line.strip()], "text"
    lines, longest = lines[:most], min(length, _longest(model, config))
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
    notes = [warning] if (warning := unknown_warning(share, tokenizer)) else []
    notes += [f"{cut} of {len(rows)} sentences were cut at {longest} tokens"] if cut else []
    pads = (getattr(config, "pad_token_id", None), getattr(tokenizer, "pad_token_id", None), 0)
    pad = next(token for token in pads if isinstance(token, int) and 0 <= token < size)
    rows = [{k: v[:longest] for k, v in row.items()} for row in rows]
    return Sentences(rows, pad, source, notes, tokenizer is not None, share)


def read_text(path: str | Path, advice: str = "") -> str:
    """The text of a file, without a byte order mark. advice: the end of the error for a missing file."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}{advice}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from None


def read_sentences(path: str | Path, most: int = SENTENCES) -> list[str]:
    """The first `most` non-blank lines of a file."""
    text = read_text(path, "; pass a text file, or a list of sentences")
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    if not lines:
        raise InputError(f"{path}: contains no sentence; expected one sentence per line")
    return lines[:most]


def topic_sentences(ends: str) -> Iterator[str]:
    """The sentences of the documentation that comes with Python. ends: the signs that end a sentence."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise InputError(
            "this Python has no pydoc_data.topics (its documentation): pass a text file"
        ) from None
    for name in sorted(topics):
        for paragraph in re.split(r"\n\s*\n", topics[name]):
            yield from re.split(rf"(?<=[{ends}])\s+(?=[A-Z])", " ".join(paragraph.split()))


@cache
def documentation(most: int = SENTENCES) -> list[str]:
    """Distinct prose sentences of at least eight words from the documentation that comes with Python."""
    found = (
        sentence
        for sentence in topic_sentences(".!?")
        if re.fullmatch(r"[A-Z][\w\s,;()'’\"-]*[.!?]", sentence) and len(sentence.split()) >= SHORTEST
    )
    return list(dict.fromkeys(found))[:most]


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
