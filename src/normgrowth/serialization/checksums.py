"""Checksums inside the files of a result, so that a damaged file is detected when it is read.

A parquet file ends with a footer that has the offsets of all other parts. So the checksum is stored between the last
page and the footer, where parquet readers ignore it. A JSON object has an entry for its checksum. Other files begin
with their checksum.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

T = TypeVar("T")

JsonObject: TypeAlias = dict[str, Any]  # as json.loads returns it

SEALED = b"normgrowth.sealed"  # in the metadata of a table whose file has a checksum
CHECKSUM = "file_sha256"  # the checksum of all other entries of a JSON object
SIZE = hashlib.sha256().digest_size
TAIL = 8  # length of the footer, and parquet's magic bytes


class ChecksumError(ValueError):
    """The content of a file does not match its checksum."""

    def __init__(self) -> None:
        super().__init__("its checksum does not match: it was changed or damaged")


def digest(content: object) -> str:
    """The SHA-256 of the JSON form of the content: the key of what was computed from it."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


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
    plain = json.loads(json.dumps(dict(content)))  # the values as they will be read back: tuples become lists
    return {**plain, CHECKSUM: digest(plain)}


def unseal_json(content: JsonObject) -> JsonObject:
    """The object without its checksum entry. Raises ChecksumError if there is one and it does not match."""
    rest = {name: value for name, value in content.items() if name != CHECKSUM}
    if CHECKSUM in content and content[CHECKSUM] != digest(rest):
        raise ChecksumError
    return rest


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


@dataclass(frozen=True)
class FileCodec(Generic[T]):
    """A type of file with a checksum. decode: raises ValueError if the content is damaged."""

    suffix: str
    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]


def _encode_object(content: JsonObject) -> bytes:
    return json.dumps(seal_json(content), indent=1).encode() + b"\n"


def _decode_object(content: bytes) -> JsonObject:
    try:
        value = json.loads(content.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return unseal_json(value)


def _decode_table(content: bytes) -> "pa.Table":
    import pyarrow as pa

    try:
        return from_parquet(content)[0]
    except pa.ArrowException as error:
        raise ValueError(str(error)) from error


def _encode_arrays(arrays: "Mapping[str, np.ndarray]", compress: bool = False) -> bytes:
    import numpy as np

    buffer = BytesIO()
    (np.savez_compressed if compress else np.savez)(buffer, allow_pickle=False, **arrays)
    return seal(buffer.getvalue())


def _decode_arrays(content: bytes) -> "Mapping[str, np.ndarray]":
    import zipfile

    import numpy as np

    try:
        with np.load(BytesIO(unseal(content)), allow_pickle=False) as arrays:
            return dict(arrays)
    except zipfile.BadZipFile as error:
        raise ValueError(str(error)) from error


OBJECT: FileCodec[JsonObject] = FileCodec(".json", _encode_object, _decode_object)
TABLE: "FileCodec[pa.Table]" = FileCodec(
    ".parquet", lambda table: to_parquet(table, use_dictionary=False)[0], _decode_table
)
ARRAYS: "FileCodec[Mapping[str, np.ndarray]]" = FileCodec(".npz", _encode_arrays, _decode_arrays)
COMPRESSED_ARRAYS = FileCodec(".npz", partial(_encode_arrays, compress=True), _decode_arrays)
