"""Descriptions of a measured model and of its text, for results and requests."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normgrowth.errors import InputError
from normgrowth.text import one_line

GIVEN = "tensors from Python"


@dataclass(frozen=True)
class TextInfo:
    """The text that a network read.

    tokenized: by the model's tokenizer; False: words got ids in order of appearance; None: token ids were given.
    unknown_share: share of unknown tokens. sentences, tokens: their numbers; None: unknown.
    """

    source: str = ""
    tokenized: bool | None = None
    unknown_share: float | None = None
    sentences: int | None = None
    tokens: int | None = None


@dataclass(frozen=True)
class ModelInfo:
    """A measured network. random_weights: the weights are random rather than trained."""

    __repr__ = one_line

    name: str
    architecture: str = ""
    dtype: str = ""
    random_weights: bool = False
    text: TextInfo = TextInfo()


def name_of(model: Any) -> str:
    """The name of a model in the records: the given name or path, or its class."""
    return str(model) if isinstance(model, str | Path) else getattr(model, "source", type(model).__name__)


def input_identities(out: Any, models: Sequence[Any], texts: Any, inputs: Any) -> dict[str, Any]:
    """The entries for weights, text and inputs in the request of an output folder; {} without a folder.

    They are paths, or checksums of what is in memory.
    """
    if out is None:
        return {}
    weights = [_identity(one.model if hasattr(one, "tokenizer") else one) for one in models]
    return {"weights": weights, "text": _identity(texts), "inputs": _identity(inputs)}


def _identity(data: Any) -> str | None:
    """A path in full, another name as it is, or a checksum of values."""
    if data is None:
        return None
    if isinstance(data, str | Path):
        return str(Path(data).resolve()) if Path(data).exists() else str(data)
    found = hashlib.sha256()
    _add(found, data.state_dict() if hasattr(data, "state_dict") else data)
    return f"checksum {found.hexdigest()[:16]}"


def _add(found: "hashlib._Hash", data: Any) -> None:
    if isinstance(data, Mapping):
        for key, value in data.items():
            found.update(repr(key).encode())
            _add(found, value)
    elif isinstance(data, list | tuple):
        found.update(f"{len(data)} of a sequence".encode())
        for value in data:
            _add(found, value)
    elif hasattr(data, "untyped_storage"):
        found.update(f"{data.dtype} {tuple(data.shape)}".encode())
        plain = type(data).__name__ in ("Tensor", "Parameter") and not (data.is_meta or data.is_quantized)
        if plain and data.numel():  # all others are refused when they are measured
            values = data.detach().cpu().contiguous().reshape(-1)
            found.update(values.view(values.new_empty(0).byte().dtype).numpy().tobytes())
    else:
        found.update(repr(data).encode())


def held_text(texts: Any) -> Any:
    """The sentences as a list, because each model reads them; a file name or None unchanged."""
    return texts if texts is None or isinstance(texts, str | Path) else list(texts)


def each_batch(inputs: Any) -> list[Any] | None:
    """One batch or several as a list."""
    if inputs is None:
        return None
    return [inputs] if hasattr(inputs, "keys") or hasattr(inputs, "shape") else list(inputs)


@contextmanager
def naming(model: Any) -> Iterator[None]:
    """Prefix errors with the name of the model if it was given by name."""
    try:
        yield
    except InputError as error:
        named = type(error) is InputError and isinstance(model, str | Path)
        if not named or str(error).startswith(str(model)):
            raise
        raise InputError(f"{model}: {error}") from error
