"""`Records`: the tidy table, with methods to select and convert its rows."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import AmbiguousRows, InputError, installed
from normgrowth.records.matrix import Matrix, stack_of
from normgrowth.records.record_blocks import Block, concatenated, table_of
from normgrowth.serialization.record_schema import AXES, NULLABLE
from normgrowth.text import natural_order

if TYPE_CHECKING:
    import pyarrow as pa

# Levels to read; a mapping has the quantities of each level, None for all of them.
Levels = Sequence[str] | Mapping[str, Collection[str] | None]


def quantities_by_level(levels: Levels) -> Mapping[str, Collection[str] | None]:
    """The quantities of each level; None for all of them."""
    return levels if isinstance(levels, Mapping) else dict.fromkeys(levels)


@dataclass(frozen=True)
class Records:
    """The table of measured values, with methods to select and convert rows."""

    table: "pa.Table"

    @staticmethod
    def from_blocks(run: str, blocks: Iterable[Block]) -> "Records":
        return Records(table_of(run, blocks))

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
        from normgrowth.records.records_shown import as_line

        return as_line(self)

    def _repr_html_(self) -> str:
        from normgrowth.records.records_shown import as_html

        return as_html(self)

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
            stacks.setdefault(stack_of(name, layer), len(stacks))
        by_layer = sorted(
            names, key=lambda name: (stacks[stack_of(name, layer_of[name])], layer_of[name] or 0)
        )
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
