"""Checkpoints in TensorFlow's format, written without it: whole ones, and any tables with right checksums."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa

MAGIC = bytes.fromhex("57fb808b247547db")
DTYPES = {
    "float32": 1,
    "float64": 2,
    "int32": 3,
    "uint8": 4,
    "int16": 5,
    "int8": 6,
    "int64": 9,
    "bool": 10,
    "uint16": 17,
    "complex128": 18,
    "float16": 19,
    "uint32": 22,
    "uint64": 23,
}
STRING, BFLOAT16 = 7, 14
Field = tuple[int, int | bytes | float]  # a float is written as fixed32


def masked(content: bytes) -> int:
    crc = google_crc32c.value(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value: int) -> bytes:
    value %= 1 << 64
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def message(fields: Iterable[Field]) -> bytes:
    parts = []
    for number, value in fields:
        if isinstance(value, bytes):
            parts.append(varint(number << 3 | 2) + varint(len(value)) + value)
        elif isinstance(value, float):
            parts.append(varint(number << 3 | 5) + int(value).to_bytes(4, "little"))
        else:
            parts.append(varint(number << 3) + varint(value))
    return b"".join(parts)


def shape_field(shape: Sequence[int]) -> bytes:
    return message((2, message([(1, n)])) for n in shape)


def entry(dtype: int, shape: Sequence[int], shard: int, offset: int, content: bytes) -> list[Field]:
    """The fields of an entry, to be changed or put into a message."""
    return [
        (1, dtype),
        (2, shape_field(shape)),
        (3, shard),
        (4, offset),
        (5, len(content)),
        (6, float(masked(content))),
    ]


def block(entries: Sequence[tuple[bytes, bytes]], *, snappy: bool = False) -> bytes:
    """With its trailer; each key but the first of sixteen shares its beginning with the one before."""
    found, restarts, last = bytearray(), [], b""
    for i, (key, value) in enumerate(entries):
        shared = 0
        if i % 16 == 0:
            restarts.append(len(found))
        else:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        found += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    raw = bytes(found) + b"".join(
        r.to_bytes(4, "little") for r in (*(restarts or [0]), max(len(restarts), 1))
    )
    if snappy:
        raw = pa.compress(raw, codec="snappy", asbytes=True)
    return sealed(raw, 1 if snappy else 0)


def sealed(raw: bytes, kind: int = 0) -> bytes:
    raw += bytes([kind])
    return raw + masked(raw).to_bytes(4, "little")


def table(blocks: Sequence[bytes], keys: Sequence[bytes], index: bytes | None = None) -> bytes:
    """A table of blocks with their trailers. keys: of the index, one for each block. index: another index block."""
    content, handles = b"", []
    for one in blocks:
        handles.append(varint(len(content)) + varint(len(one) - 5))
        content += one
    index = block(list(zip(keys, handles, strict=True))) if index is None else index
    at = varint(len(content)) + varint(len(index) - 5)
    return content + index + (varint(0) + varint(0) + at).ljust(40, b"\0") + MAGIC


def blocks_of(content: bytes) -> list[bytes]:
    """The blocks of a table with their trailers, the index last."""
    from normgrowth.checkpoints.formats.tensorflow import table as reader

    footer = content[-48:]
    (start, size), _ = reader._handle(footer, reader._handle(footer, 0)[1])
    index = content[start : start + size + 5]
    handles = [
        reader._handle(value, 0)[0]
        for _, value in reader._entries(reader._block(content, start, size), reader._KeyBudget(len(content)))
    ]
    return [*(content[at : at + n + 5] for at, n in handles), index]


def table_of(entries: Sequence[tuple[bytes, bytes]], *, each: int = 5, snappy: bool = False) -> bytes:
    """A table of these entries in this order, so many to a block."""
    groups = [entries[i : i + each] for i in range(0, len(entries), each)]
    return table([block(group, snappy=snappy) for group in groups], [group[-1][0] for group in groups])


def header(shards: int = 1, **more: int) -> bytes:
    return message([(1, shards), *((2, value) for value in more.values())])


def string_content(text: bytes) -> tuple[bytes, bytes]:
    """As it is stored, and as its checksum takes it."""
    size = len(text).to_bytes(4, "little")
    check = masked(size).to_bytes(4, "little")
    return varint(len(text)) + check + text, size + check + text


def bundle_entries(tensors: Mapping[str, Any], shards: int = 1) -> tuple[dict[str, list[Field]], list[bytes]]:
    """The entries of arrays, of bytes (strings) and of ("bfloat16", bits), and the content of the data files."""
    data = [b""] * shards
    found: dict[str, list[Field]] = {}
    for place, (name, value) in enumerate(tensors.items()):
        shard = place % shards
        if isinstance(value, bytes):
            content, summed = string_content(value)
            own = entry(STRING, (), shard, len(data[shard]), content)
            own[5] = (6, float(masked(summed)))
        else:
            bits = value[1] if isinstance(value, tuple) else np.asarray(value)
            number = BFLOAT16 if isinstance(value, tuple) else DTYPES[bits.dtype.name]
            content = bits.tobytes()
            own = entry(number, bits.shape, shard, len(data[shard]), content)
        found[name] = own
        data[shard] += content
    return found, data


def write_bundle(prefix: Path, tensors: Mapping[str, Any], *, shards: int = 1, snappy: bool = False) -> Path:
    """Write a checkpoint and return the path of its index."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    entries, data = bundle_entries(tensors, shards)
    put_data(prefix, data)
    return put_index(prefix, entries, shards, snappy=snappy)


def put_data(prefix: Path, data: Sequence[bytes]) -> None:
    for shard, content in enumerate(data):
        prefix.with_name(f"{prefix.name}.data-{shard:05}-of-{len(data):05}").write_bytes(content)


def put_index(
    prefix: Path, entries: Mapping[str, Iterable[Field]], shards: int = 1, *, snappy: bool = False
) -> Path:
    index = prefix.with_name(f"{prefix.name}.index")
    keyed = sorted((name.encode(), message(fields)) for name, fields in entries.items())
    index.write_bytes(table_of([(b"", header(shards)), *keyed], snappy=snappy))
    return index


def t5_state(seed: int = 0, layers: int = 2, width: int = 8) -> dict[str, np.ndarray]:
    """The variables of a small T5 as Mesh TensorFlow names them, with Adafactor's slots."""
    rng = np.random.default_rng(seed)
    state: dict[str, np.ndarray] = {"shared/embedding": rng.normal(size=(50, width))}
    for stack, kinds in (("encoder", ("SelfAttention",)), ("decoder", ("SelfAttention", "EncDecAttention"))):
        for i in range(layers):
            block = f"{stack}/block_{i:03}"
            for j, kind in enumerate(kinds):
                for part in "qkvo":
                    state[f"{block}/layer_{j:03}/{kind}/{part}"] = rng.normal(size=(width, width))
                state[f"{block}/layer_{j:03}/layer_norm/scale"] = np.ones(width)
            feedforward = f"{block}/layer_{len(kinds):03}"
            state[f"{feedforward}/DenseReluDense/wi/kernel"] = rng.normal(size=(width, 4 * width))
            state[f"{feedforward}/DenseReluDense/wo/kernel"] = rng.normal(size=(4 * width, width))
            state[f"{feedforward}/layer_norm/scale"] = np.ones(width)
        state[f"{stack}/final_layer_norm/scale"] = np.ones(width)
    return {name: values.astype(np.float32) for name, values in state.items()}


def with_slots(state: Mapping[str, np.ndarray], step: int) -> dict[str, np.ndarray]:
    """The same with what the optimizer keeps: rows and columns of matrices, and the step."""
    slots = {}
    for name, values in state.items():
        slots[name] = values
        if values.ndim == 2:
            slots[f"{name}_slot_vr"] = np.square(values).mean(1).astype(np.float32)
            slots[f"{name}_slot_vc"] = np.square(values).mean(0).astype(np.float32)
        else:
            slots[f"{name}_slot_v"] = np.square(values).astype(np.float32)
    return {**slots, "global_step": np.int64(step)}


def t5_walk(steps: Sequence[int], **size: int) -> list[dict[str, np.ndarray]]:
    """States whose matrices grow as the square root of the step: a random walk between steps."""
    rng = np.random.default_rng(1)
    state = t5_state(**size)
    found = [with_slots(state, steps[0])]
    for before, step in itertools.pairwise(steps):
        size_of_step = 0.5 * np.sqrt((step - before) / steps[-1])
        state = {
            name: (values + size_of_step * rng.normal(size=values.shape)).astype(np.float32)
            for name, values in state.items()
        }
        found.append(with_slots(state, step))
    return found


def write_t5_series(folder: Path, steps: Sequence[int], **size: int) -> Path:
    for step, state in zip(steps, t5_walk(steps, **size), strict=True):
        write_bundle(folder / f"model.ckpt-{step}", state, shards=2)
    return folder
