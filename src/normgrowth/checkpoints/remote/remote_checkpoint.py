"""Checkpoints that stay where they are: only headers and the values asked for come over the network.

A `FileStore` is a folder elsewhere (`website.Website`, `website.HubFiles`, `object_store.Bucket`) that hands out
exact byte ranges of its files. It pickles as an address; keys and passwords do not go with it, so
another process opens it with its own. No byte is asked for twice: first the eight bytes that say how
long the header is, then the header, then what `read` is asked for. One request for each range: whoever
wants several at a time calls `read` from several threads.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normgrowth.checkpoints.checkpoint import (
    STORAGE,
    Checksums,
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
from normgrowth.checkpoints.formats.tensorflow.bundle import INDEX, BundleFiles, read_bundle
from normgrowth.checkpoints.remote.transport import AT_ONCE, Bytes, FileInfo, FileStore
from normgrowth.checkpoints.storage.crc32c import crc32c
from normgrowth.engine import gc_paused
from normgrowth.errors import DamagedTensor, InputError


@dataclass
class RemoteCheckpoint:
    """Tensors that are byte ranges of files elsewhere. Pickles as its index and the address."""

    is_remote: ClassVar[bool] = True
    can_stay_open: ClassVar[bool] = True
    label: str
    store: FileStore
    tensors: dict[str, Tensor]  # possibly shared: not to be changed
    ranges: Ranges
    files: Mapping[str, FileInfo]
    prefix: str = ""  # in front of what pieces call their file: the whole name of a single file
    step: int | None = None
    aliases: dict[str, str] = field(default_factory=dict)
    reads_whole: bool = True
    on_close: Callable[[], None] | None = None
    notes: tuple[str, ...] = ()
    checksums: Checksums = field(default_factory=dict, repr=False)  # as in `MappedCheckpoint`

    def read(self, file: str, start: int, stop: int, into: Bytes | None = None) -> Bytes:
        """These bytes of a file, asked for with one request; safe from several threads at once.

        into: memory for them.
        """
        file = file if file in self.files else f"{self.prefix}{file}"
        info, where = self.files[file], named(self.label, file)
        if not 0 <= start <= stop <= info.size:
            raise InputError(f"{where}: has {info.size} bytes, asked for those from {start} to {stop}")
        if start == stop:
            return np.zeros(0, np.uint8)
        return self.store.read(file, start, stop, where, info, into)

    def values(self, wanted: Sequence[tuple[str, int, int, int]], memory: Bytes) -> list[np.ndarray]:
        """Values of tensors, each of one piece and from one to before another.

        What lies side by side in a file is asked for at once. memory: at least as many bytes as all of them have.
        """
        spans: list[tuple[str, int, int]] = []  # file, first byte, behind the last
        runs: list[list[int]] = []  # of spans that touch
        for i, (name, place, start, stop) in enumerate(wanted):
            piece, width = self.ranges[name][place], STORAGE[self.tensors[name].dtype].itemsize
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
        found: list[np.ndarray] = []
        for piece in self.ranges[name]:
            raw = self.read(piece.file, piece.offset, piece.offset + piece.numel * bits.itemsize)
            if self.checksums and raw.size and crc32c(raw) != self.checksums[piece.file, piece.offset]:
                raise self.damaged(name, piece.file)
            found.append(raw.view(bits))
        return found

    def damaged(self, name: str, file: str) -> DamagedTensor:
        return DamagedTensor(named(self.label, f"{self.prefix}{file}"), name)

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
    prefix: str
    checksums: Checksums
    notes: tuple[str, ...] = ()

    def checked(self, label: str) -> "Index":
        """With names as the model has them; an error if there are none."""
        if not self.tensors:
            raise InputError(f"{label}: holds no tensors")
        if (old_name := without_wrappers(self.tensors)) is None:
            return self
        tensors, ranges = renamed_index(self.tensors, self.ranges, old_name)
        return self._replace(tensors=tensors, ranges=ranges)


def read_bundle_index(store: FileStore, label: str, index: str, files: Mapping[str, FileInfo]) -> Index:
    """Of a checkpoint of TensorFlow: from its index file, and the few bytes of its step and graph."""
    prefix = index.removesuffix(INDEX)

    def read(end: str, start: int, stop: int) -> bytes:
        file = f"{prefix}{end}"
        return (
            store.read(file, start, stop, named(label, file), files[file]).tobytes() if stop > start else b""
        )

    sizes = {file.removeprefix(prefix): info.size for file, info in files.items()}
    with gc_paused():
        found = read_bundle(BundleFiles(sizes, read, lambda end: named(label, f"{prefix}{end}")))
    return Index(found.tensors, found.ranges, found.step, prefix, found.checksums, found.notes).checked(label)


def read_index(
    store: FileStore, label: str, files: Mapping[str, FileInfo], weight_map: bytes | None
) -> Index:
    """From the headers of its files: of one, or of the shards that the content of an index names."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        found = threads.map(lambda file: _header(store, file, files[file], named(label, file)), files)
        headers = dict(zip(files, found, strict=True))
    tensors: dict[str, Tensor] = {}
    ranges = Ranges()
    with gc_paused():
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
        step = next((header.step for header in headers.values() if header.step is not None), None)
        prefix = next(iter(files)) if weight_map is None else ""
        return Index(tensors, ranges, step, prefix, {}).checked(label)


def _header(store: FileStore, file: str, info: FileInfo, where: str) -> safetensors.Header:
    def read(start: int, stop: int) -> bytes:
        if stop <= len(info.head):
            return info.head[start:stop]
        return store.read(file, start, stop, where, info).tobytes()

    return safetensors.read_header(read, info.size, where)
