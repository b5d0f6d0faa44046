"""What `records.parquet` and `records.json` must hold, checked once, when they are read.

Of the sidecar only the keys that somebody reads are declared, by the command that wrote it; others may hold anything.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from normgrowth.errors import SchemaError

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("run", "step", "scope", "name", "layer", "role", "quantity", "value")
NULLABLE = ("layer", "role")
ADVICE = "run the command that wrote it again"


def conformed(table: "pa.Table", path: Path) -> "pa.Table":
    """The columns of records in their order and types. Raises SchemaError where a conversion would lose anything.

    Columns that records do not have are left out.
    """
    import pyarrow as pa

    word = pa.dictionary(pa.int32(), pa.string())
    kinds = dict.fromkeys(COLUMNS, word) | {"step": pa.int64(), "layer": pa.int32(), "value": pa.float64()}
    columns = []
    for name in COLUMNS:
        if (count := table.column_names.count(name)) != 1:
            raise SchemaError(
                path, f"column {name}", "missing" if not count else f"there {count} times", ADVICE
            )
        column = table.column(name)
        try:
            column = _cast(column, kinds[name])
            column.validate(full=True)  # text that is no UTF-8, and codes beyond the words
        except (pa.ArrowException, TypeError) as error:
            said = f"expected {_name(kinds[name])}, got {column.type} ({str(error).splitlines()[0]})"
            raise SchemaError(path, f"column {name}", said, ADVICE) from error
        if column.null_count and name not in NULLABLE:
            said = f"{column.null_count:,} of {len(column):,} values are missing"
            raise SchemaError(path, f"column {name}", said, ADVICE)
        columns.append(column)
    return pa.table(columns, names=list(COLUMNS))


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


NUMBER = (float, None)
FINDING = {"step": (int, None), "name": str, "kind": str, "why": str, "label": str, "severity": str}
SETTINGS = {"kind": str, "layers": int, "width": int, "optimizer": str, "weight_decay?": NUMBER}
AXIS = {"setting": str, "values": [(float, str, bool, None)]}
ROWS = [[NUMBER]]
PATTERNS = {"tokens": [str], "heads": {...: {"soft": ROWS, "saturated": ROWS}}}
NETWORK = {
    "random_weights?": bool,
    "text?": str,
    "window?": (int, None),
    "tolerance?": float,
    "kinds?": {...: str},
    "saturated_kinds?": {...: str},
    "patterns?": (PATTERNS, None),
}
SCALING = {"group": str, "kind?": str, "bias?": (bool, None), "overflow?": NUMBER, "rate?": {"sentence": str}}
MODEL = {"kind": str, "optimizer": str, "leaking": bool, "corpus": str, "seed": int}


def sidecar_shape(value: Any) -> dict[Any, Any]:
    """The shape of a sidecar. One that says of no known command that it wrote it has the keys that all may have."""
    common: dict[Any, Any] = {
        "command?": str,
        "stage?": str,
        "source?": str,
        "notes?": ([str], None),
        "problems?": ([str], None),
        "findings?": ([FINDING], None),
        "saturation?": dict,
        "fit?": str,
        "runs?": {...: sidecar_shape},
        "heads?": {...: NETWORK},
        **NETWORK,
    }
    command = value.get("command") if isinstance(value, dict) else None
    own = {
        "train": {"settings": SETTINGS, "corpus": {"name": str, "frequency_loss": float}, "best_step": int},
        "sweep": {
            "settings": SETTINGS,
            "corpus": {"name": str},
            "x": AXIS,
            "y": AXIS,
            "limit?": NUMBER,
            "lost?": [[int]],
        },
        "scaling": {"runs": {...: SCALING}},
        "reproduce": {"models?": {...: MODEL}, "corpora?": {...: dict}},
    }
    return common | own.get(command, {}) if isinstance(command, str) else common
