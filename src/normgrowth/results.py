"""Results: what every verb returns.

A result is a frozen dataclass with typed fields and a tidy table. It can be printed, plotted, saved and loaded:

    trace = ng.trace("checkpoints/")
    print(trace)                          # a table
    trace.plot()                          # a matplotlib figure; trace.plot.names lists the others
    trace.matrix("norm", by="layer")      # steps × layers
    trace.save("traces/gpt"); ng.load("traces/gpt")

On disk a result is `records.parquet` and `records.json`, which has the kind, the schema version and all fields.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from fractions import Fraction
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_type_hints

import numpy as np

from normgrowth.errors import InputError, SchemaError
from normgrowth.records import Levels, Matrix, Records
from normgrowth.serialization.checksums import CHECKSUM, JsonObject, seal_json
from normgrowth.serialization.json_types import converted
from normgrowth.serialization.record_schema import ADVICE, SCHEMA
from normgrowth.stored_result import SIDECAR, StoredResult, has_records, why_no_result
from normgrowth.text import did_you_mean, one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The class of each kind of result. To add a kind, add it here and add its renderers in `normgrowth.report`.
KINDS: dict[str, str] = {
    "parameters": "normgrowth.checkpoints.parameters.parameter_list:Parameters",
    "trace": "normgrowth.trace.result:Trace",
    "findings": "normgrowth.lint.result:Findings",
    "comparison": "normgrowth.compare.result:Comparison",
    "fits": "normgrowth.fit.result:Fits",
    "dynamics": "normgrowth.dynamics.result:Dynamics",
    "degrees": "normgrowth.limit.result:Degrees",
    "saturation": "normgrowth.network.saturation.result:Saturation",
    "heads": "normgrowth.network.heads.result:Heads",
    "scaling": "normgrowth.network.scaling.result:Scaling",
    "behavior": "normgrowth.network.behavior.result:Behavior",
    "run": "normgrowth.lab.run:Run",
    "sweep": "normgrowth.lab.sweep_result:Sweep",
    "reproduction": "normgrowth.paper.reproduction:Reproduction",
}
CLAIMS = "claims.json"  # a reproduction; its records are computed from this file


@dataclass(frozen=True)
class Provenance:
    """The versions that computed a result, and the time."""

    version: str = ""  # of normgrowth
    python: str = ""
    numpy: str = ""
    created: str = ""  # UTC

    @staticmethod
    def now() -> "Provenance":
        import platform
        import time
        from importlib.metadata import version

        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return Provenance(version("normgrowth"), platform.python_version(), np.__version__, created)

    @property
    def versions(self) -> dict[str, str]:
        return {"normgrowth": self.version, "python": self.python}


@dataclass(frozen=True, kw_only=True)
class Result:
    """Base class of all results. notes: remarks; problems: what to know before using the numbers."""

    kind: ClassVar[str]
    schema: ClassVar[int] = SCHEMA
    many_tensors: ClassVar[bool] = False  # `to_json` leaves the rows of single tensors out by default

    records: Records
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    provenance: Provenance = field(default_factory=Provenance, repr=False)

    def __init_subclass__(cls) -> None:
        # Set before @dataclass adds a repr with every field, which can be pages long.
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = one_line

    def to_pandas(self) -> Any:
        """The records as a pandas DataFrame."""
        return self.records.to_pandas()

    def to_polars(self) -> Any:
        """The records as a polars DataFrame."""
        return self.records.to_polars()

    def matrix(
        self,
        quantity: str,
        by: str = "layer",
        *,
        run: str | None = None,
        reference: str | None = None,
        scale: float | None = None,
    ) -> Matrix:
        """One quantity as a matrix: a row per step, a column per layer (or tensor, role, head).

        by: the level: "layer", "layer_matrices" (layers without their gains and biases), "role", "part" ("matrices" and
        "vectors"), "tensor", "head" or "model"; the records of each kind of result have some of them.
        scale: the factor of the weights, for a quantity that was measured at several factors.
        """
        rows = self.records if run is None else self.records.where(run=run)
        found = rows.matrix(quantity, level=by, reference=reference, scale=scale)
        if not found.names:
            raise InputError(_not_there(rows, quantity, by))
        return found

    def to_json(self, *, tensors: bool | None = None) -> JsonObject:
        """All fields and the records as plain values for JSON; NaN and infinity become None.

        tensors: include the rows of single tensors [default: not of a trace, a comparison, dynamics or the saturation
        of a series, where there can be millions].
        """
        tensors = not self.many_tensors if tensors is None else tensors
        rows = self.records if tensors else self.records.without_tensors()
        return _without_nonfinite({**to_plain(self), "records": rows.to_rows()})

    def __str__(self) -> str:
        return render(self)

    def _repr_html_(self) -> str:
        from normgrowth.report.renderers import to_html

        return to_html(self)

    @property
    def plot(self) -> "Plots":
        """Figures: `result.plot()` draws the main one, `result.plot.NAME()` one of `result.plot.names`."""
        return Plots(self)

    def save(self, folder: Path | str, *, overwrite: bool = False) -> Path:
        """Write the result into an output folder; returns the path.

        A folder that already holds another result is refused unless overwrite is set.
        """
        from normgrowth.workspace import Workspace

        with Workspace.open(folder, self.kind, self._request, overwrite=overwrite) as workspace:
            assert workspace.folder is not None
            self.write(workspace.folder)
            return workspace.folder

    def write(self, folder: Path | str) -> None:
        """Write the files of the result into a folder that the caller has claimed; `save` claims it first."""
        self.stored.write(folder)

    @property
    def _request(self) -> JsonObject:
        """What identifies the result when nothing but its content is known."""
        content = {name: value for name, value in self.stored.fields.items() if name != "provenance"}
        return {"records": self.records.checksum[:16], "fields": seal_json(content)[CHECKSUM][:16]}

    @property
    def stored(self) -> StoredResult:
        """The content of the result's files."""
        return StoredResult(self.records, to_plain(self))

    @classmethod
    def from_stored(cls, stored: StoredResult) -> Self:
        """The typed result from stored table and fields. Raises SchemaError if a field has another type."""
        return cls(records=stored.records, **_fields_of(cls, stored.fields))


class Plots:
    """The figures of a result."""

    def __init__(self, result: Result) -> None:
        self._result = result

    @property
    def names(self) -> list[str]:
        """The names of the figures for which the result has data."""
        return [name for name, drawing in self._drawings().items() if drawing.has_data(self._result)]

    def _drawings(self) -> Mapping[str, Any]:
        from normgrowth.report.renderers import figures

        return figures(self._result)

    def __call__(self, **options: Any) -> "Figure":
        """Draw the first figure for which the result has data."""
        drawings = self._drawings()
        if not drawings:
            raise InputError(f"results of kind {self._result.kind!r} have no figures")
        for place, (name, drawing) in enumerate(drawings.items()):
            if drawing.has_data(self._result):
                return self._draw(name, {} if place else options)  # options belong to the main figure
        raise InputError(f"this result has no data for its figures: {', '.join(drawings)}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._drawings():
            raise AttributeError(f"no figure {name!r}; available: {', '.join(self.names)}")
        return lambda **options: self._draw(name, options)

    def _draw(self, name: str, options: Mapping[str, Any]) -> "Figure":
        drawing = self._drawings()[name]
        figure = drawing(self._result, **options)
        if figure is None:
            needs = f"; it needs {drawing.needs}" if drawing.needs else ""
            raise InputError(f"this result has no data for the figure {name!r}{needs}")
        return figure

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._drawings()]

    def __repr__(self) -> str:
        return f"Plots({', '.join(self.names)})"


def render(result: Result) -> str:
    """The text that `print(result)` shows."""
    from normgrowth.report.renderers import to_text

    return to_text(result)


def load(folder: Path | str, *, levels: Levels | None = None) -> Result:
    """The result in a folder, as the type that its verb returned.

    levels: read only these levels of a tracker's log, for example ["model", "layer"].

    >>> folder = ng.trace("checkpoints").save("traces/gpt")
    >>> type(ng.load("traces/gpt")).__name__
    'Trace'
    """
    folder = Path(folder)
    if holds_reproduction(folder):
        return type_of("reproduction").read(folder)  # pyright: ignore[reportAttributeAccessIssue]
    if not has_records(folder):
        raise InputError(f"{folder}: {why_no_result(folder)}")
    return result_of(StoredResult.read(folder, levels), folder)


def holds_reproduction(folder: Path | str) -> bool:
    return (Path(folder) / CLAIMS).is_file() and not has_records(Path(folder))


def result_of(stored: StoredResult, folder: Path | str) -> Result:
    """The typed result of a stored one. folder: for error messages."""
    sidecar, kind = Path(folder) / SIDECAR, stored.kind
    if not isinstance(kind, str) or kind not in KINDS:
        problem = "missing" if kind is None else f"{str(kind)[:60]!r} is not a kind of result"
        advice = (
            "read the table alone with normgrowth.Records.read(FOLDER), and its norms with Trace.from_records"
        )
        raise SchemaError(sidecar, "kind", problem, advice)
    try:
        return type_of(kind).from_stored(stored)
    except SchemaError as error:
        raise SchemaError(sidecar, error.place, error.problem, error.advice) from error


def type_of(kind: str) -> type[Result]:
    module, name = KINDS[kind].split(":")
    return getattr(import_module(module), name)


def load_all(
    folder: Path | str, depth: int = 2, *, levels: Levels | None = None
) -> Iterator[tuple[Path, Result]]:
    """The result in a folder; if there is none, the results in its subfolders, up to depth levels down."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder{did_you_mean(folder)}")
    if has_records(folder) or holds_reproduction(folder):
        yield folder, load(folder, levels=levels)
    elif depth:
        for below in sorted(path for path in folder.iterdir() if path.is_dir()):
            yield from load_all(below, depth - 1, levels=levels)


def _not_there(rows: Records, quantity: str, level: str) -> str:
    """Why there is no matrix, with the levels or quantities that exist."""
    levels = rows.distinct("level")
    if level not in levels:
        return f"no level {level!r}; available: {', '.join(levels)}"
    at, others = rows.where(level=level).distinct("quantity"), rows.where(quantity=quantity).distinct("level")
    if quantity in at:
        return f"{quantity} at level {level} exists only with another reference or scale"
    if others:
        return f"no {quantity} at level {level}; levels with it: {', '.join(others)}"
    return f"no {quantity} at level {level}; available: {', '.join(at)}"


def to_plain(result: Result) -> JsonObject:
    """The kind, the schema and all fields except the records, as plain values."""
    content = {one.name: getattr(result, one.name) for one in fields(result) if one.name != "records"}
    return plain_fields(type(result), content)


def plain_fields(kind: type[Result], content: Mapping[str, Any]) -> JsonObject:
    """The kind, the schema and these fields of a result, as plain values."""
    import msgspec

    plain = msgspec.to_builtins(dict(content), str_keys=True, enc_hook=_encoded)
    return {"kind": kind.kind, "schema": kind.schema, **_with_lists(plain)}


def _with_lists(value: Any) -> Any:
    """The value with tuples replaced by lists, as JSON returns them."""
    if isinstance(value, dict):
        return {key: _with_lists(item) for key, item in value.items()}
    return [_with_lists(item) for item in value] if isinstance(value, list | tuple) else value


def _fields_of(kind: type[Result], content: Mapping[str, Any]) -> dict[str, Any]:
    """All fields except the records, converted to their types. Raises SchemaError if that fails."""
    hints, found = get_type_hints(kind), {}
    for one in fields(kind):
        if one.name in content and one.name != "records":
            place = {"place": one.name, "advice": ADVICE, "strict": False, "dec_hook": _decoded}
            found[one.name] = converted(content[one.name], hints[one.name], SIDECAR, **place)
        elif one.default is MISSING and one.default_factory is MISSING and one.name != "records":
            raise SchemaError(SIDECAR, one.name, "missing", ADVICE)
    return found


def _encoded(value: Any) -> Any:
    if isinstance(value, Fraction | Path):
        return str(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise NotImplementedError(f"cannot store a {type(value).__name__} in a result")


def _decoded(kind: type, value: Any) -> Any:
    if kind in (Fraction, Path):
        return kind(value)
    if kind is np.ndarray:
        return np.array(value)
    raise NotImplementedError(f"cannot store a {kind.__name__} in a result")


def _without_nonfinite(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_nonfinite(item) for key, item in value.items()}
    return [_without_nonfinite(item) for item in value] if isinstance(value, list | tuple) else value


__all__ = ["KINDS", "Plots", "Provenance", "Result", "load", "load_all", "result_of", "type_of"]
