"""What was measured, and on what text: fields that results on networks share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normgrowth.errors import InputError
from normgrowth.text import one_line

GIVEN = "batches from Python"


@dataclass(frozen=True)
class TextInfo:
    """The text that a network read.

    tokenized: by the model's tokenizer; False: words became ids in the order of the text; None: token ids were given.
    unknown_share: of the tokens. sentences, tokens: how many were measured with; None: unknown.
    """

    source: str = ""
    tokenized: bool | None = None
    unknown_share: float | None = None
    sentences: int | None = None
    tokens: int | None = None


@dataclass(frozen=True)
class ModelInfo:
    """A network that was measured. random_weights: the weights are random rather than trained."""

    __repr__ = one_line

    name: str
    architecture: str = ""
    dtype: str = ""
    random_weights: bool = False
    text: TextInfo = TextInfo()


def from_sidecar(run: str, content: Mapping[str, Any], sizes: Mapping[str, float]) -> dict[str, Any]:
    """The fields of a `ModelInfo` from what earlier versions wrote. sizes: quantities of the model."""
    ids = {"tokenizer": True, "order of appearance": False}
    text = {
        "source": content.get("text") or "",
        "tokenized": ids.get(str(content.get("token_ids"))),
        "unknown_share": content.get("unknown_share"),
        **{
            name: int(sizes[quantity])
            for name in ("sentences", "tokens")
            for quantity in (name, f"evaluation_{name}")
            if quantity in sizes
        },
    }
    return {
        "name": content.get("source") or run,
        "architecture": content.get("architecture") or "",
        "dtype": content.get("dtype") or "",
        "random_weights": bool(content.get("random_weights")),
        "text": text,
    }


def each_once(models: Sequence[Any]) -> list[str]:
    """What several models are called in the records; each must be named once."""
    names = [
        str(one) if isinstance(one, str | Path) else getattr(one, "source", type(one).__name__)
        for one in models
    ]
    if not names:
        raise InputError("no model to measure")
    if len(set(names)) < len(names):
        raise InputError("a model is named twice")
    return names


class naming:
    """Errors on a model that was given by its name begin with that name."""

    def __init__(self, model: Any) -> None:
        self.name = str(model) if isinstance(model, str | Path) else ""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self.name and type(error) is InputError and not str(error).startswith(self.name):
            raise InputError(f"{self.name}: {error}") from error
