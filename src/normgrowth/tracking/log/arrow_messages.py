"""The messages of an Arrow IPC stream, encoded without pyarrow, which takes 30 MB in the training process.

A message is a FlatBuffers table (https://arrow.apache.org/docs/format/Columnar.html): a table refers to a list of the
offsets of its fields (its vtable), and to tables, vectors and strings behind it.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

START = b"\xff\xff\xff\xff"  # start of every message; the length of its metadata follows
VERSION = 4  # metadata version V5
SCHEMA, RECORD_BATCH = 1, 3  # types of a message
INT, FLOATING_POINT, FIXED_SIZE_LIST = 2, 3, 16  # types of a column
DOUBLE = 2  # precision of a floating point type
OFFSET = "<I"


@dataclass(frozen=True)
class Number:
    """A number in a table. kind: its format in `struct`."""

    kind: str
    value: int


class Pairs(list[tuple[int, int]]):
    """A vector of structs of two int64."""


Reference = Pairs | str | Sequence["Reference"] | Mapping[int, "Node"]  # a mapping is a table: slot -> field
Node = Number | Reference


def schema_message(values: int, metadata: Mapping[str, str]) -> bytes:
    """The message that describes the columns: step, sums (a list of float64 of this length) and checksum."""
    number = {0: Number("<i", 64), 1: Number("<?", True)}
    item = _field("item", FLOATING_POINT, {0: Number("<h", DOUBLE)})
    columns = [
        _field("step", INT, number),
        _field("sums", FIXED_SIZE_LIST, {0: Number("<i", values)}, [item]),
        _field("checksum", INT, number),
    ]
    return _message(SCHEMA, {1: columns, 2: [{0: key, 1: value} for key, value in metadata.items()]}, body=0)


def batch_message(values: int) -> bytes:
    """The message before the values of one step: step, sums, checksum."""
    lengths = Pairs([(1, 0), (1, 0), (values, 0), (1, 0)])  # with the number of nulls
    absent, sums = (0, 0), 8 * values
    # Each column has a buffer that marks its nulls, which is absent.
    buffers = Pairs([absent, (0, 8), absent, absent, (8, sums), absent, (8 + sums, 8)])
    return _message(RECORD_BATCH, {0: Number("<q", 1), 1: lengths, 2: buffers}, body=sums + 16)


def _field(
    name: str, kind: int, of_kind: Mapping[int, Node], children: Sequence[Reference] = ()
) -> Reference:
    return {0: name, 1: Number("<?", True), 2: Number("<B", kind), 3: of_kind, 5: children}


def _message(kind: int, header: Mapping[int, Node], body: int) -> bytes:
    table = {0: Number("<h", VERSION), 1: Number("<B", kind), 2: header, 3: Number("<q", body)}
    content = bytearray(4)
    struct.pack_into(OFFSET, content, 0, _append(content, table))
    content += bytes(-len(content) % 8)
    return START + struct.pack("<i", len(content)) + bytes(content)


def _append(content: bytearray, node: Reference) -> int:
    """Append a node and all it refers to; its position."""
    if isinstance(node, str):
        return _append_string(content, node)
    if isinstance(node, Mapping):
        return _append_table(content, node)
    content += bytes((4 - len(content)) % 8)  # so that what follows the length is aligned
    place = len(content)
    content += struct.pack(OFFSET, len(node))
    if isinstance(node, Pairs):
        for pair in node:
            content += struct.pack("<qq", *pair)
        return place
    content += bytes(4 * len(node))
    for i, child in enumerate(node):
        _refer(content, place + 4 + 4 * i, child)
    return place


def _append_string(content: bytearray, text: str) -> int:
    content += bytes(-len(content) % 4)
    place, encoded = len(content), text.encode()
    content += struct.pack(OFFSET, len(encoded)) + encoded + b"\0"
    return place


def _append_table(content: bytearray, fields: Mapping[int, Node]) -> int:
    kinds = {slot: node.kind if isinstance(node, Number) else OFFSET for slot, node in fields.items()}
    places, size = dict[int, int](), 4
    for slot in sorted(
        fields, key=lambda slot: -struct.calcsize(kinds[slot])
    ):  # the largest first: all aligned
        places[slot] = size
        size += struct.calcsize(kinds[slot])
    offsets = [places.get(slot, 0) for slot in range(max(fields) + 1)]
    content += bytes(len(content) % 2)
    vtable = len(content)
    content += struct.pack(f"<{2 + len(offsets)}H", 4 + 2 * len(offsets), size, *offsets)
    content += bytes((4 - len(content)) % 8)
    table = len(content)
    content += struct.pack("<i", table - vtable) + bytes(size - 4)
    for slot, node in fields.items():
        if isinstance(node, Number):
            struct.pack_into(node.kind, content, table + places[slot], node.value)
        else:
            _refer(content, table + places[slot], node)
    return table


def _refer(content: bytearray, place: int, node: Reference) -> None:
    struct.pack_into(OFFSET, content, place, _append(content, node) - place)
