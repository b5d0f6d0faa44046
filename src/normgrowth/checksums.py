"""Checksums inside the files that are kept, so that a damaged one is noticed when it is read.

A parquet file ends with its footer, and readers find everything else by the offsets in it. So a checksum has room
between the last page and the footer, where every reader of parquet passes over it. A JSON object has an entry for its
checksum. Other files begin with theirs.
"""

import hashlib
import json
from collections.abc import Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa

JsonObject: TypeAlias = dict[str, Any]  # as json.loads returns it

SEALED = b"normgrowth.sealed"  # in the metadata of a table whose file has a checksum
CHECKSUM = "file_sha256"  # of all other entries of a JSON object
SIZE = hashlib.sha256().digest_size
TAIL = 8  # length of the footer, and parquet's magic bytes


class ChecksumError(ValueError):
    """A file is not what was written."""

    def __init__(self) -> None:
        super().__init__("its checksum does not match: it was changed or damaged")


def seal(content: bytes) -> bytes:
    """The content with its checksum before it."""
    return hashlib.sha256(content).digest() + content


def unseal(content: bytes) -> bytes:
    """What was sealed. Raises ChecksumError."""
    if hashlib.sha256(content[SIZE:]).digest() != content[:SIZE]:
        raise ChecksumError
    return content[SIZE:]


def seal_json(content: Mapping[str, Any]) -> JsonObject:
    """A JSON object with its checksum as a further entry."""
    plain = json.loads(json.dumps(dict(content)))  # as it will be read back
    return {**plain, CHECKSUM: _json_checksum(plain)}


def unseal_json(content: JsonObject) -> JsonObject:
    """The object without its checksum, if it has one. Raises ChecksumError."""
    rest = {name: value for name, value in content.items() if name != CHECKSUM}
    if CHECKSUM in content and content[CHECKSUM] != _json_checksum(rest):
        raise ChecksumError
    return rest


def _json_checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def to_parquet(table: "pa.Table", **options: Any) -> tuple[bytes, str]:
    """A parquet file with a checksum, and the checksum."""
    import pyarrow.parquet as pq

    buffer = BytesIO()
    metadata = {**(table.schema.metadata or {}), SEALED: b"1"}
    pq.write_table(table.replace_schema_metadata(metadata), buffer, compression="zstd", **options)
    content = buffer.getvalue()
    footer = _footer(content)
    checksum = hashlib.sha256(content).digest()
    return content[:footer] + checksum + content[footer:], checksum.hex()


def from_parquet(content: bytes) -> "tuple[pa.Table, str | None]":
    """The table of a parquet file, and its checksum; None if it has none. Raises ChecksumError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pq.read_schema(pa.BufferReader(content))
    checksum = None
    if SEALED in (schema.metadata or {}):
        footer = _footer(content)
        whole = hashlib.sha256(memoryview(content)[: footer - SIZE])
        whole.update(memoryview(content)[footer:])
        if whole.digest() != content[footer - SIZE : footer]:
            raise ChecksumError
        checksum = whole.hexdigest()
    table = pq.read_table(pa.BufferReader(content))
    metadata = {name: value for name, value in (table.schema.metadata or {}).items() if name != SEALED}
    return table.replace_schema_metadata(metadata or None), checksum


def _footer(content: bytes) -> int:
    """Where the footer begins."""
    return len(content) - TAIL - int.from_bytes(content[-TAIL:-4], "little")
