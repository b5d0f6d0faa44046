"""JSON that normgrowth writes, checked when it is read: it must have the type that the reader declares."""

import json
import re
from pathlib import Path
from typing import Any, TypeVar

from normgrowth.checksums import ChecksumError, unseal_json
from normgrowth.errors import SchemaError

T = TypeVar("T")
# How messages call the types of JSON values.
NAMES = {
    "object": "an object",
    "array": "a list",
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "null": "null",
}


def read_json(path: Path, kind: type[T], *, advice: str = "") -> T:
    """The content of a JSON file. Raises SchemaError if it cannot be read or is not of this type.

    An object with a checksum must have the right one, and is returned without it.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SchemaError(path, "", error.strerror or str(error), advice) from error
    return parse_json(content, kind, path, advice=advice)


def parse_json(content: bytes, kind: type[T], path: Path, *, advice: str = "") -> T:
    """The same for content that was read from `path`, or from a part of it."""
    try:
        value = json.loads(content)
        value = unseal_json(value) if isinstance(value, dict) else value
    except ChecksumError as error:
        raise SchemaError(path, "", str(error), advice) from error
    except (ValueError, RecursionError) as error:
        raise SchemaError(path, "", f"not readable as JSON: {str(error).splitlines()[0]}", advice) from error
    return converted(value, kind, path, advice=advice)


def converted(
    value: Any, kind: type[T], path: object, *, place: str = "", advice: str = "", **options: Any
) -> T:
    """Plain values as a type, such as a dataclass. Raises SchemaError that names the part which has another type.

    place: of the value in the file, if it is not the whole. options: of msgspec.convert.
    """
    import msgspec

    try:
        return msgspec.convert(value, kind, str_keys=True, **options)
    except (msgspec.ValidationError, RecursionError) as error:
        said, _, inside = str(error).partition(" - at `$")
        problem = re.sub(r"`(\w+)`", lambda word: NAMES.get(word[1], word[0]), said)
        raise SchemaError(
            path, f"{place}{inside}".strip("`."), problem[:1].lower() + problem[1:], advice
        ) from error
