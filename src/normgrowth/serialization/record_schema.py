"""The columns of `records.parquet`: check them on reading, and convert those of earlier versions."""

import re
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


def conformed(table: "pa.Table", path: Path, kind: str | None = None) -> "pa.Table":
    """The table with the columns of records, in their order and types; other columns are dropped.

    Raises SchemaError if a column is missing or cannot be converted without loss.
    """
    import pyarrow as pa

    if "scope" in table.column_names and "level" not in table.column_names:
        table = from_schema_1(table)
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
    return with_scales(pa.table(columns, names=names))


def refuse_newer(content: Mapping[str, Any], path: Path) -> None:
    """Raise SchemaError if a later version of normgrowth wrote the result. Results without a schema have version 1."""
    schema = content.get("schema", 1)
    if not isinstance(schema, int):
        raise SchemaError(path, "schema", f"expected an integer, got {str(schema)[:60]!r}", ADVICE)
    if schema > SCHEMA:
        said = f"{schema} is newer than this version of normgrowth can read ({SCHEMA})"
        raise SchemaError(path, "schema", said, "upgrade it with: pip install --upgrade normgrowth")


REFERENCED = re.compile(r"(cosine|angle|step_size)_(first|lag\d+)")
COMPARISONS = (
    *("cosine", "angle", "step_size", "relative_step", "alignment", "radial", "tangential"),
    *("growth", "growth_alignment", "growth_steps", "share_alignment", "share_steps"),
)


def from_schema_1(table: "pa.Table") -> "pa.Table":
    """Convert records of schema 1, where the level is called scope and the reference is part of the quantity."""
    import pyarrow as pa

    quantities = pa.array(table["quantity"].to_pylist(), pa.string()).dictionary_encode()
    words, references = [], []
    for word in quantities.dictionary.to_pylist():
        found = REFERENCED.fullmatch(word or "")
        words.append(found[1] if found else word)
        references.append(found[2] if found else "previous" if word in COMPARISONS else None)
    codes = quantities.indices

    def column(values: list[Any]) -> "pa.Array":
        return pa.array(values, pa.string()).take(codes)

    renamed = table.rename_columns(["level" if name == "scope" else name for name in table.column_names])
    place = renamed.column_names.index("quantity")
    renamed = renamed.set_column(place, "quantity", column(words))
    return renamed.append_column("reference", column(references))


# Earlier versions wrote the scale of the weights into the quantity: saturation_c1000_others, attended_share_c1000.
SCALED = re.compile(
    r"(saturation|attended(?:_share|_spread|_window)?)_c(\d+(?:\.\d+)?(?:e[+-]?\d+)?)((?:_\w+)?)"
)


def with_scales(table: "pa.Table") -> "pa.Table":
    """Move the scale of the weights from the quantity into the column scale."""
    import pyarrow as pa
    import pyarrow.compute as pc

    words = pc.unique(table["quantity"]).to_pylist()  # pyright: ignore[reportAttributeAccessIssue]
    renamed = {word: found for word in words if (found := SCALED.fullmatch(word))}
    if not renamed:
        return table
    quantities = table["quantity"].to_pylist()
    found = [renamed.get(word) for word in quantities]
    before = table["scale"].to_pylist() if "scale" in table.column_names else [None] * len(found)
    plain = [one[1] + one[3] if one else word for one, word in zip(found, quantities, strict=True)]
    scales = [float(one[2]) if one else scale for one, scale in zip(found, before, strict=True)]
    words_of_rows = pa.array(plain).dictionary_encode().cast(table["quantity"].type)
    table = table.set_column(table.column_names.index("quantity"), "quantity", words_of_rows)
    table = table.drop_columns("scale") if "scale" in table.column_names else table
    return table.append_column("scale", pa.array(scales, pa.float64()))


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


def with_include(content: dict[str, Any]) -> dict[str, Any]:
    """A request or provenance in which scope, the name that earlier versions used, is renamed to `include`."""
    if isinstance(content.get("scope"), str) and "include" not in content:
        content = {"include" if key == "scope" else key: value for key, value in content.items()}
    parts = {key: content[key] for key in ("selection", "settings") if isinstance(content.get(key), dict)}
    return {**content, **{key: with_include(part) for key, part in parts.items()}}
