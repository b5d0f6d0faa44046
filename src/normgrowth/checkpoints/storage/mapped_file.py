"""A file that is read in place, and notices that it changed under the reader.

Reading through the mapping costs half of what copying the bytes first would. What a copy would notice by itself is
looked at here: `check_whole` says whether bytes that were read were there (see `bus_errors`), `check_unchanged` also
whether the file was written to in the meantime.
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
    """Inode, size and time of modification."""

    __slots__ = ()

    @classmethod
    def of(cls, found: os.stat_result) -> "FileState":
        return cls((found.st_ino, found.st_size, found.st_mtime_ns))


class MappedFile:
    """The bytes of a file as an array, which keeps the mapping alive. Raises InputError where that cannot be.

    expected: the state in which its header was read.
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
        """Raise if bytes that were read were not there any more: what was made of them is wrong."""
        if len(self.array) and self._mapping.is_lost:
            raise FileChanged(str(self.path), "was truncated, or its disk failed,")

    def check_unchanged(self) -> None:
        """The same, and if it was written to. A file that was removed or replaced is read to its end all the same."""
        self.check_whole()
        try:
            now = FileState.of(self.path.stat())
        except OSError:
            return
        if now[0] == self.state[0] and now != self.state:
            raise FileChanged(str(self.path), "has changed")


@contextmanager
def opened_map(path: Path) -> Iterator[MappedFile]:
    """A mapped file for a block of code; whatever the block makes of it, bytes that are gone come first."""
    file = MappedFile(path)
    try:
        yield file
    finally:
        file.check_whole()


class FileBytes:
    """The same without a mapping, for the few bytes of a header: slices are read when they are asked for."""

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
