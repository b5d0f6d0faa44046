"""Checkpoints that stay where they are: only headers and the values asked for come over the network.

A `Place` is a folder elsewhere (`places.Website`, `places.HubFiles`, `bucket.Bucket`) that hands out
exact byte ranges of its files. It pickles as an address; keys and passwords do not go with it, so
another process opens it with its own. No byte is asked for twice: first the eight bytes that say how
long the header is, then the header, then what `read` is asked for. One request for each range: whoever
wants several at a time calls `read` from several threads.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from normgrowth.checkpoints.checkpoint import (
    STORAGE,
    Piece,
    Ranges,
    Tensor,
    assemble,
    renamed_aliases,
    renamed_index,
    storage_of,
    without_wrappers,
)
from normgrowth.checkpoints.formats import safetensors
from normgrowth.engine import no_collection
from normgrowth.errors import InputError

if TYPE_CHECKING:
    from normgrowth.checkpoints.remote.bucket_access import Store

T = TypeVar("T")

AT_ONCE = 8  # requests, while checkpoints are looked for
Bytes = NDArray[np.uint8]


class Seen(NamedTuple):
    """What is known of a file before it is read."""

    size: int
    tag: str  # changes when the content does: an ETag, a time
    head: bytes = b""  # its first bytes, where finding that out brought them


class Listed(NamedTuple):
    """An entry of a folder."""

    name: str
    is_folder: bool
    seen: Seen | None = None


class Place(Protocol):
    """A folder elsewhere. Errors are `InputError`s of one line that begins with `where`."""

    def show(self, file: str = "") -> str: ...
    def look(self, file: str, where: str) -> Seen: ...
    def content(self, file: str, limit: int, where: str) -> bytes: ...

    def read(
        self, file: str, start: int, stop: int, where: str, seen: Seen, into: Bytes | None = None
    ) -> Bytes:
        """These bytes of the file that was seen, or an error if it is another now. into: memory that may be used."""
        ...


class Folder(Place, Protocol):
    """A place that can say what it holds."""

    def child(self, name: str) -> "Folder": ...
    def ls(self) -> list[Listed]: ...


class Session:
    """What a series was given or found out and what stays in this process: it pickles as a new one."""

    def __init__(self) -> None:
        self.logins: dict[tuple[str, str | None, int], str] = {}  # scheme, host and port -> header
        self.queries: dict[str, str] = {}  # digest -> query of a signed address
        self.etags: dict[tuple[str, str], str] = {}  # address and listed ETag -> the ETag that requests take
        self._stores: dict[tuple[str, str], Store] = {}  # scheme and bucket -> with the keys of this machine
        self._lock = threading.Lock()

    def store(self, scheme: str, bucket: str, *, anonymous: bool = False) -> "Store":
        """anonymous: from now on, for all."""
        from normgrowth.checkpoints.remote.bucket_access import open_store

        with self._lock:
            if anonymous or (scheme, bucket) not in self._stores:
                self._stores[scheme, bucket] = open_store(scheme, bucket, anonymous=anonymous)
            return self._stores[scheme, bucket]

    def __reduce__(self) -> tuple[type["Session"], tuple[()]]:
        return Session, ()


class Spare:
    """Memory that was read into and may be again: new memory costs the processor as much as filling it.

    There is never more of it than was in use at one time.
    """

    def __init__(self) -> None:
        self._free: list[Bytes] = []
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type["Spare"], tuple[()]]:
        return Spare, ()

    def take(self, size: int) -> Bytes:
        with self._lock:
            for i, memory in enumerate(self._free):
                if memory.size >= size:
                    return self._free.pop(i)
            del self._free[:1]  # too small: its place is taken
        return np.empty(size, np.uint8)

    def give(self, memory: Bytes) -> None:
        with self._lock:
            self._free.append(memory)


@dataclass
class RemoteCheckpoint:
    """Tensors that are byte ranges of files elsewhere. Pickles as its index and the address."""

    label: str
    place: Place
    tensors: dict[str, Tensor]  # possibly shared: not to be changed
    ranges: Ranges
    files: Mapping[str, Seen]
    main: str = ""  # the name of the file, where there is one and pieces call it ""
    step: int | None = None
    aliases: dict[str, str] = field(default_factory=dict)
    copies_whole: bool = True
    on_close: Callable[[], None] | None = None
    notes: tuple[str, ...] = ()

    def read(self, file: str, start: int, stop: int, into: Bytes | None = None) -> Bytes:
        """These bytes of a file, asked for with one request; safe from several threads at once.

        into: memory for them.
        """
        file = file or self.main
        seen, where = self.files[file], named(self.label, file)
        if not 0 <= start <= stop <= seen.size:
            raise InputError(f"{where}: has {seen.size} bytes, asked for those from {start} to {stop}")
        if start == stop:
            return np.zeros(0, np.uint8)
        return self.place.read(file, start, stop, where, seen, into)

    def values(self, wanted: Sequence[tuple[str, int, int]], memory: Bytes) -> list[np.ndarray]:
        """Values of tensors, each from one to before another; what lies side by side in a file is asked for at once.

        memory: at least as many bytes as all of them have.
        """
        spans: list[tuple[str, int, int]] = []  # file, first byte, behind the last
        runs: list[list[int]] = []  # of spans that touch
        for i, (name, start, stop) in enumerate(wanted):
            piece, width = self.ranges[name][0], STORAGE[self.tensors[name].dtype].itemsize
            span = piece.file, piece.offset + start * width, piece.offset + stop * width
            touches = bool(spans) and spans[-1][0] == span[0] and spans[-1][2] == span[1]
            spans.append(span)
            if touches:
                runs[-1].append(i)
            else:
                runs.append([i])
        found: list[np.ndarray] = []
        used = 0
        for members in runs:
            (file, first, _), (_, _, behind) = spans[members[0]], spans[members[-1]]
            content = self.read(file, first, behind, memory[used : used + behind - first])
            used += behind - first
            for i in members:
                bits = STORAGE[self.tensors[wanted[i][0]].dtype]
                found.append(content[spans[i][1] - first : spans[i][2] - first].view(bits))
        return found

    def pieces(self, name: str) -> list[np.ndarray]:
        bits = storage_of(self.label, name, self.tensors[name].dtype)
        return [
            self.read(piece.file, piece.offset, piece.offset + piece.numel * bits.itemsize).view(bits)
            for piece in self.ranges[name]
        ]

    def dense(self, name: str) -> np.ndarray:
        return assemble(self.tensors[name], self.pieces(name))

    def addresses(self, names: Sequence[str]) -> tuple[NDArray[np.int64], list[np.ndarray]]:
        return np.zeros(len(names), np.int64), []

    def renamed(self, old_name: Mapping[str, str]) -> "RemoteCheckpoint":
        tensors, ranges = renamed_index(self.tensors, self.ranges, old_name)
        return replace(self, tensors=tensors, ranges=ranges, aliases=renamed_aliases(self.aliases, old_name))

    def close(self) -> None:
        if self.on_close:
            self.on_close()


def named(label: str, file: str) -> str:
    """How messages call a file of a checkpoint."""
    return label if label.endswith(f"/{file}") else f"{label}: {file}"


class Index(NamedTuple):
    """All that opening a checkpoint has to read."""

    tensors: dict[str, Tensor]
    ranges: Ranges
    step: int | None


def read_index(place: Place, label: str, files: Mapping[str, Seen], weight_map: bytes | None) -> Index:
    """From the headers of its files: of one, or of the shards that the content of an index names."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        found = threads.map(lambda file: _header(place, file, files[file], named(label, file)), files)
        headers = dict(zip(files, found, strict=True))
    tensors: dict[str, Tensor] = {}
    ranges = Ranges()
    with no_collection():
        if weight_map is None:
            places = {name: file for file, header in headers.items() for name in header.tensors}
        else:
            places = safetensors.parse_index(weight_map, label)
        for name, file in places.items():
            header = headers[file]
            if name not in header.tensors:
                raise InputError(f"{label}: its index says that {file} holds tensor {name}, but it does not")
            tensors[name] = header.tensors[name]
            # One file has no name here, so that checkpoints of a series can have one index.
            called = file if weight_map is not None else ""
            ranges[name] = tuple(Piece(called, piece.offset, piece.numel) for piece in header.ranges[name])
        if (old_name := without_wrappers(tensors)) is not None:
            tensors, ranges = renamed_index(tensors, ranges, old_name)
    if not tensors:
        raise InputError(f"{label}: holds no tensors")
    step = next((header.step for header in headers.values() if header.step is not None), None)
    return Index(tensors, ranges, step)


def _header(place: Place, file: str, seen: Seen, where: str) -> safetensors.Header:
    def read(start: int, stop: int) -> bytes:
        if stop <= len(seen.head):
            return seen.head[start:stop]
        return place.read(file, start, stop, where, seen).tobytes()

    return safetensors.read_header(read, seen.size, where)


class Sharing:
    """Lets the checkpoints of a series have one index where theirs are equal: all of them may be open at once."""

    last: Index | None = None

    def __call__(self, index: Index) -> Index:
        last = self.last
        if last is None or last[:2] != index[:2]:
            self.last = last = index
        return index._replace(tensors=last.tensors, ranges=last.ranges)

    def __reduce__(self) -> tuple[type["Sharing"], tuple[()]]:
        return Sharing, ()


class Once(Generic[T]):
    """A value that is made when it is first wanted, and once in a process, whoever asks."""

    def __init__(self) -> None:
        self._made, self._lock = list[T](), threading.Lock()

    def __call__(self, make: Callable[[], T]) -> T:
        with self._lock:
            if not self._made:
                self._made.append(make())
            return self._made[0]

    def __reduce__(self) -> tuple[type["Once[T]"], tuple[()]]:
        return Once, ()
