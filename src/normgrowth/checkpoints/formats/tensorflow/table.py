"""Tables in LevelDB's format: sorted keys with values, in blocks that each have a checksum.

A file has blocks of entries, an index block that lists them, and a footer of 48 bytes with the location of the index
block. A block stores only the part of each key that differs from the previous key. Time and memory are bounded by the
size of the file: no byte belongs to two blocks, and all keys together have at most 64 times the bytes of the file.
"""

from collections.abc import Iterator

from normgrowth.checkpoints.formats.tensorflow.wire_format import varint
from normgrowth.checkpoints.malformed import Malformed
from normgrowth.checkpoints.storage.crc32c import crc32c, unmasked

TABLE_END = bytes.fromhex("57fb808b247547db")  # the magic number
_FOOTER = 48
_TRAILER = 5  # bytes after a block: the compression type and the checksum
_PLAIN, _SNAPPY = 0, 1
_LONGEST_KEY = 1 << 16
_KEYS_TO_FILE = 64  # maximum ratio of the bytes of all keys to those of the file
_MOST_EXPANSION = 64  # Snappy's own limit is about 21


def read_table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values, in ascending order of the keys."""
    if len(content) < _FOOTER or not content.endswith(TABLE_END):
        raise Malformed("is truncated: the footer of the table is missing")
    footer = content[-_FOOTER:]
    _, at = _handle(footer, 0)
    (start, size), _ = _handle(footer, at)
    budget = _KeyBudget(len(content))
    behind, last = 0, None
    for _, value in _entries(_block(content, start, size), budget):
        (start, size), _ = _handle(value, 0)
        if start < behind:
            raise Malformed("is damaged: its blocks overlap or are not in order")
        behind = start + size
        for key, entry in _entries(_block(content, start, size), budget):
            if last is not None and key <= last:
                raise Malformed("is damaged: its keys are not sorted")
            last = key
            yield key, entry


class _KeyBudget:
    """The number of key bytes that may still be read."""

    def __init__(self, size: int) -> None:
        self.left = _KEYS_TO_FILE * size

    def take(self, size: int) -> None:
        self.left -= size
        if size > _LONGEST_KEY or self.left < 0:
            raise Malformed("has names that are too long for a file of its size")


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Offset and size of a block, and the position after them."""
    start, at = varint(data, at)
    size, at = varint(data, at)
    return (start, size), at


def _block(content: bytes, start: int, size: int) -> bytes:
    """The entries of a block, verified and decompressed, without the list of restarts."""
    end = start + size
    if end + _TRAILER > len(content) - _FOOTER:
        raise Malformed(f"is damaged: a block ends at byte {end}, beyond the end of the table")
    stored = int.from_bytes(content[end + 1 : end + _TRAILER], "little")
    if crc32c(content[start : end + 1]) != unmasked(stored):
        raise Malformed(f"is damaged: the block at byte {start} does not match its checksum")
    raw, kind = content[start:end], content[end]
    if kind == _SNAPPY:
        raw = _decompressed(raw)
    elif kind != _PLAIN:
        raise Malformed(f"has a block with an unknown compression method ({kind})")
    restarts = int.from_bytes(raw[-4:], "little") if len(raw) >= 4 else 0
    if 4 * restarts + 4 > len(raw):
        raise Malformed(f"is damaged: the block at byte {start} has no valid end")
    return raw[: len(raw) - 4 - 4 * restarts]


def _decompressed(raw: bytes) -> bytes:
    import pyarrow as pa

    size, _ = varint(raw, 0)
    if size > _MOST_EXPANSION * len(raw):
        raise Malformed(f"has a block of {len(raw)} bytes that claims to be {size} when decompressed")
    try:
        return pa.decompress(raw, decompressed_size=size, codec="snappy", asbytes=True)
    except (pa.ArrowException, OSError):
        raise Malformed("has a block that cannot be decompressed") from None


def _entries(block: bytes, budget: _KeyBudget) -> Iterator[tuple[bytes, bytes]]:
    key, at = b"", 0
    while at < len(block):
        shared, at = varint(block, at)
        own, at = varint(block, at)
        size, at = varint(block, at)
        if shared > len(key) or own + size > len(block) - at:
            raise Malformed("is damaged: an entry is longer than its block")
        budget.take(shared + own)
        key = key[:shared] + block[at : at + own]
        at += own
        yield key, block[at : at + size]
        at += size
