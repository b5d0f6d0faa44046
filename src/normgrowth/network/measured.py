"""Descriptions of a measured model and of its text, for results and requests."""

from collections.abc import Iterator
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


def source_of(texts: Any) -> str:
    """The entry for the text in a request."""
    return str(texts) if isinstance(texts, str | Path) or texts is None else "sentences from Python"


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
