"""PyTorch files: read the pickle, and locate each storage.

There are two formats. Since torch 1.6, a file is a zip archive with a pickle and an entry for each storage. Before, it
was five consecutive pickles (a magic number, a version, the byte order, the content, a list of keys), followed by the
storages, each after the number of its values. The file is mapped, not loaded, while its index is read.
"""

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from normgrowth.checkpoints.formats.pickled.pickle_values import Entries
from normgrowth.checkpoints.formats.pickled.pickles import Pickled, read_pickle
from normgrowth.checkpoints.formats.torch_archive import Archive
from normgrowth.checkpoints.formats.torch_tensors import storage_size
from normgrowth.checkpoints.malformed import Malformed
from normgrowth.checkpoints.storage.mapped_file import FileState, opened_map

ZIP_START = b"PK\x03\x04"
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
LEGACY_STARTS = (
    b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.",
    b"L%dL\n." % MAGIC,
)  # the pickled magic number
COPIED = 64 << 20  # bytes; reading from a copy is faster than from a map, but larger pickles are not copied


class TorchFile(NamedTuple):
    """An open file; valid while it is mapped."""

    data: mmap.mmap
    state: FileState
    pickled: Pickled
    place: Callable[[str], tuple[int, int]]  # key of a storage -> its first byte, number of bytes
    start: int = 0  # position in the file that the pickle's own positions are relative to


def looks_like_pytorch(start: bytes) -> bool:
    """Whether the first 32 bytes are those of torch's archive, or of the pickles of its legacy format."""
    return start.startswith(ZIP_START) or any(mark in start for mark in LEGACY_STARTS)


@contextmanager
def open_torch_file(path: Path) -> Iterator[TorchFile]:
    """Map a PyTorch file and read its pickle. Raises `Malformed` if it is not a PyTorch file."""
    with opened_map(path) as mapped:
        data = mapped.memory
        start = data[:32]
        if isinstance(data, bytes) or not looks_like_pytorch(start):
            raise Malformed("not a PyTorch file (neither an archive nor the legacy format); is it truncated?")
        yield (_archive if start.startswith(ZIP_START) else _legacy)(data, mapped.state)


def _archive(data: mmap.mmap, state: FileState) -> TorchFile:
    archive = Archive(data, 0, len(data))
    start, size = archive.span("data.pkl")
    copied = size <= COPIED
    pickled = _pickle(archive.read("data.pkl")) if copied else _pickle(data, start, start + size)
    return TorchFile(data, state, pickled, lambda key: archive.span(f"data/{key}"), start if copied else 0)


def _legacy(data: mmap.mmap, state: FileState) -> TorchFile:
    magic = _pickle(data)
    version = _pickle(data, magic.end)
    info = _pickle(data, version.end)
    if type(magic.value) is not int or magic.value != MAGIC:
        raise Malformed("not a PyTorch file: wrong magic number")
    if type(version.value) is not int or version.value != PROTOCOL:
        raise Malformed("unknown version of torch's legacy format")
    if _says_big_endian(info.value):
        raise Malformed("was saved on a big-endian machine; only little-endian files are supported")
    pickled = _pickle(data, info.end)
    keys = _pickle(data, pickled.end)
    if type(keys.value) is not list or not all(type(key) is str for key in keys.value):
        raise Malformed("has no list of storages")
    sizes: dict[str, int] = {}
    for storage in pickled.storages:
        key, size = storage_size(storage)
        sizes.setdefault(key, size)
    places: dict[str, tuple[int, int]] = {}
    at = keys.end
    for key in keys.value:
        if key not in sizes:
            raise Malformed("lists a storage that no tensor uses")
        at += 8  # the number of values
        if at + sizes[key] > len(data):
            raise Malformed("truncated: its storages end beyond the end of the file")
        places[key] = at, sizes[key]
        at += sizes[key]

    def place(key: str) -> tuple[int, int]:
        if key not in places:
            raise Malformed("has a storage that is not in the file")
        return places[key]

    return TorchFile(data, state, pickled, place)


def _says_big_endian(info: Any) -> bool:
    pairs = zip(info[::2], info[1::2], strict=True) if type(info) is Entries else ()
    return any(type(key) is str and key == "little_endian" and value is False for key, value in pairs)


def _pickle(data: bytes | mmap.mmap, start: int = 0, stop: int | None = None) -> Pickled:
    try:
        return read_pickle(data, start, stop)
    except Malformed as error:
        raise Malformed(f"truncated or damaged: {error}") from error
