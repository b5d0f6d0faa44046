"""A file that is read in place, with checks for changes during reading.

Reading through a mapping takes half the time of copying the bytes first, but needs explicit checks: `check_whole`
raises if bytes that were read did not exist any more (see `bus_errors`), `check_unchanged` also if the file was
modified.
"""

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from normgrowth.checkpoints.storage.bus_errors import Mapping
from normgrowth.errors import FileChanged, InputError


class FileState(tuple[int, int, int]):
    """Inode, size and modification time."""

    __slots__ = ()

    @classmethod
    def of(cls, found: os.stat_result) -> "FileState":
        return cls((found.st_ino, found.st_size, found.st_mtime_ns))


class MappedFile:
    """The bytes of a file as an array, which keeps the mapping alive. Raises InputError if the file cannot be read.

    expected: the state of the file when its header was read; if it differs, FileChanged is raised.
    """

    def __init__(self, path: Path, expected: FileState | None = None) -> None:
        self.path = path
        self.memory: mmap.mmap | bytes = b""  # an empty file cannot be mapped
        try:
            with path.open("rb") as file:
                self.state = FileState.of(os.fstat(file.fileno()))
                if self.state[1]:
                    self.memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.array: NDArray[np.uint8] = np.frombuffer(self.memory, np.uint8)
            if isinstance(self.memory, mmap.mmap):
                self._mapping = Mapping(self.memory, self.array.ctypes.data, len(self.array))
        except (OSError, ValueError) as error:
            raise unreadable(path, error) from error
        if expected is not None and expected != self.state:
            raise FileChanged(str(path), "has changed")

    def check_whole(self) -> None:
        """Raise FileChanged if bytes that were read did not exist any more, so results computed from them are wrong."""
        if len(self.array) and self._mapping.is_lost:
            raise FileChanged(str(self.path), "was truncated, or its disk failed,")

    def check_unchanged(self) -> None:
        """Raise FileChanged if the file was truncated or modified. A removed or replaced file stays readable."""
        self.check_whole()
        try:
            now = FileState.of(self.path.stat())
        except OSError:
            return
        if now[0] == self.state[0] and now != self.state:
            raise FileChanged(str(self.path), "has changed")


@contextmanager
def opened_map(path: Path) -> Iterator[MappedFile]:
    """Context manager for a mapped file. Errors due to lost bytes take precedence over other errors of the block."""
    file = MappedFile(path)
    try:
        yield file
    finally:
        file.check_whole()


class FileBytes:
    """The bytes of a file without a mapping, for a small header. Slices are read on access."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except (OSError, ValueError) as error:
            raise unreadable(path, error) from error
        self.state = FileState.of(os.fstat(self._file))

    def __len__(self) -> int:
        return self.state[1]

    def __getitem__(self, span: slice) -> bytes:
        start, stop, _ = span.indices(len(self))
        try:
            found = _read_at(self._file, start, stop)
        except OSError as error:
            raise unreadable(self.path, error) from error
        if len(found) < stop - start:
            raise FileChanged(str(self.path), "was truncated")
        return found

    def __enter__(self) -> "FileBytes":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        os.close(self._file)


def _read_at(file: int, start: int, stop: int) -> bytes:
    parts = []
    while start < stop and (part := os.pread(file, stop - start, start)):
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def unreadable(path: Path, error: Exception) -> InputError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return InputError(f"{path}: cannot be read: {reason}")
