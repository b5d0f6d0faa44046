"""Records: the one tidy table that every measurement writes and that reports read.

One row is one number. A new analysis adds quantities; nobody has to change the table.

    run       string   which series or training run
    step      int64    training step; null where another axis takes its place
    level     string   "tensor", "layer", "role", "head" or "model": what was summed over
    name      string   which tensor, layer ("encoder.3"), role ("attention.query"), head ("encoder.3.head.5"); "model"
    layer     int32    block index, counted from 0; null outside blocks and for role and model
    role      string   role of a tensor or of a role row; null otherwise
    quantity  string   "norm", "cosine", "step_size", ...: see `normgrowth.moments.moments`
    reference string   what a comparison is with: "previous", "first" or "lag10" (checkpoint or step); null otherwise
    value     float64  NaN where the quantity is undefined (the direction of a zero tensor)

Some results have further axes, each a column of its own: tokens (float64, seen in training up to the step), scale
(float64, the factor of the weights), cell (int64, of a sweep), seed (int64, of random weights).

On disk a folder holds ``records.parquet`` and ``records.json``, which says what made it. Both carry checksums, and
``records.json`` that of the table it belongs to: damaged files, and files of two different runs, are refused.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.checksums import from_parquet, to_parquet
from normgrowth.errors import AmbiguousRows, InputError, MissingDependency, RecordsMismatch, SchemaError
from normgrowth.record_schema import AXES, NULLABLE, conformed, refuse_newer, sidecar_shape, with_include
from normgrowth.schema import mismatch
from normgrowth.text import html_table, listed, visible
from normgrowth.workspace import read_json, replacing, write_json

if TYPE_CHECKING:
    import pyarrow as pa

FILE, SIDECAR = "records.parquet", "records.json"
LOG_FOLDER, JOURNAL = "steps", "journal"  # measured steps of a run: `tracking.step_log`, and earlier versions
PAIRED = "records_sha256"  # in records.json: the checksum of the records.parquet that was written with it
PAUSES = (0.05, 0.1, 0.2, 0.4)  # seconds, until a writer has replaced both
COUNTS = ("tensors", "of_tensors", "values", "of_values")  # of the parameters that count
COMMON = ("norm", "step_size", "cosine", "alignment", "saturation", "dev_loss")  # shown of the model


@dataclass(frozen=True)
class Block:
    """Rows that share a level: one value for each quantity, item and step."""

    level: str
    names: Sequence[str]
    layers: Sequence[int | None]
    roles: Sequence[str | None]
    steps: Sequence[int] | Sequence[float]
    values: Mapping[str, NDArray[np.float64]]  # quantity -> (steps, items)
    reference: str | None = None  # of all quantities
    axis: str = "step"  # the column that `steps` are values of
    constants: Mapping[str, float] = field(default_factory=dict)  # further axis columns, with one value each


@dataclass(frozen=True)
class Matrix:
    """One quantity: a row per step (or value of another axis), a column per layer, tensor, role or head."""

    names: list[str]
    layers: list[int | None]
    steps: NDArray[Any]  # ascending
    values: NDArray[np.float64]  # (steps, names); NaN where there is no finite value
    axis: str = "step"

    def to_pandas(self) -> Any:
        """A DataFrame with a row per step and a column per name."""
        pandas = installed("pandas")
        index = pandas.Index(self.steps, name=self.axis)
        return pandas.DataFrame(self.values, index=index, columns=self.names)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """The values, for numpy and matplotlib."""
        return np.array(self.values, dtype=dtype, copy=copy)

    def curve(self, name: str) -> NDArray[np.float64]:
        """The values of one name over the steps."""
        if name not in self.names:
            return np.full(len(self.steps), np.nan)
        return self.values[:, self.names.index(name)]

    def drawable(self) -> bool:
        """Whether any value is finite."""
        return bool(np.isfinite(self.values).any())

    def stacks(self) -> dict[str, list[str]]:
        """Names of layers by what they are layers of: {"encoder": ["encoder.0", ...], ...}."""
        stacks: dict[str, list[str]] = {}
        for name, layer in zip(self.names, self.layers, strict=True):
            stacks.setdefault(_stack(name, layer), []).append(name)
        return stacks


def installed(package: str) -> Any:
    """A package that normgrowth does not depend on, imported."""
    try:
        return import_module(package)
    except ImportError as error:
        raise MissingDependency(package, f"pip install {package}") from error


def _stack(name: str, layer: int | None) -> str:
    return name.removesuffix(f".{layer}")


@dataclass(frozen=True)
class Records:
    """The table and what made it."""

    table: "pa.Table"
    made_by: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def from_blocks(run: str, blocks: Iterable[Block], made_by: dict[str, Any]) -> "Records":
        return Records(concatenated([_block_table(run, block) for block in blocks]), made_by)

    @staticmethod
    def joined(parts: "Iterable[Records]", made_by: dict[str, Any]) -> "Records":
        """The rows of all parts, one after the other."""
        return Records(concatenated([part.table for part in parts]), made_by)

    def __len__(self) -> int:
        return self.table.num_rows

    def __repr__(self) -> str:
        """One line: Arrow would show the first rows of every column."""
        runs = visible(listed(self.distinct("run")))
        return f"Records({len(self):,} rows; runs: {runs}; steps: {self._steps()})"

    def _repr_html_(self) -> str:
        """What a notebook shows: what is in the table, and how the model changed. Ten million rows take a second."""
        pairs = self.table.unify_dictionaries().group_by(["level", "name"]).aggregate([])
        names = [(pair["values"], pair["counts"]) for pair in pairs["level"].value_counts().to_pylist()]
        there = [
            ("runs", listed(self.distinct("run"))),
            ("steps", self._steps()),
            ("levels", listed(f"{level} ({count:,})" for level, count in names)),
            ("quantities", listed(self.distinct("quantity"))),
            *([("parameters", self.parameters)] if self.parameters else []),
        ]
        titles = ("run", "quantity", "first step", "value", "last step", "value")
        ends = self._ends()
        changed = html_table(titles, ends) if ends else ""
        return html_table(("records", f"{len(self):,} rows"), there) + changed

    def _steps(self) -> str:
        import pyarrow.compute as pc

        step = self.table["step"]
        first, last = pc.min_max(step).as_py().values()  # pyright: ignore[reportAttributeAccessIssue]
        count = pc.count_distinct(step).as_py()  # pyright: ignore[reportAttributeAccessIssue]
        return f"{count:,}, from {first:,} to {last:,}" if count else "none"

    def _ends(self) -> list[Sequence[object]]:
        """Of each run and common quantity of the model: the first step that has it with the value, and the last."""
        model = self.where(level="model").compared_with().table.unify_dictionaries().sort_by("step")
        ends = [(column, end) for end in ("first", "last") for column in ("step", "value")]
        found = model.group_by(["run", "quantity"], use_threads=False).aggregate(ends).to_pylist()
        columns = ["run", "quantity", *map("_".join, ends)]
        return [[row[c] for c in columns] for name in COMMON for row in found if row["quantity"] == name]

    @property
    def parameters(self) -> str:
        """Which parameters count, "blocks (144 of 148 tensors, 85.1M of 124.4M values)"; "" where it is unknown."""
        return counted_parameters(self.made_by)

    def where(self, **equals: Any) -> "Records":
        """The rows whose columns equal what is given: ``records.where(level="layer", quantity="norm")``.

        None stands for no value: ``records.where(role=None)``.
        """
        import pyarrow.compute as pc

        table = self.table
        for column, value in equals.items():
            if column not in table.column_names:
                raise InputError(
                    f"records have no column {column!r}; they have {', '.join(table.column_names)}"
                )
            same = pc.is_null(table[column]) if value is None else pc.equal(table[column], value)  # pyright: ignore[reportAttributeAccessIssue]
            table = table.filter(same)
        return Records(table, self.made_by)

    def without_tensors(self) -> "Records":
        """The rows of all levels but single tensors."""
        import pyarrow.compute as pc

        return Records(self.table.filter(pc.not_equal(self.table["level"], "tensor")), self.made_by)  # pyright: ignore[reportAttributeAccessIssue]

    def with_tokens(self, tokens_per_step: float) -> "Records":
        """With the axis column tokens: the tokens seen in training up to each step."""
        import pyarrow.compute as pc

        tokens = pc.multiply(self.table["step"].cast("float64"), tokens_per_step)  # pyright: ignore[reportAttributeAccessIssue]
        return Records(self.table.append_column("tokens", tokens), self.made_by)

    def distinct(self, column: str) -> list[Any]:
        """The values of a column, in the order of their first row."""
        return self.table[column].unique().to_pylist()

    def single_run(self) -> str:
        """The run that all rows are of; an error if there are several."""
        runs = self.distinct("run")
        if len(runs) > 1:
            more = f" and {len(runs) - 4} more" if len(runs) > 4 else ""
            raise InputError(
                f"these records hold {len(runs)} runs ({', '.join(map(repr, runs[:4]))}{more}); "
                f"choose one with records.where(run={runs[0]!r})"
            )
        return str(runs[0]) if runs else ""

    def compared_with(self, reference: str | None = None) -> "Records":
        """The rows with this reference; None: those without one and those compared with the previous checkpoint."""
        import pyarrow.compute as pc

        if reference is not None:
            return self.where(reference=reference)
        column = self.table["reference"]
        usual = pc.or_kleene(pc.is_null(column), pc.equal(column, "previous"))  # pyright: ignore[reportAttributeAccessIssue]
        return Records(self.table.filter(usual), self.made_by)

    def series(
        self, quantity: str, *, level: str = "model", name: str | None = None, reference: str | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Steps and values of one quantity of one thing, in the order of steps.

        reference: of a comparison; without one, the previous checkpoint.
        """
        rows = self.where(quantity=quantity, level=level, **({} if name is None else {"name": name}))
        rows = rows.compared_with(reference)
        things = rows.distinct("name")
        if not things:
            there = self.where(level=level)
            same = there.where(quantity=quantity).distinct("name")[:20]
            known = same or there.distinct("quantity") or self.distinct("level")
            what = f"{quantity}{f' to {reference}' if reference else ''}"
            raise InputError(
                f"no {what} at level {level}{f' of {name}' if name else ''}; there is {', '.join(known)}"
            )
        rows.single_run()
        if len(things) > 1:
            raise InputError(
                f"{quantity} at level {level} has several series: {', '.join(things[:5])}; name one"
            )
        steps = rows.table["step"].to_numpy()
        values = rows.table["value"].to_numpy()
        order = np.argsort(steps, kind="stable")
        return steps[order], values[order]

    def matrix(
        self, quantity: str, *, level: str = "layer", reference: str | None = None, axis: str = "step"
    ) -> Matrix:
        """A row per value of the axis, a column per name; stacks as they come, layers by number.

        Raises AmbiguousRows if several rows have the same name and value of the axis, such as those of several seeds.
        """
        rows = self.where(level=level, quantity=quantity).compared_with(reference)
        rows.single_run()
        table = rows.table
        names = table["name"].to_pylist()
        layer_of: dict[str, int | None] = dict(zip(names, table["layer"].to_pylist(), strict=True))
        stacks = list(dict.fromkeys(_stack(name, layer) for name, layer in layer_of.items()))
        ordered = sorted(
            layer_of, key=lambda name: (stacks.index(_stack(name, layer_of[name])), layer_of[name] or 0)
        )
        places = {name: i for i, name in enumerate(ordered)}
        column = [places[name] for name in names]
        steps, row = np.unique(table[axis].to_numpy(), return_inverse=True)
        filled = np.zeros((len(steps), len(ordered)), bool)
        filled[row, column] = True
        if np.count_nonzero(filled) < len(rows):
            cells = row * len(ordered) + np.array(column)
            _, first, counts = np.unique(cells, return_index=True, return_counts=True)
            same = table.filter(cells == cells[first[counts > 1][0]])
            differ = [name for name in NULLABLE if name in same.column_names and len(same[name].unique()) > 1]
            raise AmbiguousRows(quantity, level, axis, differ)
        given = table["value"].to_numpy()
        values = np.full(filled.shape, np.nan)
        values[row, column] = np.where(np.isfinite(given), given, np.nan)
        return Matrix(ordered, [layer_of[name] for name in ordered], steps, values, axis)

    def to_pandas(self) -> Any:
        """A pandas DataFrame, a row per number."""
        installed("pandas")
        return self.table.to_pandas()

    def to_polars(self) -> Any:
        """A polars DataFrame, a row per number."""
        return installed("polars").from_arrow(self.table)

    def to_rows(self) -> list[dict[str, Any]]:
        """Plain rows for JSON, where NaN has no place: None instead."""
        rows = self.table.to_pylist()
        for row in rows:
            if not np.isfinite(row["value"]):
                row["value"] = None
        return rows

    def write(self, folder: Path | str) -> None:
        """Write both files. Whoever reads meanwhile sees the old ones or the new ones, whole; never one of each."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        checksum = write_parquet(self.table, folder / FILE)
        write_json(folder / SIDECAR, {**self.made_by, PAIRED: checksum})

    @staticmethod
    def read(folder: Path | str) -> "Records":
        """The records of a folder, also of a run that goes on or was killed."""
        folder = Path(folder)
        if has_log(folder):
            from normgrowth.tracking.log.log_reader import read_run

            return read_run(folder)
        return Records.read_files(folder)

    @staticmethod
    def read_files(folder: Path | str, *, torn: bool = False) -> "Records":
        """The records that were written to files. Raises RecordsMismatch if these do not belong together.

        torn: take them all the same, as where a journal of an earlier version knows what was written last.
        """
        folder = Path(folder)
        path = folder / FILE
        if not path.is_file():
            missing = f"{FILE} is missing" if folder.exists() else "no such folder"
            raise InputError(f"{folder}: no records here ({missing}); `normgrowth trace -o` makes them")
        table, made_by = _read_pair(folder, torn)
        refuse_newer(made_by, folder / SIDECAR)
        made_by = with_include(made_by)
        if (found := mismatch(made_by, sidecar_shape)) is not None:
            raise SchemaError(folder / SIDECAR, *found, "remove it to go on without")
        return Records(conformed(table, path, made_by.get("kind")), made_by)


def has_log(folder: Path) -> bool:
    """Whether a tracker wrote measured steps here."""
    return any((folder / LOG_FOLDER).glob("part-*.arrows")) or (folder / JOURNAL).is_file()


def has_records(folder: Path) -> bool:
    """Whether a folder holds a table of records, or a log that makes one."""
    return (folder / FILE).is_file() or has_log(folder)


def _read_pair(folder: Path, torn: bool) -> "tuple[pa.Table, dict[str, Any]]":
    """Both files, which must belong together; waits a little for a writer that has replaced one of them."""
    for pause in (*PAUSES, 0):
        table, checksum = _read_table(folder / FILE)
        made_by = _read_sidecar(folder / SIDECAR)
        if made_by is None or made_by.pop(PAIRED, None) == checksum or torn:
            return table, made_by or {}
        time.sleep(pause)
    raise RecordsMismatch(folder)


def _read_table(path: Path) -> "tuple[pa.Table, str | None]":
    import pyarrow as pa

    try:
        return from_parquet(path.read_bytes())
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path}: not readable as records: {str(error).splitlines()[0]}") from error


def _read_sidecar(sidecar: Path) -> dict[str, Any] | None:
    if not sidecar.is_file():
        return None
    try:
        return read_json(sidecar)
    except (OSError, ValueError) as error:
        said = str(error).splitlines()[0]
        raise InputError(f"{sidecar}: not readable: {said}; remove it to go on without") from error


def counted_parameters(made_by: Mapping[str, Any]) -> str:
    """Which parameters the norms of some records count, as their provenance says."""
    selection, counted = made_by.get("selection"), made_by.get("counted")
    if not isinstance(selection, dict) or not selection.get("include"):
        return ""
    known = isinstance(counted, dict) and all(isinstance(counted.get(key), int) for key in COUNTS)
    return parameters_text(
        SimpleNamespace(**{"select": None, "exclude": None, **selection}),
        SimpleNamespace(**counted) if known else None,  # pyright: ignore[reportCallIssue]
    )


def parameters_text(selection: Any, counted: Any = None) -> str:
    """Which parameters count, and how many: "blocks (144 of 148 tensors, 85.1M of 124.4M values)"."""
    select, exclude = selection.select, selection.exclude
    said = f"those that match {select!r}" if select is not None else str(selection.include)
    said += f" without {exclude!r}" if exclude is not None else ""
    if counted is None:
        return said
    tensors, of_tensors, values, of_values = (_short(getattr(counted, key)) for key in COUNTS)
    return f"{said} ({tensors} of {of_tensors} tensors, {values} of {of_values} values)"


def _short(count: int) -> str:
    for size, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if count >= size:
            return f"{count / size:.1f}{letter}"
    return f"{count:,}"


def concatenated(tables: "Sequence[pa.Table]") -> "pa.Table":
    """Tables of records as one, its words stored once."""
    import pyarrow as pa

    if not tables:
        return _block_table("", Block("model", [], [], [], [], {}))
    return pa.concat_tables(tables, promote_options="default").unify_dictionaries().combine_chunks()


def write_parquet(table: "pa.Table", target: Path, **options: Any) -> str:
    """Write a table with a checksum, which is returned."""
    content, checksum = to_parquet(table, **options)
    with replacing(target) as path:  # a file of Python's: Arrow takes no paths that are not valid text
        path.write_bytes(content)
    return checksum


def read_parquet(path: Path) -> "pa.Table":
    """Raises ChecksumError where a checksum does not match."""
    return from_parquet(path.read_bytes())[0]


def storable(word: str) -> str:
    """Names come from files and file systems and need not be valid text; what is not is spelt out."""
    return word if word.isascii() else word.encode("utf-8", "backslashreplace").decode()


def _block_table(run: str, block: Block) -> "pa.Table":
    import pyarrow as pa

    items, steps, count = len(block.names), len(block.steps), len(block.values)
    size = items * steps * count

    def repeated(words: Sequence[str | None], codes: NDArray[np.int32]) -> "pa.DictionaryArray":
        words = [None if word is None else storable(word) for word in words]
        known = [word for word in dict.fromkeys(words) if word is not None]
        code = {word: i for i, word in enumerate(known)}
        own = np.array([code.get(word, -1) for word in words], np.int32)[codes]  # type: ignore[arg-type]
        return pa.DictionaryArray.from_arrays(
            pa.array(own, mask=own < 0), pa.array(known, pa.string()), safe=False
        )

    # Rows run through quantities, then items, then steps: one series lies together.
    item = np.tile(np.repeat(np.arange(items, dtype=np.int32), steps), count)
    layer = np.array([-1 if n is None else n for n in block.layers], np.int32)[item]
    value = [np.ascontiguousarray(v.T).reshape(-1) for v in block.values.values()]
    kind = np.float64 if AXES.get(block.axis) == "double" else np.int64
    along = pa.array(np.tile(np.asarray(block.steps, kind), items * count))
    axes = {} if block.axis == "step" else {block.axis: along}
    axes |= {
        name: pa.array(np.full(size, value, np.float64 if AXES[name] == "double" else np.int64))
        for name, value in block.constants.items()
    }
    return pa.table(
        {
            "run": repeated([run], np.zeros(size, np.int32)),
            "step": along if block.axis == "step" else pa.nulls(size, pa.int64()),
            "level": repeated([block.level], np.zeros(size, np.int32)),
            "name": repeated(block.names, item),
            "layer": pa.array(layer, mask=layer < 0),
            "role": repeated(block.roles, item),
            "quantity": repeated(
                list(block.values), np.repeat(np.arange(count, dtype=np.int32), items * steps)
            ),
            "reference": repeated([block.reference], np.zeros(size, np.int32)),
            "value": pa.array(np.concatenate(value) if value else np.zeros(0)),
            **axes,
        }
    )
