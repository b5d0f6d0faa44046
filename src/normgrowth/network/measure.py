"""Measure one or several models with a verb: load each of them, measure it, join the results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from normgrowth.engine import Progress
from normgrowth.errors import InputError
from normgrowth.network.measured import each_batch, held_text, input_identities, name_of, naming
from normgrowth.network.models.load import LoadedModel, as_loaded, check_weights
from normgrowth.records import Records
from normgrowth.results import Provenance, Result
from normgrowth.serialization.checksums import JsonObject
from normgrowth.workspace import ResultFolder

R = TypeVar("R", bound=Result)


@dataclass(frozen=True, kw_only=True)
class PassOptions:
    """Options that saturation, heads and behavior share; subclasses add those of one verb.

    A field with compare=False does not determine the numbers, or cannot be stored, so it is not part of the request.
    """

    tokenizer: Any = field(compare=False)
    sentences: int
    c: tuple[float, ...]
    exact: bool
    fixed: tuple[str, ...]
    batch_tokens: int = field(compare=False)
    seed: int
    dtype: str | None
    attention: str | None
    model_type: str | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "c", tuple(float(one) for one in self.c))
        object.__setattr__(self, "fixed", tuple(self.fixed))
        if self.sentences < 1 or self.batch_tokens < 1:
            raise InputError("sentences and batch_tokens must be >= 1")
        if any(not 0 < c < float("inf") for c in self.c):
            raise InputError(f"scales must be finite and above 0, got {', '.join(f'{c:g}' for c in self.c)}")
        if len({f"{c:g}" for c in self.c}) < len(self.c):
            raise InputError("scales must differ in their first six digits")

    @classmethod
    def among(cls, arguments: Mapping[str, Any]) -> Self:
        """The options among the arguments of a verb."""
        return cls(**{one.name: arguments[one.name] for one in fields(cls)})

    @property
    def load(self) -> dict[str, Any]:
        """The options of `load_model`."""
        return {name: getattr(self, name) for name in ("seed", "dtype", "attention", "model_type")}

    def request(self) -> JsonObject:
        return {one.name: getattr(self, one.name) for one in fields(self) if one.compare}

    def shared_with(self, kind: type[Result], **changes: Any) -> dict[str, Any]:
        """The options that a result has as fields. changes: fields that replace or complement them."""
        known = {one.name for one in fields(kind)}
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name in known} | changes


# A model, its run, texts, batches, options, progress -> the result of a verb for this model.
Measure = Callable[[LoadedModel, str, Any, list[Any] | None, Any, Progress | None], R]


def measure_each(
    measure: Measure[R],
    model: Any,
    texts: str | Path | Sequence[str] | None,
    inputs: Any,
    options: PassOptions,
    *,
    kind: type[R],
    run: str | None,
    out: Path | str | None,
    overwrite: bool,
    progress: Progress | None,
) -> R:
    """Measure one or several models, join the results, and write them to the folder `out`."""
    models = list(model) if isinstance(model, list | tuple) else [model]
    names = [name_of(one) for one in models]
    if not names:
        raise InputError("pass at least one model")
    if len(set(names)) < len(names):
        raise InputError(f"each model must be given once, got {', '.join(names)}")
    texts, batches = held_text(texts), each_batch(inputs)
    request = {"model": names, **input_identities(out, models, texts, batches), **options.request()}
    folder = ResultFolder(out, kind.kind, request, overwrite)
    parts: list[R] = []
    for one, name in zip(models, names, strict=True):
        with naming(one):
            loaded = as_loaded(one, options.load, progress)
            loaded = replace(loaded, tokenizer=options.tokenizer or loaded.tokenizer)
            check_weights(loaded.model)
            parts.append(measure(loaded, run or name, texts, batches, options, progress))
    several = len(parts) > 1
    notes = [
        f"{f'{name}: ' if several else ''}{note}"
        for name, part in zip(names, parts, strict=True)
        for note in part.notes
    ]
    by_run = [one.name for one in fields(kind) if isinstance(getattr(parts[0], one.name), dict)]
    result = replace(
        parts[0],
        source=", ".join(names),
        records=Records.joined([part.records for part in parts]),
        notes=tuple(notes),
        provenance=Provenance.now(),
        **{
            field: {key: value for part in parts for key, value in getattr(part, field).items()}
            for field in by_run
        },
    )
    folder.write(result)
    return result
