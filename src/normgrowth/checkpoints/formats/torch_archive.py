"""Locate the entries of torch archives without unpacking them.

So the index of a tensor of gigabytes takes only a few reads. `pickles` reads the pickle of an archive without running
code, and `torch_tensors` interprets its tensors.
"""

import mmap
import struct

from normgrowth.checkpoints.malformed import Malformed

_END, _END64, _LOCATOR64 = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_ENTRY = struct.Struct("<4s4xHH8xLLHHH8xL")  # directory entry: flags, method, sizes, lengths, offset
_STORED, DEFLATED, _ENCRYPTED = 0, 8, 1
_NO_ARCHIVE = "is not a valid torch archive"


class Archive:
    """The locations of the entries of a torch archive in a mapped file; also of numpy's, which have no top folder.

    The directory is parsed here because Python's zipfile takes ten times as long for the 60,000 entries of a model and
    its optimizer.
    """

    def __init__(self, data: mmap.mmap, start: int, length: int, *, top_folder: bool = True) -> None:
        self._data, self._start, self._stop, self._top_folder = data, start, start + length, top_folder
        self._entries: dict[bytes, tuple[int, int, int, int]] = {}  # header, bytes, unpacked bytes, method
        try:
            self._read_directory()
        except struct.error as error:
            raise Malformed(f"{_NO_ARCHIVE}: its directory is truncated") from error
        if b"byteorder" in self._entries and self.read("byteorder") != b"little":
            raise Malformed("was saved on a big-endian machine; only little-endian files are supported")

    def _read_directory(self) -> None:
        data, start = self._data, self._start
        end = data.rfind(_END, max(start, self._stop - 22 - 65535), self._stop)
        if end < 0 or end + 22 > self._stop:
            raise Malformed(f"{_NO_ARCHIVE}: it has no directory; is it truncated?")
        count, size, offset = struct.unpack_from("<HLL", data, end + 10)
        if end - 20 >= start and data[end - 20 : end - 16] == _LOCATOR64:
            end = start + struct.unpack_from("<Q", data, end - 12)[0]
            if end + 56 > self._stop or data[end : end + 4] != _END64:
                raise Malformed(f"{_NO_ARCHIVE}: its directory is damaged")
            count, size, offset = struct.unpack_from("<QQQ", data, end + 32)
        if offset + size > end - start or count > size // _ENTRY.size:
            raise Malformed(f"{_NO_ARCHIVE}: its directory is damaged")
        directory, at = data[start + offset : start + offset + size], 0
        unpack, fixed = _ENTRY.unpack_from, _ENTRY.size
        for _ in range(count):
            mark, flags, method, packed, whole, named, extra, comment, header = unpack(directory, at)
            at += fixed
            # Entries are `archive/data.pkl`, `archive/data/0` and so on; the first folder can have any name.
            name = directory[at : at + named]
            name = name.partition(b"/")[2] if self._top_folder else name
            at += named
            if mark != b"PK\x01\x02" or at + extra > size:
                raise Malformed(f"{_NO_ARCHIVE}: its directory is damaged")
            if 0xFFFFFFFF in (packed, whole, header):
                packed, whole, header = _large(directory[at : at + extra], packed, whole, header)
            at += extra + comment
            self._entries[name] = header, packed, whole, -1 if flags & _ENCRYPTED else method

    def names(self) -> list[str]:
        return [name.decode("utf-8", "replace") for name in self._entries]

    def span(self, name: str) -> tuple[int, int]:
        """First byte in the file and number of bytes of an uncompressed entry."""
        start, size, whole, method = self.stored(name)
        if method != _STORED or size != whole:
            raise Malformed(f"is an archive with a compressed or encrypted {name}")
        return start, size

    def stored(self, name: str) -> tuple[int, int, int, int]:
        """First byte in the file, stored bytes, unpacked bytes, and compression method (−1: encrypted) of an entry."""
        entry = self._entries.get(name.encode("utf-8", "replace"))
        if entry is None:
            raise Malformed(f"is a torch archive without {name}")
        header, size, whole, method = entry
        header += self._start
        if header + 30 <= self._stop and self._data[header : header + 4] == b"PK\x03\x04":
            start = header + 30 + sum(struct.unpack_from("<HH", self._data, header + 26))
            if start + size <= self._stop:
                return start, size, whole, method
        raise Malformed(f"is an archive whose {name} is damaged")

    def read(self, name: str) -> bytes:
        start, size = self.span(name)
        return self._data[start : start + size]


def _large(extra: bytes, *fields: int) -> tuple[int, ...]:
    """Sizes and offset with 64 bits, from the extra field, which has only those that do not fit into 32 bits."""
    at = 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            places = iter(range(at + 4, at + 4 + size, 8))
            found = ()
            for value in (fields[1], fields[0], fields[2]):
                found += (
                    struct.unpack_from("<Q", extra, next(places, len(extra)))[0]
                    if value == 0xFFFFFFFF
                    else value,
                )
            whole, packed, header = found
            return packed, whole, header
        at += 4 + size
    raise Malformed(f"{_NO_ARCHIVE}: an entry has no size")
