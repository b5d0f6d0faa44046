"""The interface of a remote file store (list, size, byte ranges), and the buffers that bytes are read into."""

import threading
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

AT_ONCE = 8  # concurrent requests during discovery
Bytes = NDArray[np.uint8]


class FileInfo(NamedTuple):
    """Size, tag and possibly the first bytes of a file."""

    size: int
    tag: str  # changes if the content changes: an ETag or a time
    head: bytes = b""  # its first bytes, if the request returned them


class DirectoryEntry(NamedTuple):
    """An entry of a folder."""

    name: str
    is_folder: bool
    info: FileInfo | None = None


class FileStore(Protocol):
    """A remote folder. Errors are raised as `InputError` with one line that begins with `where`."""

    def show(self, file: str = "") -> str: ...
    def stat(self, file: str, where: str) -> FileInfo: ...
    def content(self, file: str, limit: int, where: str) -> bytes: ...

    def read(
        self, file: str, start: int, stop: int, where: str, info: FileInfo, into: Bytes | None = None
    ) -> Bytes:
        """The bytes from start to stop. Raises InputError if the file no longer matches `info`. into: buffer to use."""
        ...


class ListableStore(FileStore, Protocol):
    """A store that can list its files."""

    def child(self, name: str) -> "ListableStore": ...
    def ls(self) -> list[DirectoryEntry]: ...


class BufferPool:
    """Reuses buffers, because allocating memory takes as long as filling it.

    It never has more buffers than were in use at one time.
    """

    def __init__(self) -> None:
        self._free: list[Bytes] = []
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type["BufferPool"], tuple[()]]:
        return BufferPool, ()

    def take(self, size: int) -> Bytes:
        with self._lock:
            for i, memory in enumerate(self._free):
                if memory.size >= size:
                    return self._free.pop(i)
            del self._free[:1]  # too small: the new buffer replaces it
        return np.empty(size, np.uint8)

    def give(self, memory: Bytes) -> None:
        with self._lock:
            self._free.append(memory)
