"""Errors that a user can act on, and warnings."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any

from normgrowth.text import printable


class InputError(ValueError):
    """The input is invalid. The message is one line that names the file or value, and what to do."""

    def __str__(self) -> str:
        """The message with unprintable characters escaped: it can quote names from a damaged file."""
        return printable(super().__str__())

    def __reduce__(self) -> "tuple[Any, ...]":
        """Pickle the message and the fields, because subclasses have constructors with other arguments."""
        return _again, (type(self), self.args, vars(self))


def _again(kind: "type[InputError]", args: tuple[Any, ...], fields: dict[str, Any]) -> "InputError":
    error = kind.__new__(kind, *args)
    vars(error).update(fields)
    return error


def raised_here(error: BaseException) -> bool:
    """Whether the error was raised by code of this package, not by a library that it called."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    module = str(frame.tb_frame.f_globals.get("__name__")) if frame is not None else ""
    return module.partition(".")[0] == __name__.partition(".")[0]


def is_mistake(error: BaseException) -> bool:
    """Whether an exception is a bug of this package, which must not be reported as an input error."""
    kinds = (TypeError, AttributeError, NameError, LookupError, AssertionError)
    return isinstance(error, kinds) and raised_here(error)


class NoTensors(InputError):
    """A file that can be read has no tensors of a model: data, not a checkpoint."""


class TensorMismatch(InputError):
    """A checkpoint has other tensors than the first one of its series."""


class SharedStep(InputError):
    """Two checkpoints of a source have the same step."""


class FolderLocked(InputError):
    """Another command is writing into an output folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(f"{folder}: another command is writing here; wait for it or choose another folder")


class FolderMismatch(InputError):
    """An output folder holds another result. found, wanted: the kind and the differing values."""

    def __init__(
        self,
        folder: Path,
        found: Mapping[str, Any],
        wanted: Mapping[str, Any],
        advice: str = "replace it with --overwrite (overwrite=True), or choose another output folder",
    ) -> None:
        self.folder, self.found, self.wanted = folder, dict(found), dict(wanted)
        if found.get("kind") == "unknown":
            holds = "holds a result whose request is damaged"
        elif found.get("kind") == "without request":
            holds = "holds a result without request.json, such as that of an earlier version"
        else:
            holds = f"holds {_described(found)}, not {_described(wanted)}"
        super().__init__(f"{folder}: {holds}; {advice}")


class CheckpointChanged(InputError):
    """The weights of a checkpoint have changed since its step was measured."""

    def __init__(self, folder: Path, label: str, step: int) -> None:
        self.folder, self.label, self.step = folder, label, step
        super().__init__(
            f"{label}: its weights have changed since step {step} was measured for {folder} (was the run restarted?); "
            "measure again with --overwrite (overwrite=True), or choose another output folder"
        )


class UnscalableParameter(InputError):
    """A parameter, or the packed weights of a module, cannot be multiplied by c."""

    def __init__(self, name: str, kind: str, advice: str) -> None:
        self.name, self.kind = name, kind
        super().__init__(f"{name} is {kind}; {advice}")


class RecordsMismatch(InputError):
    """records.parquet and records.json of a folder were not written together."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(
            f"{folder}: records.parquet and records.json were not written together (a command was killed between "
            "the two writes, or a file was replaced); run the command again"
        )


def _described(said: Mapping[str, Any]) -> str:
    kind = said.get("kind", "result")
    texts = {name: "none" if value is None else str(value) for name, value in said.items() if name != "kind"}
    more = ", ".join(f"{name}: {text[:300]}{'…' if len(text) > 300 else ''}" for name, text in texts.items())
    return f"the result of '{kind}'{f' with {more}' if more else ''}"


class SchemaError(InputError):
    """A file of a result has unexpected content. place: the key or column; empty for the whole file."""

    def __init__(self, path: object, place: str, problem: str, advice: str = "") -> None:
        self.path, self.place, self.problem, self.advice = path, place, problem, advice
        where = f"{path}: {place}" if place else f"{path}"
        super().__init__(f"{where}: {problem}{f'; {advice}' if advice else ''}")


class AmbiguousRows(InputError):
    """Several rows belong to one cell of a matrix. columns: those that differ; empty for duplicates."""

    def __init__(self, quantity: str, level: str, axis: str, columns: Sequence[str]) -> None:
        self.quantity, self.level, self.axis, self.columns = quantity, level, axis, tuple(columns)
        said = f"{quantity} at level {level} has several rows for the same name and {axis}"
        select = " and ".join(columns)
        chosen = ", ".join(f"{column}=..." for column in columns)
        way = f"select a single {select} with records.where({chosen})" if columns else "remove duplicate rows"
        super().__init__(f"{said}; {way}")


class MissingDependency(InputError):
    """A required package is not installed. install: the command that installs it."""

    def __init__(self, package: str, install: str) -> None:
        self.package, self.install = package, install
        super().__init__(f"{package} is not installed; install it with: {install}")


def installed(package: str) -> Any:
    """Import an optional package. Raises MissingDependency if it is not installed."""
    try:
        return import_module(package)
    except ImportError as error:
        raise MissingDependency(package, f"pip install {package}") from error


class TooFewPoints(InputError):
    """A series has too few points to choose a growth law. needed: the minimum; effective: the effective sample size."""

    def __init__(self, points: int, needed: int, effective: float = inf) -> None:
        self.points, self.needed, self.effective = points, needed, effective
        worth = f" of an effective sample size of {effective:.2g}" if effective < points else ""
        super().__init__(
            f"too few points to choose a growth law: got {points}{worth}, need {needed}; choose one law yourself"
        )


class SeriesWarning(UserWarning):
    """A series was measured, but a property of it affects the result."""


class UnsupportedDtype(InputError):
    """A tensor has a dtype that is not supported."""

    def __init__(self, checkpoint: str, tensor: str, dtype: str) -> None:
        super().__init__(
            f"{checkpoint}: tensor {tensor} has dtype {dtype}, which cannot be measured; --exclude it"
        )
        self.checkpoint, self.tensor, self.dtype = checkpoint, tensor, dtype


class DamagedTensor(InputError):
    """The values of a tensor do not match the checksum that its file stores."""

    def __init__(self, file: str, tensor: str) -> None:
        self.file, self.tensor = file, tensor
        super().__init__(
            f"{file}: tensor {tensor} is damaged: it does not match its checksum; copy the file again"
        )


class UnsupportedOperation(InputError):
    """The limit of a network cannot be computed because of one operation.

    operation: its name, for example "aten.i0.default". module: the name of the module that runs it. degrees: those of
    its growing arguments; None stands for an argument that is exactly zero.
    """

    def __init__(
        self,
        operation: str,
        module: str = "",
        degrees: Sequence[Fraction | None] = (),
        reason: str = "no rule for this operation",
    ) -> None:
        self.operation, self.module, self.degrees, self.reason = operation, module, tuple(degrees), reason
        super().__init__(f"{_place(operation, module, self.degrees)}: {reason}")


class NoLimit(UnsupportedOperation):
    """A value grows faster than any power of c. parameters: those that the value depends on."""

    def __init__(
        self,
        operation: str,
        module: str = "",
        degrees: Sequence[Fraction | None] = (),
        reason: str = "grows faster than any power of c",
        parameters: Sequence[str] = (),
    ) -> None:
        self.parameters = tuple(parameters)
        super().__init__(operation, module, degrees, reason)
        self.args = (f"{self}{_held_fixed(self.parameters)}",)


def _place(operation: str, module: str, degrees: tuple[Fraction | None, ...]) -> str:
    where = f" in module {module}" if module else ""
    if not degrees:
        return f"{operation}{where}"
    said = ", ".join("zero" if degree is None else str(degree) for degree in degrees)
    return f"{operation}{where} (degree{'s' if len(degrees) > 1 else ''} {said})"


def _held_fixed(parameters: tuple[str, ...]) -> str:
    """Advice on which parameters to hold fixed; for one or two, a pattern that matches them in every layer."""
    if not parameters:
        return ""
    some = ", ".join(parameters[:3]) + (f" and {len(parameters) - 3} more" if len(parameters) > 3 else "")
    if len(parameters) > 2:
        return f"; it depends on {some}: hold fixed those that make it grow (fixed=[...], --fixed)"
    patterns = sorted({f"*.{name.rpartition('.')[2]}" if "." in name else name for name in parameters})
    words = " ".join(repr(pattern) for pattern in patterns)
    return f"; it depends on {some}: hold {'it' if len(parameters) == 1 else 'them'} fixed with " + (
        f"fixed={patterns} (--fixed {words})"
    )


class FileChanged(InputError):
    """A file has changed since it was opened."""

    def __init__(self, file: str, what: str) -> None:
        super().__init__(
            f"{file}: {what} while it was read; is it still being written? Run again when it is complete"
        )
        self.file, self.what = file, what


class ConfigError(InputError):
    """A model's config.json has an invalid value."""

    def __init__(self, file: object, key: str, value: object, problem: str) -> None:
        self.file, self.key, self.value, self.problem = file, key, value, problem
        said = "missing" if value is None else _short(value)
        super().__init__(f"{file}: {key} is {said}: {problem}")


def _short(value: object) -> str:
    """A value from a file as one line of at most 60 characters."""
    said = ascii(value) if isinstance(value, str) else " ".join(str(value).split())
    return said if len(said) <= 60 else f"{said[:57]}..."


class RanksDiffer(InputError):
    """A plain (unsharded) parameter differs between ranks, so no rank has the whole model."""

    def __init__(self, name: str, rank: int) -> None:
        self.name, self.rank = name, rank
        super().__init__(
            f"{name} differs between rank 0 and rank {rank}: a model that is split over ranks as plain tensors "
            "(Megatron, expert or pipeline parallelism) cannot be tracked; use DTensor (FSDP2, parallelize_module)"
        )
