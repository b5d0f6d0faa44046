"""safetensors: one file, or shards with an index.

This reader returns byte ranges, while the safetensors library copies each tensor into an array and has no bfloat16 for
numpy. The header is untrusted input, so every field is checked before any offset is used.
"""

import itertools
import json
import re
from collections.abc import Callable
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from normgrowth.checkpoints.checkpoint import WIDTH, MappedCheckpoint, Piece, Ranges, Tensor
from normgrowth.checkpoints.malformed import Malformed
from normgrowth.checkpoints.safe_paths import stays_below
from normgrowth.checkpoints.storage.mapped_file import FileBytes, FileState
from normgrowth.engine import gc_paused
from normgrowth.errors import InputError
from normgrowth.serialization.regular_files import read_regular
from normgrowth.text import json_problem

HEADER_LIMIT = 100_000_000  # the format's own limit, in bytes
MOST_AXES = 64  # axes of a tensor, as in numpy
MOST_VALUES = 1 << 60
_DTYPE = re.compile(r"[A-Za-z0-9_]{1,40}")  # unsupported dtypes (C64, F4) are kept by name
STEP_KEYS = ("step", "global_step")


def is_safetensors(path: Path) -> bool:
    """Whether the content begins with a plausible header length and the opening brace of JSON."""
    with path.open("rb") as file:
        start = file.read(9)
    return len(start) == 9 and start[8:] == b"{" and int.from_bytes(start[:8], "little") <= HEADER_LIMIT


def read_safetensors(path: Path) -> MappedCheckpoint:
    header, state = _read_header(path)
    found = header.tensors, header.ranges
    return MappedCheckpoint(str(path), *found, path, step=header.step, states={"": state})


def read_sharded(index: Path) -> MappedCheckpoint:
    """Read an index file (``model.safetensors.index.json``) and the shards that it lists."""
    tensors: dict[str, Tensor] = {}
    ranges = Ranges()
    headers: dict[str, Header] = {}
    states: dict[str, FileState] = {}
    for name, shard in read_index(index).items():
        if shard not in headers:
            headers[shard], states[shard] = _read_header(index.parent / shard)
        header = headers[shard]
        if name not in header.tensors:
            raise InputError(f"{index}: lists tensor {name} in {shard}, which does not have it")
        tensors[name] = header.tensors[name]
        ranges[name] = tuple(piece._replace(file=shard) for piece in header.ranges[name])
    step = next((header.step for header in headers.values() if header.step is not None), None)
    return MappedCheckpoint(str(index.parent), tensors, ranges, index.parent, step=step, states=states)


def read_index(index: Path) -> dict[str, str]:
    """The map from tensor to shard. Raises InputError unless each shard is a file below the index's folder."""
    try:
        content = read_regular(index)
    except OSError as error:
        raise InputError(f"{index}: cannot be read: {error.strerror}") from error
    weight_map = parse_index(content, str(index))
    for shard in set(weight_map.values()):
        try:
            there = (index.parent / shard).is_file()
        except (OSError, ValueError):  # an invalid file name
            there = False
        if not there:
            raise InputError(f"{index}: the shard {shard[:200]!r} is missing")
    return weight_map


def parse_index(content: bytes, where: str) -> dict[str, str]:
    """The map from tensor to shard. Raises InputError unless each shard is a path below the index's folder."""
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: is not valid JSON: {json_problem(error)}") from error
    weight_map = parsed.get("weight_map") if isinstance(parsed, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{where}: has no weight_map from tensors to files")
    for shard in set(map(_as_text, weight_map.values())):
        if not shard or not stays_below(shard):
            raise InputError(f"{where}: refers to {shard[:200]!r}, a path outside its folder; refused")
    return weight_map


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _stored_step(metadata: dict[str, Any]) -> int | None:
    for key in STEP_KEYS:
        text = metadata.get(key)
        if isinstance(text, str) and text.isdecimal() and text.isascii() and len(text) < 19:
            return int(text)
    return None


class Header(NamedTuple):
    """The content of a file's header."""

    tensors: dict[str, Tensor]
    ranges: Ranges
    step: int | None


def _read_header(path: Path) -> tuple[Header, FileState]:
    with FileBytes(path) as file:
        return read_header(lambda start, stop: file[start:stop], len(file), str(path)), file.state


def read_header(read: Callable[[int, int], bytes], size: int, where: str) -> Header:
    """The header of a file of this size. It calls `read` for the first eight bytes, then for the header."""
    length = int.from_bytes(read(0, 8), "little") if size >= 8 else 0
    if size < 8 or length > size - 8:
        raise InputError(f"{where}: truncated: its header has {length} bytes, but the file has {size}")
    if length > HEADER_LIMIT:
        raise InputError(f"{where}: its header claims {length} bytes, more than the format allows")
    raw = read(8, 8 + length)
    try:
        with gc_paused():
            return _parse(raw, size - 8 - length)
    except Malformed as error:
        raise InputError(f"{where}: {error}") from error


@lru_cache(maxsize=2)  # the checkpoints of a series usually have identical headers
def _parse(raw: bytes, room: int) -> Header:
    """Parse and check a header. room: the number of bytes after it."""
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"its header is not valid JSON: {json_problem(error)}") from error
    if not isinstance(header, dict):
        raise Malformed("its header is not a JSON object")
    metadata = header.pop("__metadata__", None)
    base = 8 + len(raw)
    tensors: dict[str, Tensor] = {}
    ranges = Ranges()
    spans: list[tuple[int, int, str]] = []
    _check_text("".join(header))
    for name, entry in header.items():
        dtype, shape, (start, stop) = _fields(name, entry)
        numel = prod(shape)
        if not 0 <= start <= stop <= room:
            where = f"at bytes {start} to {stop}, but the file has {room} bytes of data"
            raise Malformed(f"tensor {name!r} is {where}; is it truncated?")
        width = WIDTH.get(dtype)
        if (width is not None and numel * width != stop - start) or numel >= MOST_VALUES:
            what = f"of shape {list(shape)} and dtype {dtype}"
            raise Malformed(f"tensor {name!r} {what} cannot have {stop - start} bytes")
        tensors[name] = Tensor(dtype, shape)
        ranges[name] = (Piece("", base + start, numel),)
        if stop > start:
            spans.append((start, stop, name))
    spans.sort()
    for (_, stop, name), (start, _, other) in itertools.pairwise(spans):
        if start < stop:
            raise Malformed(f"the bytes of tensors {name!r} and {other!r} overlap")
    return Header(tensors, ranges, _stored_step(metadata if isinstance(metadata, dict) else {}))


def _fields(name: str, entry: Any) -> tuple[str, tuple[int, ...], list[int]]:
    """Dtype, shape and offsets of an entry. Raises Malformed if their types are invalid."""
    said = entry if type(entry) is dict else {}
    dtype, shape, offsets = said.get("dtype"), said.get("shape"), said.get("data_offsets")
    if (
        type(dtype) is not str
        or type(shape) is not list
        or type(offsets) is not list
        or len(offsets) != 2
        or {*map(type, shape), *map(type, offsets)} != {int}  # neither fractions nor booleans
        or (shape and min(shape) < 0)
    ):
        raise Malformed(f"tensor {name!r} has no valid dtype, shape and data_offsets")
    if dtype not in WIDTH and not _DTYPE.fullmatch(dtype):
        raise Malformed(f"tensor {name!r} has an invalid dtype: {dtype[:40]!a}")
    if len(shape) > MOST_AXES:
        raise Malformed(f"tensor {name!r} has {len(shape)} axes; at most {MOST_AXES} are supported")
    return dtype, tuple(shape), offsets


def _check_text(names: str) -> None:
    try:
        names.encode()
    except UnicodeEncodeError:  # JSON can contain half of a surrogate pair
        raise Malformed("its header has a name that is not valid Unicode") from None
