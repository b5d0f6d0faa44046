"""Torch files put together by hand: pickles by their opcodes, archives around them."""

import io
import struct
import zipfile
from pathlib import Path

import numpy as np


def text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def number(value: int) -> bytes:
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def name(module: str, attribute: str) -> bytes:
    return b"c" + module.encode() + b"\n" + attribute.encode() + b"\n"


def many(*values: bytes) -> bytes:
    """A tuple."""
    return b"(" + b"".join(values) + b"t"


def call(function: bytes, *args: bytes) -> bytes:
    return function + many(*args) + b"R"


def dictionary(**values: bytes) -> bytes:
    return b"}(" + b"".join(text(key) + value for key, value in values.items()) + b"u"


def chain(depth: int, inner: bytes, key: str = "a") -> bytes:
    """Dictionaries in dictionaries, written without recursion."""
    return b"".join(b"}(" + text(key) for _ in range(depth)) + inner + b"u" * depth


def storage(count: int = 6, kind: str = "FloatStorage", key: str = "0", location: str = "cpu") -> bytes:
    return many(text("storage"), name("torch", kind), text(key), text(location), number(count)) + b"Q"


def tensor(
    shape: tuple[int, ...] = (2, 3),
    strides: tuple[int, ...] | None = None,
    *,
    offset: int = 0,
    **options: object,
) -> bytes:
    if strides is None:
        strides = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
    return call(
        name("torch._utils", "_rebuild_tensor_v2"),
        storage(**options),  # pyright: ignore[reportArgumentType]
        number(offset),
        many(*map(number, shape)),
        many(*map(number, strides)),
        b"\x89",
        call(name("collections", "OrderedDict")),
    )


def pickled(value: bytes) -> bytes:
    return b"\x80\x02" + value + b"."


def archive(
    path: Path, value: bytes, *, data: bytes = np.arange(6, dtype=np.float32).tobytes(), **more: bytes
) -> Path:
    """A torch archive with this pickled value and one storage."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as file:
        for entry, content in {
            "data.pkl": pickled(value),
            "byteorder": b"little",
            "version": b"3\n",
            "data/0": data,
            **more,
        }.items():
            file.writestr(f"archive/{entry}", content)
    path.write_bytes(packed.getvalue())
    return path
