"""The entries of a bundle: its tensors, the locations of their values, and their checksums.

The index is untrusted, so every entry is checked before it is used: its values must lie within their file, their size
must match shape and dtype, and no byte may belong to two tensors. Tensors with unsupported dtypes stay in the index
with TensorFlow's name of the dtype; strings are skipped.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from normgrowth.checkpoints.checkpoint import STORAGE, Checksums, Chunked, Piece, Ranges, Tensor
from normgrowth.checkpoints.formats.safetensors import MOST_AXES, MOST_VALUES
from normgrowth.checkpoints.formats.tensorflow.object_graph import GRAPH, VALUE, names_outside_optimizer
from normgrowth.checkpoints.formats.tensorflow.table import read_table
from normgrowth.checkpoints.formats.tensorflow.wire_format import decoded, fields, varint
from normgrowth.checkpoints.malformed import Malformed
from normgrowth.checkpoints.steps import as_step
from normgrowth.checkpoints.storage.boxes import Box, covering
from normgrowth.checkpoints.storage.crc32c import crc32c, unmasked
from normgrowth.errors import InputError

INDEX = ".index"
INDEX_LIMIT = 100_000_000  # bytes; the index of 100,000 tensors has about ten million
_HEADER = b""  # the key of the header
_SLICE = b"\x00"  # begins the key of a part of a variable
_LITTLE_ENDIAN = 0
_STEP_KEYS = ("global_step", "step", "iterations", "iter")  # the last two are those of Keras optimizers
_SAVE_COUNTER = f"save_counter{VALUE}"  # TensorFlow 2 counts its saves
_CONFIG = ".ATTRIBUTES/OBJECT_CONFIG_JSON"
_STRING = 7
_NO_VALUES = {_STRING: "string", 20: "resource", 21: "variant"}
# TensorFlow's numbers of dtypes.
_DTYPES = {
    1: "F32",
    2: "F64",
    3: "I32",
    4: "U8",
    5: "I16",
    6: "I8",
    9: "I64",
    10: "BOOL",
    14: "BF16",
    17: "U16",
    19: "F16",
    22: "U32",
    23: "U64",
    24: "F8_E5M2",
    25: "F8_E4M3",
    8: "tensorflow.complex64",
    11: "tensorflow.qint8",
    12: "tensorflow.quint8",
    13: "tensorflow.qint32",
    15: "tensorflow.qint16",
    16: "tensorflow.quint16",
    18: "tensorflow.complex128",
    29: "tensorflow.int4",
    30: "tensorflow.uint4",
}


@dataclass(frozen=True)
class BundleFiles:
    """The files of a bundle, named by their suffix after the prefix. read: (file, start, stop) -> bytes."""

    sizes: Mapping[str, int]
    read: Callable[[str, int, int], bytes]
    show: Callable[[str], str]


class Bundle(NamedTuple):
    """The content of an index. Pieces name their files by the suffix after the prefix."""

    tensors: dict[str, Tensor]
    ranges: Ranges
    checksums: Checksums
    step: int | None
    notes: tuple[str, ...]


class _Entry(NamedTuple):
    name: str
    dtype: int
    shape: tuple[int, ...]
    file: str
    offset: int
    size: int
    checksum: int
    slices: Mapping[Box, bytes]  # for a variable that is stored in parts: their boxes and keys


def read_bundle(files: BundleFiles) -> Bundle:
    """Read and check the index of a bundle, and the step that is stored in it."""
    try:
        return _read(files)
    except Malformed as error:
        raise InputError(f"{files.show(error.file or INDEX)}: {error}") from error


def _read(files: BundleFiles) -> Bundle:
    entries = _entries(files)
    _check_apart(entries.values())
    names = {key: entry.name.removesuffix(VALUE) for key, entry in entries.items() if key[:1] != _SLICE}
    if (graph := entries.get(GRAPH.encode())) is not None:
        by_key = {entries[key].name: name for key, name in names.items()}
        better = names_outside_optimizer(_string(files, graph), by_key)
        names = {key: better.get(entries[key].name, name) for key, name in names.items()}
        names.pop(_SAVE_COUNTER.encode(), None)
    found = Bundle({}, Ranges(), {}, None, _notes(entries))
    for key, name in names.items():
        entry = entries[key]
        if entry.dtype in _NO_VALUES:
            continue
        parts, layout = [entry], None
        if entry.slices:
            boxes = covering(entry.name, entry.shape, set(entry.slices))
            parts = [_part(entries, entry, box) for box in boxes]
            layout = Chunked(boxes) if len(boxes) > 1 else None
        dtype = _dtype(entry.dtype)
        found.tensors[name] = Tensor(dtype, entry.shape, layout)
        found.ranges[name] = tuple(Piece(part.file, part.offset, prod(part.shape)) for part in parts)
        found.checksums.update({(part.file, part.offset): part.checksum for part in parts if part.size})
    return found._replace(step=_step(files, found))


def _dtype(number: int) -> str:
    return _DTYPES.get(number, f"tensorflow.dtype{number}")


def _notes(entries: Mapping[bytes, _Entry]) -> tuple[str, ...]:
    left_out = [
        f"{entry.name} ({_NO_VALUES[entry.dtype]})"
        for entry in entries.values()
        if entry.dtype in _NO_VALUES and entry.name != GRAPH and not entry.name.endswith(_CONFIG)
    ]
    more = f" and {len(left_out) - 3} more" if len(left_out) > 3 else ""
    return (f"skipped variables that are not numeric: {', '.join(left_out[:3])}{more}",) if left_out else ()


def _entries(files: BundleFiles) -> dict[bytes, _Entry]:
    """Every entry by its key, checked."""
    size = files.sizes[INDEX]
    if size > INDEX_LIMIT:
        raise Malformed(f"has {size} bytes; at most {INDEX_LIMIT} are supported")
    shards = None
    entries: dict[bytes, _Entry] = {}
    for key, value in read_table(files.read(INDEX, 0, size)):
        if key == _HEADER:
            shards = _shards(value)
            continue
        if shards is None:
            raise Malformed("has no header")
        name = decoded(key) if key[:1] != _SLICE else ""
        entries[key] = _entry(name, value, shards, files)
    return entries


def _shards(header: bytes) -> int:
    """The number of data files."""
    known = {field.number: field for field in fields(header)}
    if 2 in known and known[2].integer() != _LITTLE_ENDIAN:
        raise Malformed("was written on a big-endian machine, which is not supported")
    shards = known[1].integer() if 1 in known else 0
    if not 0 <= shards < 1 << 31:
        raise Malformed(f"claims to have {shards} data files")
    return shards


def _entry(name: str, value: bytes, shards: int, files: BundleFiles) -> _Entry:
    dtype = shard = offset = size = checksum = 0
    shape: tuple[int, ...] = ()
    slices: list[bytes] = []
    called = repr(name) if name else "a part of a variable"
    for field in fields(value):
        match field.number:
            case 1:
                dtype = field.integer()
            case 2:
                shape = _shape(field.message(), called)
            case 3:
                shard = field.integer()
            case 4:
                offset = field.integer()
            case 5:
                size = field.integer()
            case 6:
                checksum = unmasked(field.integer() & 0xFFFFFFFF)
            case 7:
                slices.append(field.message())
    if not 0 <= shard < shards or offset < 0 or size < 0:
        raise Malformed(
            f"has an invalid location for {called}: byte {offset} of data file {shard} of {shards}"
        )
    width = STORAGE[known].itemsize if (known := _dtype(dtype)) in STORAGE else None
    if not slices and width is not None and prod(shape) * width != size:
        raise Malformed(f"has {size} bytes for {called} of shape {list(shape)} and dtype {known}")
    file = f".data-{shard:05}-of-{shards:05}"
    if not slices:
        if file not in files.sizes:
            raise Malformed(f"its data file {files.show(file).rpartition('/')[2]} is missing")
        if offset + size > files.sizes[file]:
            raise Malformed(
                f"truncated: {called} ends at byte {offset + size}, but the file has {files.sizes[file]}",
                file,
            )
    parts = dict(_slice(one, name, shape) for one in slices)
    return _Entry(name, dtype, shape, file, offset, size, checksum, parts)


def _shape(message: bytes, called: str) -> tuple[int, ...]:
    sizes: list[int] = []
    for field in fields(message):
        if field.number == 2:
            own = {one.number: one for one in fields(field.message())}
            sizes.append(own[1].integer() if 1 in own else 0)
        elif field.number == 3 and field.integer():
            raise Malformed(f"has no shape for {called}")
    if len(sizes) > MOST_AXES:
        raise Malformed(f"has {called} with {len(sizes)} axes; at most {MOST_AXES} are supported")
    if any(size < 0 for size in sizes) or prod(sizes) >= MOST_VALUES:
        raise Malformed(f"has {called} with an invalid shape {sizes[:8]}")
    return tuple(sizes)


def _slice(message: bytes, name: str, shape: tuple[int, ...]) -> tuple[Box, bytes]:
    """The corner and size of a part of a variable, and its key. An axis without a length is not split."""
    extents = [field.message() for field in fields(message) if field.number == 1]
    if len(extents) != len(shape):
        raise Malformed(f"has a part of {name!r} with {len(extents)} axes, not {len(shape)}")
    known = [{field.number: field.integer() for field in fields(extent)} for extent in extents]
    starts = tuple(extent.get(1, 0) for extent in known)
    lengths = [extent.get(2, -1) for extent in known]
    sizes = tuple(n if length == -1 else length for length, n in zip(lengths, shape, strict=True))
    if min((*starts, *sizes), default=0) < 0:
        raise Malformed(f"has a part of {name!r} with a negative start or size")
    return (starts, sizes), _slice_key(name, starts, lengths)


def _part(entries: Mapping[bytes, _Entry], whole: _Entry, box: Box) -> _Entry:
    """The entry of a part of a variable, which has its own key."""
    part = entries.get(whole.slices[box])
    if part is None:
        raise Malformed(f"has no entry for the part of {whole.name!r} at {list(box[0])}")
    if part.dtype != whole.dtype or part.shape != box[1] or part.slices:
        raise Malformed(f"has a part of {whole.name!r} with another shape or dtype, at {list(box[0])}")
    return part


def _slice_key(name: str, starts: Sequence[int], lengths: Sequence[int]) -> bytes:
    """TensorFlow's key of a part: zero, the name, the number of axes, then start and length of each axis.

    The encoding preserves order: a name has its bytes 0 and 255 escaped and ends with 0, 1; a signed number has as
    many leading ones as bytes.
    """
    escaped = name.encode().replace(b"\xff", b"\xff\x00").replace(b"\x00", b"\x00\xff")
    key = _SLICE + escaped + b"\x00\x01" + (bytes((1, len(starts))) if starts else b"\x00")
    return key + b"".join(_ordered(start) + _ordered(n) for start, n in zip(starts, lengths, strict=True))


def _ordered(value: int) -> bytes:
    size = (~value if value < 0 else value).bit_length() // 7 + 1
    ones = (1 << size) - 1 << 7 * size
    return (value % (1 << 8 * size) ^ ones).to_bytes(size, "big")


def _check_apart(entries: Iterable[_Entry]) -> None:
    """Raise Malformed if tensors share bytes, with which a small file could describe any number of them."""
    spans = sorted((entry.file, entry.offset, entry.size, entry.name) for entry in entries if entry.size)
    for (file, start, size, name), (other_file, other_start, _, other) in itertools.pairwise(spans):
        if file == other_file and other_start < start + size:
            raise Malformed(f"has overlapping bytes for {name!r} and {other!r}", file)


def _string(files: BundleFiles, entry: _Entry) -> bytes:
    """The single string of an entry, stored as its length, a checksum of the length, and its bytes.

    The checksum of the entry is computed with the length as four bytes.
    """
    if entry.dtype != _STRING or entry.shape or entry.slices:
        raise Malformed(f"has {entry.name!r}, which is not a single string")
    raw = files.read(entry.file, entry.offset, entry.offset + entry.size)
    length, at = varint(raw, 0)
    if at + 4 + length != len(raw) or length >= 1 << 32:
        raise Malformed(f"has {entry.name!r} of {len(raw)} bytes, which should be {at + 4 + length}")
    if crc32c(length.to_bytes(4, "little") + raw[at:]) != entry.checksum:
        raise Malformed(f"{entry.name!r} is damaged: it does not match its checksum", entry.file)
    return raw[at + 4 :]


def _step(files: BundleFiles, bundle: Bundle) -> int | None:
    """The stored step, from `global_step` or else a counter such as `optimizer/iter`; None if there is none."""

    def last(name: str) -> str:
        return name.rpartition("/")[2].lstrip("_")

    counters = [
        name
        for name, tensor in bundle.tensors.items()
        if last(name) in _STEP_KEYS and tensor.dtype in ("I64", "I32") and tensor.numel == 1
    ]
    if not counters:
        return None
    name = min(counters, key=lambda name: (_STEP_KEYS.index(last(name)), name.count("/"), name))
    piece, bits = bundle.ranges[name][0], STORAGE[bundle.tensors[name].dtype]
    raw = files.read(piece.file, piece.offset, piece.offset + bits.itemsize)
    if crc32c(raw) != bundle.checksums[piece.file, piece.offset]:
        raise Malformed(f"tensor {name!r} is damaged: it does not match its checksum", piece.file)
    return as_step(int(np.frombuffer(raw, bits)[0]))
