"""Checksums inside the files of a result, so that a damaged file is detected when it is read.

A parquet file ends with a footer that has the offsets of all other parts. So the checksum is stored between the last
page and the footer, where parquet readers ignore it. A JSON object has an entry for its checksum. Other files begin
with their checksum.
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
    """The content of a file does not match its checksum."""

    def __init__(self) -> None:
        super().__init__("its checksum does not match: it was changed or damaged")


def seal(content: bytes) -> bytes:
    """The checksum followed by the content."""
    return hashlib.sha256(content).digest() + content


def unseal(content: bytes) -> bytes:
    """The content without its checksum. Raises ChecksumError if they do not match."""
    if hashlib.sha256(content[SIZE:]).digest() != content[:SIZE]:
        raise ChecksumError
    return content[SIZE:]


def seal_json(content: Mapping[str, Any]) -> JsonObject:
    """A JSON object with an additional entry for its checksum."""
    plain = json.loads(json.dumps(dict(content)))  # convert values as reading back does
    return {**plain, CHECKSUM: _json_checksum(plain)}


def unseal_json(content: JsonObject) -> JsonObject:
    """The object without its checksum entry. Raises ChecksumError if there is one and it does not match."""
    rest = {name: value for name, value in content.items() if name != CHECKSUM}
    if CHECKSUM in content and content[CHECKSUM] != _json_checksum(rest):
        raise ChecksumError
    return rest


def _json_checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def to_parquet(table: "pa.Table", **options: Any) -> tuple[bytes, str]:
    """The content of a parquet file that includes its checksum, and the checksum."""
    import pyarrow.parquet as pq

    buffer = BytesIO()
    metadata = {**(table.schema.metadata or {}), SEALED: b"1"}
    pq.write_table(table.replace_schema_metadata(metadata), buffer, compression="zstd", **options)
    content = buffer.getvalue()
    footer = _footer(content)
    checksum = hashlib.sha256(content).digest()
    return content[:footer] + checksum + content[footer:], checksum.hex()


def from_parquet(content: bytes) -> "tuple[pa.Table, str | None]":
    """The table of a parquet file, and its checksum or None. Raises ChecksumError if it does not match."""
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
    """The offset of the footer."""
    return len(content) - TAIL - int.from_bytes(content[-TAIL:-4], "little")
