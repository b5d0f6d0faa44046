"""Records: the tidy table that every measurement writes and every report reads.

Each row is one number. New analyses add quantities, not columns.

    run       string   which series or training run
    step      int64    training step; null in records over another axis
    level     string   "tensor", "layer", "layer_matrices" (layers without gains and biases), "role", "part" ("matrices"
                       and "vectors"), "head" or "model": the unit of the sums
    name      string   tensor, layer ("encoder.3"), role ("attention.query"), head ("encoder.3.head.5") or "model"
    layer     int32    block index, counted from 0; null outside blocks and for role and model
    role      string   role, at levels tensor and role; null otherwise
    quantity  string   "norm", "cosine", "step_size", ...: see `normgrowth.moments.moments`
    reference string   what the value is compared with: "previous", "first" or "lag10" checkpoint or step; else null
    value     float64  NaN where the quantity is undefined (the direction of a zero tensor)

Some results have further axes, each in its own column: tokens (float64, seen in training up to the step), scale
(float64, the factor of the weights), cell (int64, of a sweep), seed (int64, of random weights).

`normgrowth.stored_result` writes and reads the table.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import AmbiguousRows, InputError, MissingDependency
from normgrowth.serialization.record_schema import AXES, COLUMNS, NULLABLE
from normgrowth.text import html_table, listed, natural_order, visible

if TYPE_CHECKING:
    import pyarrow as pa

TEXTS = ("run", "level", "name", "role", "quantity", "reference")
ONE_CHUNK = 2**20  # larger tables stay in chunks, which share memory
# Levels to read; a mapping has the quantities of each level, None for all of them.
Levels = Sequence[str] | Mapping[str, Collection[str] | None]
# Quantities of the model that a notebook shows.
COMMON = ("norm", "step_size", "cosine", "alignment", "saturation", "dev_loss")


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
    axis: str = "step"  # the column that `steps` belongs to
    constants: Mapping[str, float] = field(default_factory=dict)  # other axis columns, each with one value

    @staticmethod
    def of_model(steps: Sequence[int] | Sequence[float], values: Mapping[str, Any], **axes: Any) -> "Block":
        """Rows of the model. values: for each quantity a number, or one per step."""
        columns = {name: np.reshape(np.asarray(value, np.float64), (-1, 1)) for name, value in values.items()}
        return Block("model", ["model"], [None], [None], steps, columns, **axes)


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
        """Names of layers by stack: {"encoder": ["encoder.0", ...], ...}."""
        stacks: dict[str, list[str]] = {}
        for name, layer in zip(self.names, self.layers, strict=True):
            stacks.setdefault(_stack(name, layer), []).append(name)
        return stacks


def quantities_by_level(levels: Levels) -> Mapping[str, Collection[str] | None]:
    """The quantities of each level; None for all of them."""
    return levels if isinstance(levels, Mapping) else dict.fromkeys(levels)


def installed(package: str) -> Any:
    """Import an optional package. Raises MissingDependency if it is not installed."""
    try:
        return import_module(package)
    except ImportError as error:
        raise MissingDependency(package, f"pip install {package}") from error


def _stack(name: str, layer: int | None) -> str:
    return name.removesuffix(f".{layer}")


@dataclass(frozen=True)
class Records:
    """The table of measured values, with methods to select and convert rows."""

    table: "pa.Table"

    @staticmethod
    def from_blocks(run: str, blocks: Iterable[Block]) -> "Records":
        chunks = _Chunks(run)
        for block in blocks:
            chunks.add(block)
        return Records(chunks.table())

    @staticmethod
    def joined(parts: "Iterable[Records]") -> "Records":
        """The rows of all parts, one after the other."""
        return Records(concatenated([part.table for part in parts]))

    def __len__(self) -> int:
        return self.table.num_rows

    @property
    def checksum(self) -> str:
        """The SHA-256 of the values, the same for a table from a file and for one that was just measured."""
        import pyarrow as pa

        found = hashlib.sha256()
        for name in sorted(self.table.column_names):
            column = self.table[name].combine_chunks()
            texts = []
            if not pa.types.is_primitive(column.type):
                plain = column.cast(pa.string())
                column = plain.dictionary_encode()  # again, because the order of a dictionary varies
                texts, column = column.dictionary.to_pylist(), column.indices
            present = column.is_valid().to_numpy(zero_copy_only=False)
            values = column.fill_null(0).to_numpy(zero_copy_only=False)  # the bytes below a null vary
            values = np.where(np.isnan(values), np.nan, values)  # those of a NaN, too
            found.update(json.dumps([name, texts]).encode() + present.tobytes() + values.tobytes())
        return found.hexdigest()

    def __repr__(self) -> str:
        """One line, because Arrow's repr shows the first rows of every column."""
        runs = visible(listed(self.distinct("run")))
        return f"Records({len(self):,} rows; runs: {runs}; steps: {self._steps()})"

    def _repr_html_(self) -> str:
        """The notebook view: the content of the table, and the change of the model. Ten million rows take a second."""
        pairs = self.table.unify_dictionaries().group_by(["level", "name"]).aggregate([])
        names = [(pair["values"], pair["counts"]) for pair in pairs["level"].value_counts().to_pylist()]
        there = [
            ("runs", listed(self.distinct("run"))),
            ("steps", self._steps()),
            ("levels", listed(f"{level} ({count:,})" for level, count in names)),
            ("quantities", listed(self.distinct("quantity"))),
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
        """For each run and common quantity of the model: step and value of the first and of the last row."""
        model = (
            self.where(level="model", scale=None).compared_with().table.unify_dictionaries().sort_by("step")
        )
        ends = [(column, end) for end in ("first", "last") for column in ("step", "value")]
        found = model.group_by(["run", "quantity"], use_threads=False).aggregate(ends).to_pylist()
        columns = ["run", "quantity", *map("_".join, ends)]
        return [[row[c] for c in columns] for name in COMMON for row in found if row["quantity"] == name]

    def where(self, **equals: Any) -> "Records":
        """The rows whose columns have the given values: ``records.where(level="layer", quantity="norm")``.

        None selects null: ``records.where(role=None)``. A missing axis column counts as null.
        """
        import pyarrow.compute as pc

        table, chosen = self.table, None
        for column, value in equals.items():
            if column in AXES and column not in table.column_names:
                if value is None:
                    continue
                return Records(table.slice(0, 0))
            if column not in table.column_names:
                raise InputError(
                    f"records have no column {column!r}; they have {', '.join(table.column_names)}"
                )
            same = pc.is_null(table[column]) if value is None else _equal(table[column], value)  # pyright: ignore[reportAttributeAccessIssue]
            chosen = same if chosen is None else pc.and_(chosen, same)  # pyright: ignore[reportAttributeAccessIssue]
        return self if chosen is None else Records(table.filter(chosen))

    def at_levels(self, levels: Levels) -> "Records":
        """The rows of these levels, in the order of the table."""
        import pyarrow as pa
        import pyarrow.compute as pc

        chosen = pa.chunked_array([np.zeros(len(self), bool)])
        for level, quantities in quantities_by_level(levels).items():
            rows = _equal(self.table["level"], level)
            if quantities is not None:
                among = pc.is_in(self.table["quantity"], pa.array(sorted(quantities)))  # pyright: ignore[reportAttributeAccessIssue]
                rows = pc.and_(rows, among)  # pyright: ignore[reportAttributeAccessIssue]
            chosen = pc.or_(chosen, rows)  # pyright: ignore[reportAttributeAccessIssue]
        return Records(self.table.filter(chosen))

    def without_tensors(self) -> "Records":
        """The rows of all levels except tensor."""
        import pyarrow.compute as pc

        return Records(self.table.filter(pc.not_equal(self.table["level"], "tensor")))  # pyright: ignore[reportAttributeAccessIssue]

    def with_run(self, run: str) -> "Records":
        """The same rows under the name of another run."""
        import pyarrow as pa

        names = pa.array([run] * len(self)).dictionary_encode()
        place = self.table.column_names.index("run")
        return Records(self.table.set_column(place, "run", names))

    def with_tokens(self, tokens_per_step: float) -> "Records":
        """The records with a column tokens: the tokens seen in training up to each step."""
        import pyarrow.compute as pc

        tokens = pc.multiply(self.table["step"].cast("float64"), tokens_per_step)  # pyright: ignore[reportAttributeAccessIssue]
        return Records(self.table.append_column("tokens", tokens))

    def distinct(self, column: str) -> list[Any]:
        """The values of a column, in the order of their first row."""
        return self.table[column].unique().to_pylist()

    def single_run(self) -> str:
        """The run of all rows. Raises InputError if there are several."""
        runs = self.distinct("run")
        if len(runs) > 1:
            more = f" and {len(runs) - 4} more" if len(runs) > 4 else ""
            raise InputError(
                f"these records hold {len(runs)} runs ({', '.join(map(repr, runs[:4]))}{more}); "
                f"choose one with records.where(run={runs[0]!r})"
            )
        return str(runs[0]) if runs else ""

    def compared_with(self, reference: str | None = None) -> "Records":
        """The rows with this reference. None: rows without one and those compared with the previous checkpoint."""
        import pyarrow.compute as pc

        if reference is not None:
            return self.where(reference=reference)
        column = self.table["reference"]
        usual = pc.or_kleene(pc.is_null(column), pc.equal(column, "previous"))  # pyright: ignore[reportAttributeAccessIssue]
        return Records(self.table.filter(usual))

    def series(
        self,
        quantity: str,
        *,
        level: str = "model",
        name: str | None = None,
        reference: str | None = None,
        scale: float | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Steps and values of one quantity of one item, in the order of steps.

        reference: of a comparison; the default is the previous checkpoint. scale: the factor of the weights; the
        default selects rows without a scale.
        """
        named = {} if name is None else {"name": name}
        rows = self.where(quantity=quantity, level=level, scale=scale, **named)
        rows = rows.compared_with(reference)
        things = rows.distinct("name")
        if not things:
            there = self.where(level=level)
            same = there.where(quantity=quantity).distinct("name")[:20]
            known = same or there.distinct("quantity") or self.distinct("level")
            what = f"{quantity}{f' to {reference}' if reference else ''}"
            raise InputError(
                f"no {what} at level {level}{f' of {name}' if name else ''}; available: {', '.join(known)}"
            )
        rows.single_run()
        if len(things) > 1:
            raise InputError(
                f"{quantity} at level {level} has several series: {', '.join(things[:5])}; choose one with name=..."
            )
        steps = rows.table["step"].to_numpy()
        values = rows.table["value"].to_numpy()
        order = np.argsort(steps, kind="stable")
        return steps[order], values[order]

    def matrix(
        self,
        quantity: str,
        *,
        level: str = "layer",
        reference: str | None = None,
        axis: str = "step",
        scale: float | None = None,
    ) -> Matrix:
        """A matrix with a row per value of the axis and a column per name, in natural order: layer 2 before layer 10.

        reference, scale: as for `series`; scale is ignored for the axis "scale".
        Raises AmbiguousRows if several rows have the same name and axis value, for example those of several seeds.
        """
        rows = self.where(level=level, quantity=quantity).compared_with(reference)
        rows = rows if axis == "scale" else rows.where(scale=scale)
        rows.single_run()
        table = rows.table
        words, codes = coded(table["name"])
        firsts = np.sort(np.unique(codes, return_index=True)[1])
        names = [words[code] for code in codes[firsts].tolist()]
        layer_of: dict[str, int | None] = dict(
            zip(names, table["layer"].take(firsts).to_pylist(), strict=True)
        )
        stacks: dict[str, int] = {}
        for name, layer in layer_of.items():
            stacks.setdefault(_stack(name, layer), len(stacks))
        by_layer = sorted(names, key=lambda name: (stacks[_stack(name, layer_of[name])], layer_of[name] or 0))
        ordered = natural_order(names) if level == "tensor" else by_layer
        places = {name: i for i, name in enumerate(ordered)}
        column = np.array([places.get(word, -1) for word in words], np.intp)[codes]
        steps, row = np.unique(table[axis].to_numpy(), return_inverse=True)
        filled = np.zeros((len(steps), len(ordered)), bool)
        filled[row, column] = True
        if np.count_nonzero(filled) < len(rows):
            cells = row * len(ordered) + column
            _, first, counts = np.unique(cells, return_index=True, return_counts=True)
            same = table.filter(cells == cells[first[counts > 1][0]])
            differ = [name for name in NULLABLE if name in same.column_names and len(same[name].unique()) > 1]
            raise AmbiguousRows(quantity, level, axis, differ)
        given = table["value"].to_numpy()
        values = np.full(filled.shape, np.nan)
        values[row, column] = np.where(np.isfinite(given), given, np.nan)
        return Matrix(ordered, [layer_of[name] for name in ordered], steps, values, axis)

    def to_pandas(self) -> Any:
        """A pandas DataFrame with a row per number."""
        installed("pandas")
        frame = self.table.to_pandas()
        return frame.assign(
            layer=frame["layer"].astype("Int64")
        )  # not float, which marks missing layers as NaN

    def to_polars(self) -> Any:
        """A polars DataFrame with a row per number."""
        return installed("polars").from_arrow(self.table)

    def to_rows(self) -> list[dict[str, Any]]:
        """The rows as dictionaries for JSON; values that are not finite become None."""
        rows = self.table.to_pylist()
        for row in rows:
            if not np.isfinite(row["value"]):
                row["value"] = None
        return rows

    @staticmethod
    def read(folder: Path | str) -> "Records":
        """The records in a folder, also of a run that is still going or was killed."""
        from normgrowth.stored_result import StoredResult

        return StoredResult.read(folder).records

    def write(self, folder: Path | str) -> None:
        """Write only the table; `Result.save` also writes the fields of a result."""
        from normgrowth.stored_result import StoredResult

        StoredResult(self).write(folder)


def concatenated(tables: "Sequence[pa.Table]") -> "pa.Table":
    """The concatenated tables, with one shared dictionary per text column."""
    import pyarrow as pa

    if not tables:
        return Records.from_blocks("", []).table
    return _compact(pa.concat_tables(tables, promote_options="default").unify_dictionaries())


def _equal(column: "pa.ChunkedArray", value: Any) -> "pa.ChunkedArray":
    """Which rows have this value; words are compared by their codes, not as text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_dictionary(column.type) and isinstance(value, str)):
        return pc.equal(column, value)  # pyright: ignore[reportAttributeAccessIssue]
    word = pa.scalar(value, column.type.value_type)
    same = [
        pc.equal(chunk.indices, pc.index(chunk.dictionary, word).cast(chunk.indices.type))  # pyright: ignore[reportAttributeAccessIssue]
        for chunk in column.chunks
    ]
    return pa.chunked_array(same, pa.bool_())


def coded(column: "pa.ChunkedArray") -> tuple[list[str], NDArray[np.int64]]:
    """The distinct words of a column, and for each row the index of its word; avoids a loop over millions of rows."""
    import pyarrow as pa

    words = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    merged = words.unify_dictionaries().combine_chunks()
    return merged.dictionary.to_pylist(), merged.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def storable(word: str) -> str:
    """The word with invalid UTF-8 escaped: names from files and file systems can contain it."""
    return word if word.isascii() else word.encode("utf-8", "backslashreplace").decode()


class _Chunks:
    """The chunks of a table, one for each quantity of each block.

    Chunks share the memory of equal columns, so a row takes little more than its value: a long run has 40 million.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._words: dict[str, dict[str, int]] = {column: {} for column in TEXTS}
        self._chunks: list[dict[str, pa.Array]] = []
        self._same: dict[int | None, pa.Array] = {}  # word -> codes of rows that all have it
        self._last: tuple[Block, dict[str, pa.Array]] | None = None
        self._axes: list[str] = []

    def add(self, block: Block) -> None:
        import pyarrow as pa

        items = self._items(block)
        size = len(block.names) * len(block.steps)
        constants = {
            name: pa.array(np.full(size, value, _number(name))) for name, value in block.constants.items()
        }
        self._axes += [name for name in (*items, *constants) if name in AXES and name not in self._axes]
        for quantity, values in block.values.items():
            texts = {
                "run": self._run,
                "level": block.level,
                "quantity": quantity,
                "reference": block.reference,
            }
            same = {column: self._repeated(column, word, size) for column, word in texts.items()}
            # Rows are ordered by quantity, item and step, so the rows of one series are contiguous.
            value = np.array(np.transpose(values), np.float64, order="C").reshape(-1)
            self._chunks.append({**same, **items, **constants, "value": pa.array(value)})

    def table(self) -> "pa.Table":
        import pyarrow as pa

        kinds = {"step": pa.int64(), "layer": pa.int32(), "value": pa.float64()}
        kinds |= {name: pa.from_numpy_dtype(_number(name)) for name in self._axes}
        columns: dict[str, pa.ChunkedArray] = {}
        for column in (*COLUMNS, *self._axes):
            chunks = [
                chunk.get(column, pa.nulls(len(chunk["value"]), kinds.get(column, pa.int32())))
                for chunk in self._chunks
            ]
            if column in TEXTS:
                words = pa.array(self._words[column], pa.string())
                chunks = [pa.DictionaryArray.from_arrays(codes, words, safe=False) for codes in chunks]
            columns[column] = pa.chunked_array(
                chunks, kinds.get(column, pa.dictionary(pa.int32(), pa.string()))
            )
        return _compact(pa.table(columns))

    def _items(self, block: Block) -> "dict[str, pa.Array]":
        """The columns that are the same for all quantities; blocks often share their items and steps."""
        import pyarrow as pa

        if self._last is not None:
            last, columns = self._last
            shared = ("names", "layers", "roles", "steps")
            if last.axis == block.axis and all(getattr(last, a) is getattr(block, a) for a in shared):
                return columns
        count = len(block.steps)
        layers = np.array([-1 if n is None else n for n in block.layers], np.int32).repeat(count)
        columns = {
            block.axis: pa.array(np.tile(np.asarray(block.steps, _number(block.axis)), len(block.names))),
            "name": self._coded("name", block.names, count),
            "layer": pa.array(layers, mask=layers < 0),
            "role": self._coded("role", block.roles, count),
        }
        self._last = block, columns
        return columns

    def _coded(self, column: str, words: Sequence[str | None], count: int) -> "pa.Array":
        import pyarrow as pa

        codes = np.array([self._code(column, word) for word in words], np.int32).repeat(count)
        return pa.array(codes, mask=codes < 0)

    def _repeated(self, column: str, word: str | None, size: int) -> "pa.Array":
        import pyarrow as pa

        code = self._code(column, word)
        known = self._same.get(code)
        if known is None or len(known) < size:
            known = pa.nulls(size, pa.int32()) if code < 0 else pa.array(np.full(size, code, np.int32))
            self._same[code] = known
        return known.slice(0, size)

    def _code(self, column: str, word: str | None) -> int:
        words = self._words[column]
        return -1 if word is None else words.setdefault(storable(word), len(words))


def _number(column: str) -> type[np.generic]:
    return np.float64 if AXES.get(column) == "double" else np.int64


def _compact(table: "pa.Table") -> "pa.Table":
    """The table in one chunk, unless it is so large that a copy of it takes much memory."""
    return table if table.num_rows > ONE_CHUNK else table.combine_chunks()
