"""torch.distributed.checkpoint folders, read without a process group and without torch.

Such a folder has `.metadata`, a pickle that says which box of which tensor lies where, and data
files that are torch archives end to end, one for each box. torch's own reader unpickles
`.metadata`, which runs whatever that names; ours is `inert.unpickle`, with a list of the few names
that checkpoints use. What it returns is still untrusted, so every field is checked here.
"""

import mmap
import re
from collections import defaultdict
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from normgrowth.errors import InputError
from normgrowth.weights.sources.checkpoint import (
    STORAGE,
    Chunked,
    MappedCheckpoint,
    Piece,
    Ranges,
    Strided,
    Tensor,
)
from normgrowth.weights.sources.inert import (
    DTYPES,
    TENSOR_NAMES,
    Archive,
    Global,
    Made,
    Malformed,
    StoredTensor,
    stored_tensor,
    unpickle,
)
from normgrowth.weights.sources.safetensors import STEP_KEYS

_METADATA = "torch.distributed.checkpoint.metadata"
_SHARDED = "torch.distributed._shard.sharded_tensor.metadata"  # until torch 2.2
METADATA_NAMES = frozenset(
    {
        *DTYPES,
        # Dtypes whose values we cannot read; they keep torch's name in the index.
        *("torch.complex32", "torch.complex64", "torch.complex128", "torch.float4_e2m1fn_x2"),
        *("torch.float8_e4m3fnuz", "torch.float8_e5m2fnuz", "torch.float8_e8m0fnu"),
        *("torch.Size", "torch.serialization._get_layout", "collections.OrderedDict"),
        *(f"{_METADATA}.{name}" for name in ("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties")),
        *(f"{_METADATA}.{name}StorageMetadata" for name in ("Tensor", "Bytes", "Chunk")),
        *(
            f"{_METADATA}._MEM_FORMAT_ENCODING",
            f"{_SHARDED}.MEM_FORMAT_ENCODING",
            f"{_SHARDED}.TensorProperties",
        ),
        "torch.distributed.checkpoint.filesystem._StorageInfo",
        "olmo_core.distributed.checkpoint.filesystem._StorageInfo",  # OLMo's own writer, same content
        # The path that it was saved to, which is recorded and which nobody needs.
        *(
            f"{module}.{name}Path"
            for module in ("pathlib", "pathlib._local")
            for name in ("Posix", "Windows")
        ),
    }
)
STEP_LIMIT = 65536  # bytes; a number takes less than a thousand

Corner = tuple[int, ...]
Box = tuple[Corner, tuple[int, ...]]  # corner and size


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an item is stored."""

    relative_path: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class _Item:
    """An item to look at: a box of a tensor, or (without one) a number that torch.save wrote."""

    place: _Place
    name: str
    dtype: str = ""
    box: Box | None = None


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where the values of a box are, and their strides where they are not row-major."""

    piece: Piece
    strides: tuple[int, ...] | None


def is_distributed(folder: Path) -> bool:
    """By content: a file `.metadata` that starts as a binary pickle does."""
    path = folder / ".metadata"
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(2)
    return len(start) == 2 and start[0] == 0x80 and 2 <= start[1] <= 5


def read_distributed(folder: Path) -> MappedCheckpoint:
    path = folder / ".metadata"
    try:
        root = unpickle(path.read_bytes(), str(path), METADATA_NAMES)
        entries, places = _entries(root), _places(root)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except Malformed as error:
        raise InputError(f"{path}: {error}") from error

    by_file: dict[str, list[_Item]] = defaultdict(list)
    for name, (tensor, boxes) in entries.items():
        for box in boxes:
            place = places.get((name, box[0]))
            if place is None:
                raise InputError(f"{path}: does not say where tensor {name!r} is stored, at {list(box[0])}")
            by_file[place.relative_path].append(_Item(place, name, tensor.dtype, box))
    for (name, corner), place in places.items():
        if corner is None and _is_step(name) and place.length <= STEP_LIMIT:
            by_file[place.relative_path].append(_Item(place, name))
    spots: dict[tuple[str, Box], _Spot] = {}
    numbers: dict[str, int] = {}
    for relative, items in by_file.items():
        try:
            _look_at(_file_below(folder, relative, path), items, spots, numbers)
        except OSError as error:
            raise InputError(f"{folder / relative}: cannot be read: {error.strerror}") from error

    checkpoint = MappedCheckpoint(str(folder), folder, {}, Ranges())
    for name, (tensor, boxes) in entries.items():
        own = [spots[name, box] for box in boxes]
        checkpoint.tensors[name] = Tensor(tensor.dtype, tensor.shape, _layout(folder, name, boxes, own))
        checkpoint.ranges[name] = tuple(spot.piece for spot in own)
    checkpoint.step = _step(checkpoint, numbers)
    return checkpoint


def _entries(root: Any) -> dict[str, tuple[Tensor, tuple[Box, ...]]]:
    """Each tensor, with the boxes that make it up; none where its dtype cannot be read."""
    entries: dict[str, tuple[Tensor, tuple[Box, ...]]] = {}
    for name, entry in _field(root, "Metadata", "state_dict_metadata", dict).items():
        if type(name) is not str or not name.isprintable() or type(entry) is not Made:
            raise Malformed("has an entry without a proper name or description")
        if entry.name.endswith(".BytesStorageMetadata") or "_extra_state" in _components(name):
            continue
        properties = _field(entry, "TensorStorageMetadata", "properties", Made).state
        if type(properties) is not tuple or not properties or type(properties[0]) is not Global:
            raise Malformed(f"has no dtype for tensor {name!r}")
        dtype = DTYPES.get(properties[0], str(properties[0]))
        shape = _sizes(_field(entry, "TensorStorageMetadata", "size", tuple))
        chunks = _field(entry, "TensorStorageMetadata", "chunks", list)
        fields = [_state(chunk, "ChunkStorageMetadata") for chunk in chunks]
        boxes = {(_sizes(field.get("offsets")), _sizes(field.get("sizes"))) for field in fields}
        entries[name] = Tensor(dtype, shape), _covering(name, shape, boxes) if dtype in STORAGE else ()
    return entries


def _places(root: Any) -> dict[tuple[str, Corner | None], _Place]:
    """Where each item is stored, by its name and its corner (None: no tensor)."""
    places: dict[tuple[str, Corner | None], _Place] = {}
    for index, info in _field(root, "Metadata", "storage_data", dict).items():
        name = _field(index, "MetadataIndex", "fqn", str)
        corner = index.state.get("offset")
        if _state(info, "_StorageInfo").get("transform_descriptors"):
            raise Malformed(
                f"says that {name!r} was compressed or encrypted when saved; only plain items are read"
            )
        relative, offset, length = (
            _field(info, "_StorageInfo", key, kind)
            for key, kind in (("relative_path", str), ("offset", int), ("length", int))
        )
        if offset < 0 or length < 0:
            raise Malformed(f"places {name!r} at byte {offset}, with {length} bytes")
        places[name, None if corner is None else _sizes(corner)] = _Place(relative, offset, length)
    return places


def _state(thing: Any, kind: str) -> dict[str, Any]:
    if type(thing) is not Made or not thing.name.endswith(f".{kind}") or type(thing.state) is not dict:
        raise Malformed(f"has no valid {kind} where a checkpoint has one")
    return thing.state


def _field(thing: Any, kind: str, key: str, wanted: type) -> Any:
    value = _state(thing, kind).get(key)
    if type(value) is not wanted:
        raise Malformed(f"has a {kind} without a valid {key}")
    return value


def _sizes(value: Any) -> tuple[int, ...]:
    if type(value) is not tuple or not all(type(n) is int and 0 <= n < 2**62 for n in value):
        raise Malformed("has a shape or a corner that is no tuple of sizes")
    return value


def _covering(name: str, shape: tuple[int, ...], boxes: set[Box]) -> tuple[Box, ...]:
    """The boxes in order of their corners, if they make up the tensor: all of it, and nothing twice."""
    for corner, size in boxes:
        inside = len(corner) == len(size) == len(shape) and all(
            c + s <= n for c, s, n in zip(corner, size, shape, strict=True)
        )
        if not inside:
            chunk = f"a chunk of {list(size)} at {list(corner)}"
            raise Malformed(f"has {chunk} for {name!r}, which does not fit into its shape {list(shape)}")
    # Where there are more ranks than rows, some have empty chunks.
    ordered = sorted(box for box in boxes if prod(box[1])) if prod(shape) else sorted(boxes)[:1]
    if not ordered or sum(prod(size) for _, size in ordered) != prod(shape):
        raise Malformed(
            f"has {len(ordered)} chunks for {name!r} of shape {list(shape)}, which do not make it up"
        )
    low = np.array([corner for corner, _ in ordered])
    high = low + np.array([size for _, size in ordered])
    for i in range(len(ordered) - 1):
        near = slice(i + 1, np.searchsorted(low[:, 0], high[i, 0]))  # the others begin below this box
        if np.all((low[near] < high[i]) & (low[i] < high[near]), axis=1).any():
            raise Malformed(f"has chunks for {name!r} that overlap")
    return tuple(ordered)


def _file_below(folder: Path, relative: str, metadata: Path) -> Path:
    parts = PurePosixPath(relative.replace("\\", "/"))
    if not relative or "\0" in relative or parts.is_absolute() or ".." in parts.parts or ":" in relative:
        raise InputError(f"{metadata}: names {relative!r}, a path outside its folder; refused")
    path = folder / relative
    if not path.is_file():
        raise InputError(f"{metadata}: the file {relative!r} is missing")
    real, root = path.resolve(), folder.resolve()
    # The hub's cache keeps files as links into its own `blobs`, beside `snapshots`.
    blobs = [parent.parent / "blobs" for parent in root.parents if parent.name == "snapshots"]
    if not real.is_relative_to(root) and real.parent not in blobs:
        raise InputError(f"{path}: is a link to a file outside its folder; refused")
    return path


def _look_at(
    path: Path, items: list[_Item], spots: dict[tuple[str, Box], _Spot], numbers: dict[str, int]
) -> None:
    """Find the values of one file's items, in the order in which they lie there."""
    size = path.stat().st_size
    for item in items:
        end = item.place.offset + item.place.length
        if end > size or not size:
            raise InputError(f"{path}: truncated: {item.name!r} ends at byte {end}, but the file has {size}")
    known: dict[bytes, StoredTensor] = {}  # tensors of one shape have one pickle
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for item in sorted(items, key=lambda item: item.place.offset):
            try:
                archive = Archive(data, item.place.offset, item.place.length)
                pickled = archive.read("data.pkl")
                if item.box is None:
                    _note_number(pickled, item.name, numbers)
                    continue
                if pickled not in known:
                    where = f"{path}: tensor {item.name!r}"
                    known[pickled] = stored_tensor(unpickle(pickled, where, TENSOR_NAMES, storages=True))
                spots[item.name, item.box] = _spot(archive, item, item.box, known[pickled])
            except Malformed as error:
                if item.box is not None:
                    raise InputError(f"{path}: tensor {item.name!r} {error}") from error


def _spot(archive: Archive, item: _Item, box: Box, stored: StoredTensor) -> _Spot:
    if (stored.dtype, stored.shape) != (item.dtype, box[1]):
        wanted = f"{item.dtype} of shape {list(box[1])}"
        raise Malformed(f"should be {wanted}, but is {stored.dtype} of shape {list(stored.shape)}")
    start, size = archive.span(stored.entry)
    if size != stored.entry_bytes:
        raise Malformed(f"should have {stored.entry_bytes} bytes, but has {size}")
    start += stored.offset * STORAGE[stored.dtype].itemsize
    return _Spot(Piece(item.place.relative_path, start, prod(box[1])), stored.strides)


def _layout(folder: Path, name: str, boxes: tuple[Box, ...], spots: list[_Spot]) -> Chunked | Strided | None:
    if len(spots) > 1:
        for spot in spots:
            if spot.strides is not None:
                reason = "has chunks that are not row-major; save it contiguous"
                raise InputError(f"{folder / spot.piece.file}: tensor {name!r} {reason}")
        return Chunked(boxes)
    return Strided(spots[0].strides) if spots and spots[0].strides is not None else None


def _components(name: str) -> list[str]:
    return re.split(r"[./]", name)


def _is_step(name: str) -> bool:
    """Whether it is the run's own counter, and not that of a parameter in the optimiser."""
    *path, last = _components(name)
    return last in STEP_KEYS and not any(part.startswith("opt") for part in path) and "state" not in path[:-1]


def _note_number(pickled: bytes, name: str, numbers: dict[str, int]) -> None:
    try:
        value = unpickle(pickled, name, frozenset())
    except InputError:
        return  # a step that is no plain number is none; the folder's name will have to do
    if type(value) is int and value >= 0:
        numbers[name] = value


def _step(checkpoint: MappedCheckpoint, numbers: dict[str, int]) -> int | None:
    for name, tensor in checkpoint.tensors.items():
        if tensor.dtype in ("I64", "I32") and tensor.numel == 1 and _is_step(name):
            numbers[name] = int(checkpoint.pieces(name)[0][0])
    checkpoint.close()  # the index is to be small; files are mapped again when they are used

    def nearness(name: str) -> tuple[int, int, str]:
        *path, last = _components(name)
        return len(path), STEP_KEYS.index(last), name

    return numbers[min(numbers, key=nearness)] if numbers else None
