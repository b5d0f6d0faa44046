"""Shared parts of results on networks: descriptions of model and text, and one result for several models."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from normgrowth.errors import InputError
from normgrowth.records import Records
from normgrowth.results import Provenance, Result
from normgrowth.text import one_line
from normgrowth.workspace import ResultFolder

GIVEN = "tensors from Python"
R = TypeVar("R", bound=Result)


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


def measure_each(
    model: Any,
    measure: Callable[[Any, str], R],
    kind: str,
    request: Mapping[str, Any],
    out: Path | str | None,
    overwrite: bool,
) -> R:
    """Join the results measure(model, name) of one or several models, and write the result to the folder `out`.

    request: the options that determine the result, without the models.
    """
    models = list(model) if isinstance(model, list | tuple) else [model]
    names = [name_of(one) for one in models]
    if not names:
        raise InputError("pass at least one model")
    if len(set(names)) < len(names):
        raise InputError(f"each model must be given once, got {', '.join(names)}")
    folder = ResultFolder(out, kind, {"model": names, **request}, overwrite)
    parts: list[Any] = []
    for one, name in zip(models, names, strict=True):
        with naming(one):
            parts.append(measure(one, name))
    several = len(parts) > 1
    notes = [f"{f'{part.source}: ' if several else ''}{note}" for part in parts for note in part.notes]
    result = replace(
        parts[0],
        records=Records.joined([part.records for part in parts]),
        source=", ".join(names),
        models={run: known for part in parts for run, known in part.models.items()},
        notes=tuple(notes),
        provenance=Provenance.now(),
    )
    folder.write(result)
    return result


def name_of(model: Any) -> str:
    """The name of a model in the records: the given name or path, or its class."""
    return str(model) if isinstance(model, str | Path) else getattr(model, "source", type(model).__name__)


def source_of(texts: Any) -> str:
    """The entry for the text in a request."""
    return str(texts) if isinstance(texts, str | Path) or texts is None else "sentences from Python"


def each_batch(inputs: Any) -> list[Any] | None:
    """One batch or several as a list."""
    if inputs is None:
        return None
    return [inputs] if hasattr(inputs, "keys") or hasattr(inputs, "shape") else list(inputs)


class naming:
    """Prefix errors with the name of the model if it was given by name."""

    def __init__(self, model: Any) -> None:
        self.name = str(model) if isinstance(model, str | Path) else ""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self.name and type(error) is InputError and not str(error).startswith(self.name):
            raise InputError(f"{self.name}: {error}") from error
