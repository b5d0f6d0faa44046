"""Read JSON files and check that their content has the type that the caller declares."""

import json
import re
from pathlib import Path
from typing import Any, TypeVar

from normgrowth.errors import SchemaError
from normgrowth.serialization.checksums import ChecksumError, unseal_json
from normgrowth.serialization.regular_files import read_regular
from normgrowth.text import json_problem

T = TypeVar("T")
# Names of JSON types in messages.
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
    """The content of a JSON file as `kind`. Raises SchemaError if it cannot be read or has another type.

    The checksum of an object, if it has one, is verified and removed.
    """
    try:
        content = read_regular(path)
    except OSError as error:
        raise SchemaError(path, "", error.strerror or str(error), advice) from error
    return parse_json(content, kind, path, advice=advice)


def parse_json(content: bytes, kind: type[T], path: Path, *, advice: str = "") -> T:
    """Like `read_json`, for content that was already read from `path`."""
    try:
        value = json.loads(content)
        value = unseal_json(value) if isinstance(value, dict) else value
    except ChecksumError as error:
        raise SchemaError(path, "", str(error), advice) from error
    except (ValueError, RecursionError) as error:
        raise SchemaError(path, "", f"not readable as JSON: {json_problem(error)}", advice) from error
    return converted(value, kind, path, advice=advice)


def converted(
    value: Any, kind: type[T], path: object, *, place: str = "", advice: str = "", **options: Any
) -> T:
    """Plain values converted to a type, such as a dataclass. Raises SchemaError that names the entry with another type.

    place: the key of the value in the file, empty for the whole file. options: passed to msgspec.convert.
    """
    import msgspec

    try:
        return msgspec.convert(value, kind, str_keys=True, **options)
    except (
        msgspec.ValidationError,
        RecursionError,
        UnicodeEncodeError,
    ) as error:  # lone surrogates do not encode
        said, _, inside = str(error).partition(" - at `$")
        problem = re.sub(r"`(\w+)`", lambda word: NAMES.get(word[1], word[0]), said)
        raise SchemaError(
            path, f"{place}{inside}".strip("`."), problem[:1].lower() + problem[1:], advice
        ) from error
