"""Mutations of types and structure, for fuzz tests: JSON values, Arrow tables, bytes.

Each function returns a hypothesis strategy. What it yields is close to the original: one to three places are changed,
so that a reader gets past its first check and meets the change deep inside.
"""

import copy
import json
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

DEEP = "\u0000deep\u0000"  # becomes thousands of nested lists, which no Python value can be dumped to
# Of every type, at the edges of each, and of the wrong one where it looks right.
ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 7, 2**31, 2**53 + 1, 2**63, -(2**63), 10**400, 0.5, -0.0, 1e308, 1e-320),
    *(
        float("nan"),
        float("inf"),
        float("-inf"),
        "",
        "0",
        "x",
        "nan",
        "model",
        "a\nb\x1b[2J",
        "\ud800",
        "é" * 300,
    ),
    *([], {}, [[]], [None], [1, "a"], {"": None}, {"x": {"y": []}}, [0.5] * 3, ["x", "y"], DEEP),
]


def odd_values() -> st.SearchStrategy[Any]:
    return st.sampled_from(ODD).map(copy.deepcopy)


def mutated_value(value: Any) -> st.SearchStrategy[Any]:
    """A JSON value with one to three places replaced, dropped, added, wrapped, emptied or exchanged."""
    return st.composite(lambda draw: _mutated(draw, copy.deepcopy(value)))()


def mutated_json(value: Any) -> st.SearchStrategy[str]:
    """The same as text, now and then nested deeper than a parser can follow."""
    return st.tuples(mutated_value(value), st.sampled_from([60, 900, 100_000])).map(
        lambda pair: as_json(*pair)
    )


def as_json(value: Any, depth: int = 900) -> str:
    return json.dumps(value).replace(json.dumps(DEEP), "[" * depth + "]" * depth)


def mutated_bytes(content: bytes) -> st.SearchStrategy[bytes]:
    """Cut short, extended, or with a few bytes changed."""
    places = st.integers(0, max(len(content) - 1, 0))
    flips = st.lists(st.tuples(places, st.integers(1, 255)), min_size=1, max_size=4)
    return st.one_of(
        places.map(lambda end: content[:end]),
        st.binary(min_size=1, max_size=40).map(lambda more: content + more),
        flips.map(lambda changes: _flipped(content, changes)),
    )


def mutated_table(table: pa.Table) -> st.SearchStrategy[pa.Table]:
    """A table with one or two of its columns changed in type, values, nulls, name or place, or its rows."""

    def changed(draw: Any) -> pa.Table:
        mutant = table
        for _ in range(draw(st.integers(1, 2))):
            change = draw(st.sampled_from([_retyped, _retyped, _revalued, _revalued, _renamed, _rows]))
            mutant = change(draw, mutant) if mutant.num_columns else mutant
        return mutant

    return st.composite(changed)()


def _mutated(draw: Any, value: Any) -> Any:
    holder = [value]
    for _ in range(draw(st.integers(1, 3))):
        container, key = draw(st.sampled_from(_places(holder)))
        how = draw(st.sampled_from(["replace", "replace", "replace", "drop", "add", "wrap", "empty", "swap"]))
        old = container[key]
        if how == "drop" and container is not holder:
            del container[key]
        elif how == "add" and isinstance(old, dict):
            old[draw(st.sampled_from(["", "x", "notes", "runs", "model"]))] = draw(odd_values())
        elif how == "add" and isinstance(old, list):
            old.append(draw(odd_values()))
        elif how == "wrap":
            container[key] = draw(st.sampled_from([[old], {"x": old}, [old, old]]))
        elif how == "empty" and isinstance(old, str | list | dict):
            container[key] = type(old)()
        elif how == "swap":
            other, place = draw(st.sampled_from(_places(holder)))
            container[key] = copy.deepcopy(other[place])
        else:
            container[key] = draw(odd_values())
    return holder[0]


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a value, as its container and key; the value itself last, since it is the bluntest."""
    found: list[tuple[Any, Any]] = []
    pending = [value]
    while pending:
        container = pending.pop()
        for key in range(len(container)) if isinstance(container, list) else list(container):
            found.append((container, key))
            if isinstance(container[key], list | dict):
                pending.append(container[key])
    return found[1:] + found[:1]


def _flipped(content: bytes, changes: list[tuple[int, int]]) -> bytes:
    mutant = bytearray(content)
    for place, change in changes:
        if mutant:
            mutant[place] ^= change
    return bytes(mutant)


TYPES = [
    *(
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.int8(),
        pa.int32(),
        pa.int64(),
        pa.uint64(),
        pa.bool_(),
    ),
    *(
        pa.float16(),
        pa.float32(),
        pa.float64(),
        pa.null(),
        pa.timestamp("us"),
        pa.date32(),
        pa.decimal128(38, 4),
    ),
    *(pa.list_(pa.int64()), pa.struct([("x", pa.string())]), pa.dictionary(pa.int8(), pa.string())),
]
WORDS = ["", "x", "model", "a\nb\x1b[2J", "é" * 300, "layer.2147483647", "$\\frac{"]
NUMBERS = [0, 1, -1, 7, 2**31 - 1, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63)]
VALUES = [0.0, -1.0, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf")]


def _column(draw: Any, table: pa.Table) -> int:
    return draw(st.integers(0, table.num_columns - 1))


def _retyped(draw: Any, table: pa.Table) -> pa.Table:
    """The column in another type: converted where Arrow can, else made up."""
    place, kind = _column(draw, table), draw(st.sampled_from(TYPES))
    column = table.column(place)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    try:
        column = column.cast(kind, safe=False)
    except (pa.ArrowException, NotImplementedError):
        made_up = {"list": [1], "struct": {"x": "y"}, "bool": True}.get(str(kind).split("<")[0], 1)
        try:
            column = pa.array([made_up] * len(table), kind)
        except (pa.ArrowException, TypeError, ValueError):
            column = pa.nulls(len(table), kind)
    return table.set_column(place, table.column_names[place], column)


def _revalued(draw: Any, table: pa.Table) -> pa.Table:
    """Some or all values replaced by nulls or by extreme ones of the same type."""
    place = _column(draw, table)
    column = table.column(place)
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    values = column.to_pylist()
    choices = WORDS if pa.types.is_string(kind) else NUMBERS if pa.types.is_integer(kind) else VALUES
    new = draw(st.sampled_from([None, None, *choices]))
    chosen = draw(st.sampled_from([slice(None), slice(0, 1), slice(-1, None), slice(None, None, 3)]))
    values[chosen] = [new] * len(values[chosen])
    try:
        column = pa.array(values, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        column = pa.nulls(len(table), kind)
    return table.set_column(place, table.column_names[place], column)


def _renamed(draw: Any, table: pa.Table) -> pa.Table:
    """A column dropped, doubled, renamed, added, or two exchanged."""
    names, place = list(table.column_names), _column(draw, table)
    how = draw(st.sampled_from(["drop", "double", "rename", "add", "swap", "reverse"]))
    if how == "drop":
        return table.remove_column(place)
    if how == "double":
        return table.append_column(names[place], table.column(place))
    if how == "add":
        return table.append_column("extra", pa.array(np.arange(len(table))))
    if how == "reverse":
        return table.select(names[::-1]) if len(set(names)) == len(names) else table
    other = _column(draw, table)
    names[place], names[other] = (names[other], names[place]) if how == "swap" else ("x", names[other])
    return table.rename_columns(names)


def _rows(draw: Any, table: pa.Table) -> pa.Table:
    """Rows dropped, repeated or shuffled; all of one value of a column dropped, or none but these kept."""
    how = draw(st.sampled_from(["none", "one", "some", "twice", "shuffled", "without", "without", "only"]))
    rows = np.arange(len(table))
    if how == "shuffled":
        rows = np.random.default_rng(draw(st.integers(0, 9))).permutation(rows)
    elif how in ("without", "only") and len(table):
        values = table.column(_column(draw, table)).to_pylist()
        chosen = draw(st.sampled_from(sorted({str(value) for value in values})))
        rows = rows[[(str(value) == chosen) == (how == "only") for value in values]]
    else:
        rows = {"none": rows[:0], "one": rows[:1], "some": rows[::5], "twice": np.tile(rows, 2)}.get(
            how, rows
        )
    return table.take(pa.array(rows, pa.int64()))
