"""The shape of the JSON files that normgrowth writes: declared once, checked when a file is read.

str, int, float, bool, dict   a value of this type; float accepts integers, int accepts no booleans; None is null
[shape]                       a list of such values
{"key": shape}                an object with this key; "key?" if it may be missing; other keys are not checked
{...: shape}                  an object whose values all have this shape
(shape, shape)                a value of one of these shapes
function                      called with the value, returns its shape
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from normgrowth.checksums import ChecksumError, unseal_json
from normgrowth.errors import SchemaError

Shape: TypeAlias = "type | list[Any] | dict[Any, Any] | tuple[Any, ...] | Callable[[Any], Any] | None"
DEEPEST = 50  # our own files nest less than 10 levels
NAMES = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    None: "null",
}


def read_json(path: Path, shape: Shape, *, advice: str = "") -> Any:
    """The content of a JSON file that has this shape. Raises SchemaError if it cannot be read or has another.

    An object with a checksum must have the right one, and is returned without it.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SchemaError(path, "", error.strerror or str(error), advice) from error
    return parse_json(content, shape, path, advice=advice)


def parse_json(content: bytes, shape: Shape, path: Path, *, advice: str = "") -> Any:
    """The same for content that was read from `path`, or from a part of it."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise SchemaError(path, "", f"not readable as JSON: {str(error).splitlines()[0]}", advice) from error
    if (found := mismatch(value, shape)) is not None:
        raise SchemaError(path, *found, advice)
    try:
        return unseal_json(value) if isinstance(value, dict) else value
    except ChecksumError as error:
        raise SchemaError(path, "", str(error), advice) from error


def mismatch(value: Any, shape: Shape) -> tuple[str, str] | None:
    """The first place where a value does not have a shape, and what is wrong there; None if it has it."""
    if _depth(value) > DEEPEST:
        return "", f"nested deeper than {DEEPEST} levels"
    return _mismatch(value, shape, "")


def _mismatch(value: Any, shape: Any, place: str) -> tuple[str, str] | None:
    if isinstance(shape, tuple):
        tried = [_mismatch(value, one, place) for one in shape]
        if None in tried:
            return None
        deeper = [one for one in tried if one is not None and one[0] != place]
        return deeper[0] if deeper else (place, f"expected {_name(shape)}, got {_said(value)}")
    if isinstance(shape, type) or shape is None:
        fits = _is(value, shape)
    elif isinstance(shape, list):
        fits = isinstance(value, list | tuple)
    elif isinstance(shape, dict):
        fits = isinstance(value, dict)
    else:
        return _mismatch(value, shape(value), place)
    if not fits:
        return place, f"expected {_name(shape)}, got {_said(value)}"
    for key, part, inner in _parts(value, shape):
        inside = f"{place}.{key}" if place else str(key)
        if part is _MISSING:
            return inside, "missing"
        if (found := _mismatch(part, inner, inside)) is not None:
            return found
    return None


_MISSING: Any = object()


def _parts(value: Any, shape: Any) -> list[tuple[Any, Any, Any]]:
    """Key, value and shape of each part that has a shape of its own."""
    if isinstance(shape, list):
        return [(i, part, shape[0]) for i, part in enumerate(value)]
    if not isinstance(shape, dict):
        return []
    parts = []
    for key, inner in shape.items():
        if key is ...:
            parts += [(name, part, inner) for name, part in value.items() if name not in shape]
        elif key.removesuffix("?") in value:
            parts.append((key.removesuffix("?"), value[key.removesuffix("?")], inner))
        elif not key.endswith("?"):
            parts.append((key, _MISSING, inner))
    return parts


def _is(value: Any, kind: type | None) -> bool:
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    if kind is float:
        return isinstance(value, float) or _is(value, int)
    return value is None if kind is None else isinstance(value, kind)


def _depth(value: Any) -> int:
    level, depth = [value], 0
    while level and depth <= DEEPEST:
        depth += 1
        inside = [
            v.values() if isinstance(v, dict) else v for v in level if isinstance(v, dict | list | tuple)
        ]
        level = [part for parts in inside for part in parts]
    return depth


def _name(shape: Any) -> str:
    if isinstance(shape, tuple):
        return " or ".join(dict.fromkeys(map(_name, shape)))
    if isinstance(shape, list):
        return "a list"
    return NAMES.get(shape if isinstance(shape, type) or shape is None else dict, str(shape))


def _said(value: Any) -> str:
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a huge integer"
    said = (
        json.dumps(value)
        if value is None or isinstance(value, str | bool | int | float)
        else repr(type(value))
    )
    return said if len(said) <= 40 else f"{said[:37]}..."
