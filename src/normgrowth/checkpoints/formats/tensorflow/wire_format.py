"""The wire format of protocol buffers: numbers of variable length, and the fields of a message."""

from collections.abc import Iterator
from typing import NamedTuple

from normgrowth.checkpoints.malformed import Malformed

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and the position after it."""
    result = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        result |= (byte & 127) << shift
        if byte < 128:
            return result & (1 << 64) - 1, at
        shift += 7
    raise Malformed("is damaged: a number has no end")


class Field(NamedTuple):
    """A field of a message, not interpreted yet."""

    number: int
    value: int | bytes

    def integer(self) -> int:
        """The value as int64."""
        if not isinstance(self.value, int):
            raise Malformed(f"has a message whose field {self.number} is not a number")
        return self.value - (1 << 64) if self.value >= 1 << 63 else self.value

    def message(self) -> bytes:
        if not isinstance(self.value, bytes):
            raise Malformed(f"has a message whose field {self.number} is not a message")
        return self.value

    def text(self) -> str:
        return decoded(self.message())


def fields(data: bytes) -> Iterator[Field]:
    """The fields of a message in the order in which they are stored."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = varint(data, at)
            yield Field(tag >> 3, value)
            continue
        if kind == _BYTES:
            size, at = varint(data, at)
        elif kind in _WIDTHS:
            size = _WIDTHS[kind]
        else:
            raise Malformed("has a message with a field of an unknown type")
        if size > len(data) - at:
            raise Malformed("has a message that ends too early")
        raw = data[at : at + size]
        at += size
        yield Field(tag >> 3, raw if kind == _BYTES else int.from_bytes(raw, "little"))


def decoded(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise Malformed(f"has a name that is not valid UTF-8: {name[:40]!r}") from None
