"""The schema of results on disk: its version, and the columns of `records.parquet`, checked on reading."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normgrowth.errors import SchemaError

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = 2  # version of results on disk: the columns of the table, and the encoding of fields
COLUMNS = ("run", "step", "level", "name", "layer", "role", "quantity", "reference", "value")
# Optional columns, with their types.
AXES = {"tokens": "double", "scale": "double", "cell": "int64", "seed": "int64"}
NULLABLE = ("layer", "role", "reference", *AXES)
# Kinds of results whose records have no training step.
WITHOUT_STEPS = ("fits", "degrees", "scaling", "comparison", "parameters", "findings")
ADVICE = "run the command that wrote it again"
ADVICE_OLDER = "measure again, with --overwrite (overwrite=True) or into another folder"


def conformed(table: "pa.Table", path: Path, kind: str | None = None) -> "pa.Table":
    """The table with the columns of records, in their order and types; other columns are dropped.

    Raises SchemaError if a column is missing or cannot be converted without loss.
    """
    import pyarrow as pa

    word = pa.dictionary(pa.int32(), pa.string())
    kinds = dict.fromkeys(COLUMNS, word) | {"step": pa.int64(), "layer": pa.int32(), "value": pa.float64()}
    kinds |= {name: pa.type_for_alias(kind) for name, kind in AXES.items()}
    columns, names = [], [*COLUMNS, *(name for name in AXES if name in table.column_names)]
    for name in names:
        if (count := table.column_names.count(name)) != 1:
            raise SchemaError(
                path, f"column {name}", "missing" if not count else f"occurs {count} times", ADVICE
            )
        column = table.column(name)
        try:
            column = _cast(column, kinds[name])
            column.validate(full=True)  # finds text that is not UTF-8, and dictionary indices out of range
        except (pa.ArrowException, TypeError) as error:
            said = f"expected {_name(kinds[name])}, got {column.type} ({str(error).splitlines()[0]})"
            raise SchemaError(path, f"column {name}", said, ADVICE) from error
        stepless = name == "step" and (kind in WITHOUT_STEPS or not {"scale", "cell"}.isdisjoint(names))
        if column.null_count and name not in NULLABLE and not stepless:
            said = f"{column.null_count:,} of {len(column):,} values are missing"
            raise SchemaError(path, f"column {name}", said, ADVICE)
        columns.append(column)
    return pa.table(columns, names=names)


def refuse_other_schemas(content: Mapping[str, Any], path: Path) -> None:
    """Raise SchemaError if another version of normgrowth wrote the fields of a result."""
    schema = content.get("schema", "missing")
    if schema == "missing" or (isinstance(schema, int) and schema < SCHEMA):
        said = f"{schema}; this version of normgrowth reads only {SCHEMA}"
        raise SchemaError(path, "schema", said, ADVICE_OLDER)
    if not isinstance(schema, int):
        raise SchemaError(path, "schema", f"expected an integer, got {str(schema)[:60]!r}", ADVICE)
    if schema > SCHEMA:
        said = f"{schema} is newer than this version of normgrowth can read ({SCHEMA})"
        raise SchemaError(path, "schema", said, "upgrade it with: pip install --upgrade normgrowth")


def _cast(column: "pa.ChunkedArray", kind: "pa.DataType") -> "pa.ChunkedArray":
    import pyarrow as pa

    if column.type == kind:
        return column
    plain = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    if not pa.types.is_dictionary(kind):
        if not (pa.types.is_integer(plain.type) or pa.types.is_floating(plain.type)):
            raise TypeError("not numbers")
        return plain.cast(kind)
    if not (
        pa.types.is_string(plain.type) or pa.types.is_large_string(plain.type) or pa.types.is_null(plain.type)
    ):
        raise TypeError("not text")
    return plain.cast(pa.string()).dictionary_encode().cast(kind)


def _name(kind: "pa.DataType") -> str:
    import pyarrow as pa

    return "text" if pa.types.is_dictionary(kind) else str(kind)
