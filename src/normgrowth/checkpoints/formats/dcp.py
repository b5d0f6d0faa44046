"""torch.distributed.checkpoint folders, read without a process group and without torch.

Such a folder has `.metadata`, a pickle with the location of each box of each tensor, and data files of consecutive
torch archives, one for each box. torch's reader unpickles `.metadata`, which can execute arbitrary code. This reader
uses `pickles.unpickle`, which executes nothing and allows only the names that checkpoints use. The result is still
untrusted, so every field is checked, in time linear in the size of `.metadata`. No byte of a data file may belong to
two items, so tensors cannot be larger than the files on disk.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from normgrowth.checkpoints.checkpoint import (
    STORAGE,
    Chunked,
    MappedCheckpoint,
    Piece,
    Ranges,
    Strided,
    Tensor,
)
from normgrowth.checkpoints.formats.pickled.pickle_values import PATHS, Global, RecordedCall
from normgrowth.checkpoints.formats.pickled.pickles import unpickle
from normgrowth.checkpoints.formats.safetensors import MOST_AXES, MOST_VALUES, STEP_KEYS
from normgrowth.checkpoints.formats.torch_archive import Archive
from normgrowth.checkpoints.formats.torch_tensors import DTYPES, TENSOR_NAMES, Unreadable, View, view_of
from normgrowth.checkpoints.malformed import Malformed, naming
from normgrowth.checkpoints.safe_paths import stays_below
from normgrowth.checkpoints.steps import as_step
from normgrowth.checkpoints.storage.boxes import Box, Corner, covering
from normgrowth.checkpoints.storage.mapped_file import FileState, opened_map, unreadable
from normgrowth.errors import InputError
from normgrowth.serialization.regular_files import read_regular

_METADATA = "torch.distributed.checkpoint.metadata"
_SHARDED = "torch.distributed._shard.sharded_tensor.metadata"  # until torch 2.2
METADATA_NAMES = frozenset(
    {
        *DTYPES,
        # Unsupported dtypes; they keep torch's name in the index.
        *("torch.complex32", "torch.complex64", "torch.complex128", "torch.float4_e2m1fn_x2"),
        *("torch.float8_e4m3fnuz", "torch.float8_e5m2fnuz", "torch.float8_e8m0fnu"),
        *("torch.Size", "torch.serialization._get_layout", "collections.OrderedDict"),
        *(f"{_METADATA}.{name}" for name in ("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties")),
        *(f"{_METADATA}.{name}StorageMetadata" for name in ("Tensor", "Bytes", "Chunk")),
        *(f"{_METADATA}._MEM_FORMAT_ENCODING", f"{_SHARDED}.MEM_FORMAT_ENCODING"),
        f"{_SHARDED}.TensorProperties",
        "torch.distributed.checkpoint.filesystem._StorageInfo",
        "olmo_core.distributed.checkpoint.filesystem._StorageInfo",  # OLMo's writer, with the same content
        *PATHS,  # the path that the checkpoint was saved to, which is not used
    }
)
STEP_LIMIT = 65536  # bytes; a pickled number takes less than a thousand
METADATA_LIMIT = 1 << 30  # bytes
PICKLE_LIMIT = 1 << 20  # bytes that describe one tensor; torch writes about 200


@dataclass(frozen=True, slots=True)
class _Place:
    """The location of an item."""

    relative_path: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class _Item:
    """An item to read: a box of a tensor or, if box is None, a number that torch.save wrote."""

    place: _Place
    name: str
    dtype: str = ""
    box: Box | None = None


@dataclass(frozen=True, slots=True)
class _Spot:
    """The location of a box's values, and their strides if they are not row-major."""

    piece: Piece
    strides: tuple[int, ...] | None


def is_dcp_folder(folder: Path) -> bool:
    """Whether the folder has a file `.metadata` that starts like a binary pickle."""
    path = folder / ".metadata"
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(2)
    return len(start) == 2 and start[0] == 0x80 and 2 <= start[1] <= 5


def read_distributed(folder: Path) -> MappedCheckpoint:
    path = folder / ".metadata"
    try:
        size = path.stat().st_size
        content = read_regular(path, METADATA_LIMIT) if size <= METADATA_LIMIT else b""
    except OSError as error:
        raise unreadable(path, error) from error
    with naming(path):
        if size > METADATA_LIMIT:
            raise Malformed(f"has more than {METADATA_LIMIT} bytes, which is too large for metadata")
        root = unpickle(content, str(path), METADATA_NAMES)
        entries, places = _entries(root, len(content)), _places(root)

    by_file: dict[str, list[_Item]] = defaultdict(list)
    for name, (tensor, boxes) in entries.items():
        for box in boxes:
            place = places.get((name, box[0]))
            if place is None:
                raise InputError(
                    f"{path}: has no location for the chunk of tensor {name!r} at {list(box[0])}"
                )
            by_file[place.relative_path].append(_Item(place, name, tensor.dtype, box))
    steps = {name for name, corner in places if corner is None and name not in entries}
    for name in filter(_is_step, steps):
        if (place := places[name, None]).length <= STEP_LIMIT:
            by_file[place.relative_path].append(_Item(place, name))
    spots: dict[tuple[str, Box], _Spot] = {}
    numbers: dict[str, int] = {}
    states: dict[str, FileState] = {}
    files = {relative: _file_below(folder, relative, path) for relative in by_file}
    _check_apart(files, by_file)
    for relative, items in by_file.items():
        with opened_map(files[relative]) as mapped:
            states[relative] = mapped.state
            _look_at(files[relative], mapped.memory, items, spots, numbers)

    checkpoint = MappedCheckpoint(str(folder), {}, Ranges(), folder, states=states)
    for name, (tensor, boxes) in entries.items():
        own = [spots[name, box] for box in boxes]
        checkpoint.tensors[name] = Tensor(tensor.dtype, tensor.shape, _layout(folder, name, boxes, own))
        checkpoint.ranges[name] = tuple(spot.piece for spot in own)
    checkpoint.step = _step(checkpoint, numbers)
    return checkpoint


def _entries(root: Any, size: int) -> dict[str, tuple[Tensor, tuple[Box, ...]]]:
    """Each tensor with its boxes; no boxes if its dtype is not supported. size: of the pickle in bytes."""
    count = 0
    entries: dict[str, tuple[Tensor, tuple[Box, ...]]] = {}
    for name, entry in _field(root, "Metadata", "state_dict_metadata", dict).items():
        if type(name) is not str or not name.isprintable() or type(entry) is not RecordedCall:
            raise Malformed("has an entry without a valid name or description")
        if entry.name.endswith(".BytesStorageMetadata") or "_extra_state" in _components(name):
            continue
        properties = _field(entry, "TensorStorageMetadata", "properties", RecordedCall).state
        if type(properties) is not tuple or not properties or type(properties[0]) is not Global:
            raise Malformed(f"has no dtype for tensor {name!r}")
        dtype = DTYPES.get(properties[0], str(properties[0]))
        shape = _sizes(_field(entry, "TensorStorageMetadata", "size", tuple))
        if prod(shape) >= MOST_VALUES:
            raise Malformed(f"has a tensor {name!r} of {prod(shape)} values")
        chunks = _field(entry, "TensorStorageMetadata", "chunks", list)
        count += len(chunks)
        if count > size:  # a pickle can refer to one long list many times
            raise Malformed(f"has more than {size} chunks, too many for {size} bytes")
        fields = [_state(chunk, "ChunkStorageMetadata") for chunk in chunks]
        boxes = {(_sizes(field.get("offsets")), _sizes(field.get("sizes"))) for field in fields}
        entries[name] = Tensor(dtype, shape), covering(name, shape, boxes) if dtype in STORAGE else ()
    return entries


def _places(root: Any) -> dict[tuple[str, Corner | None], _Place]:
    """The location of each item, by its name and corner; the corner is None if the item is not a tensor."""
    places: dict[tuple[str, Corner | None], _Place] = {}
    for index, info in _field(root, "Metadata", "storage_data", dict).items():
        name = _field(index, "MetadataIndex", "fqn", str)
        corner = index.state.get("offset")
        if _state(info, "_StorageInfo").get("transform_descriptors"):
            raise Malformed(f"has {name!r} compressed or encrypted, which is not supported")
        relative, offset, length = (
            _field(info, "_StorageInfo", key, kind)
            for key, kind in (("relative_path", str), ("offset", int), ("length", int))
        )
        if offset < 0 or length < 0:
            raise Malformed(f"has an invalid location for {name!r}: byte {offset}, {length} bytes")
        places[name, None if corner is None else _sizes(corner)] = _Place(relative, offset, length)
    return places


def _state(thing: Any, kind: str) -> dict[str, Any]:
    if (
        type(thing) is not RecordedCall
        or not thing.name.endswith(f".{kind}")
        or type(thing.state) is not dict
    ):
        raise Malformed(f"has no valid {kind}")
    return thing.state


def _field(thing: Any, kind: str, key: str, wanted: type) -> Any:
    value = _state(thing, kind).get(key)
    if type(value) is not wanted:
        raise Malformed(f"has a {kind} without a valid {key}")
    return value


def _sizes(value: Any) -> tuple[int, ...]:
    if type(value) is not tuple or not all(type(n) is int and 0 <= n < 2**62 for n in value):
        raise Malformed("has an invalid shape or corner")
    if len(value) > MOST_AXES:
        raise Malformed(f"has a tensor with {len(value)} axes; at most {MOST_AXES} are supported")
    return value


def _check_apart(files: Mapping[str, Path], by_file: Mapping[str, Sequence[_Item]]) -> None:
    """Raise InputError if items share bytes, with which a small file could describe any number of tensors."""
    found: dict[tuple[int, int], list[_Item]] = defaultdict(list)  # by inode: a file may have several names
    for relative, items in by_file.items():
        try:
            stat = files[relative].stat()
        except OSError as error:
            raise unreadable(files[relative], error) from error
        found[stat.st_dev, stat.st_ino] += items
    for items in found.values():
        items.sort(key=lambda item: item.place.offset)
        for one, other in itertools.pairwise(items):
            if other.place.offset < one.place.offset + one.place.length:
                path = files[other.place.relative_path]
                raise InputError(
                    f"{path}: {one.name!r} and {other.name!r} overlap in this file; is it damaged?"
                )


def _file_below(folder: Path, relative: str, metadata: Path) -> Path:
    if not relative or not stays_below(relative):
        raise InputError(f"{metadata}: refers to {relative!r}, a path outside its folder; refused")
    path = folder / relative
    if not path.is_file():
        raise InputError(f"{metadata}: the file {relative!r} is missing")
    real, root = path.resolve(), folder.resolve()
    # The hub's cache stores files as links into its folder `blobs`, next to `snapshots`.
    blobs = [parent.parent / "blobs" for parent in root.parents if parent.name == "snapshots"]
    if not real.is_relative_to(root) and real.parent not in blobs:
        raise InputError(f"{path}: is a link to a file outside its folder; refused")
    return path


def _look_at(
    path: Path,
    data: Any,
    items: list[_Item],
    spots: dict[tuple[str, Box], _Spot],
    numbers: dict[str, int],
) -> None:
    """Locate the values of the items in one file, in the order of the file."""
    size = len(data)
    for item in items:
        end = item.place.offset + item.place.length
        if end > size or not size:
            raise InputError(f"{path}: truncated: {item.name!r} ends at byte {end}, but the file has {size}")
    known: dict[bytes, View] = {}  # tensors of equal shape have equal pickles
    for item in sorted(items, key=lambda item: item.place.offset):
        try:
            archive = Archive(data, item.place.offset, item.place.length)
            if archive.span("data.pkl")[1] > PICKLE_LIMIT:
                raise Malformed("has a description that is too long")
            pickled = archive.read("data.pkl")
            if item.box is None:
                _note_number(pickled, item.name, numbers)
                continue
            if pickled not in known:
                where = f"{path}: tensor {item.name!r}"
                known[pickled] = _stored(unpickle(pickled, where, TENSOR_NAMES, storages=True))
            spots[item.name, item.box] = _spot(archive, item, item.box, known[pickled])
        except Malformed as error:
            if item.box is not None:
                raise InputError(f"{path}: tensor {item.name!r} {error}") from error


def _stored(value: Any) -> View:
    """The tensor in an unpickled `data.pkl`. Raises Malformed if its values are not contiguous."""
    try:
        view = view_of(value)
    except Unreadable as error:
        raise Malformed(f"is {error}, not a plain tensor") from None
    if view.negated:
        raise Malformed("is a view that conjugates or negates")
    if (view.offset + view.numel) * STORAGE[view.dtype].itemsize > view.storage_bytes:
        raise Malformed("is larger than its storage")
    if view.order == "scattered":
        raise Malformed(f"has strides {list(view.strides)}, with gaps or repeats")
    return view


def _spot(archive: Archive, item: _Item, box: Box, stored: View) -> _Spot:
    if (stored.dtype, stored.shape) != (item.dtype, box[1]):
        wanted = f"{item.dtype} of shape {list(box[1])}"
        raise Malformed(f"should be {wanted}, got {stored.dtype} of shape {list(stored.shape)}")
    start, size = archive.span(f"data/{stored.key}")
    if size != stored.storage_bytes:
        raise Malformed(f"should have {stored.storage_bytes} bytes, got {size}")
    start += stored.offset * STORAGE[stored.dtype].itemsize
    strides = stored.strides if stored.order == "permuted" else None
    return _Spot(Piece(item.place.relative_path, start, prod(box[1])), strides)


def _layout(folder: Path, name: str, boxes: tuple[Box, ...], spots: list[_Spot]) -> Chunked | Strided | None:
    if len(spots) > 1:
        for spot in spots:
            if spot.strides is not None:
                reason = "has chunks that are not row-major; save it as a contiguous tensor"
                raise InputError(f"{folder / spot.piece.file}: tensor {name!r} {reason}")
        return Chunked(boxes)
    return Strided(spots[0].strides) if spots and spots[0].strides is not None else None


def _components(name: str) -> list[str]:
    return re.split(r"[./]", name)


def _is_step(name: str) -> bool:
    """Whether it is the step counter of the run, and not one of a parameter in the optimizer."""
    *path, last = _components(name)
    return last in STEP_KEYS and not any(part.startswith("opt") for part in path) and "state" not in path[:-1]


def _note_number(pickled: bytes, name: str, numbers: dict[str, int]) -> None:
    try:
        value = unpickle(pickled, name, frozenset())
    except InputError:
        return  # not a plain number: the step is taken from the folder name
    if (step := as_step(value)) is not None:
        numbers[name] = step


def _step(checkpoint: MappedCheckpoint, numbers: dict[str, int]) -> int | None:
    for name, tensor in checkpoint.tensors.items():
        if tensor.dtype in ("I64", "I32") and tensor.numel == 1 and _is_step(name):
            step = as_step(int(checkpoint.pieces(name)[0][0]))
            checkpoint.check_whole()
            if step is not None:
                numbers[name] = step
    checkpoint.close()  # files are mapped again when they are used

    def nearness(name: str) -> tuple[int, int, str]:
        *path, last = _components(name)
        return len(path), STEP_KEYS.index(last), name

    return numbers[min(numbers, key=nearness)] if numbers else None
