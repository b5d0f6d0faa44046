"""Remote checkpoints: only headers and requested values are transferred over the network.

A `FileStore` is a remote folder (`website.Website`, `website.HubFiles`, `object_store.Bucket`) that returns exact byte
ranges of its files. It pickles as an address without credentials, so another process uses its own. No byte is
requested twice: first the eight bytes with the length of the header, then the header, then the ranges passed to `read`.
Each range is one request; to make several at a time, call `read` from several threads.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import numpy as np

from normgrowth.checkpoints.checkpoint import STORAGE, Checkpoint, Piece, Ranges, Tensor, storage_dtype
from normgrowth.checkpoints.formats import safetensors
from normgrowth.checkpoints.formats.tensorflow.bundle import INDEX, BundleFiles, read_bundle
from normgrowth.checkpoints.remote.transport import AT_ONCE, Bytes, FileInfo, FileStore
from normgrowth.checkpoints.storage.crc32c import crc32c
from normgrowth.engine import gc_paused
from normgrowth.errors import DamagedTensor, InputError


@dataclass
class RemoteCheckpoint(Checkpoint):
    """Tensors that are byte ranges of remote files. Pickles as its index and the address."""

    is_remote: ClassVar[bool] = True
    store: FileStore
    files: Mapping[str, FileInfo]
    _: KW_ONLY
    prefix: str = ""  # prefix of the file names in pieces; for a single file, its whole name
    reads_whole: bool = True

    def read(self, file: str, start: int, stop: int, into: Bytes | None = None) -> Bytes:
        """The bytes from start to stop of a file, with one request; thread-safe.

        into: buffer to read into.
        """
        file = file if file in self.files else f"{self.prefix}{file}"
        info, where = self.files[file], named(self.label, file)
        if not 0 <= start <= stop <= info.size:
            raise InputError(f"{where}: cannot read bytes {start} to {stop} of {info.size}")
        if start == stop:
            return np.zeros(0, np.uint8)
        return self.store.read(file, start, stop, where, info, into)

    def values(self, wanted: Sequence[tuple[str, int, int, int]], memory: Bytes) -> list[np.ndarray]:
        """Values of tensors. wanted: (name, index of the piece, first value, end) of each.

        Adjacent ranges of a file are read with one request. memory: a buffer of at least the total size.
        """
        spans: list[tuple[str, int, int]] = []  # file, first byte, end
        runs: list[list[int]] = []  # indices of adjacent spans
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
        bits = storage_dtype(self.label, name, self.tensors[name].dtype)
        found: list[np.ndarray] = []
        for piece in self.ranges[name]:
            raw = self.read(piece.file, piece.offset, piece.offset + piece.numel * bits.itemsize)
            if self.checksums and raw.size and crc32c(raw) != self.checksums[piece.file, piece.offset]:
                raise self.damaged(name, piece.file)
            found.append(raw.view(bits))
        return found

    def damaged(self, name: str, file: str) -> DamagedTensor:
        return DamagedTensor(named(self.label, f"{self.prefix}{file}"), name)


def named(label: str, file: str) -> str:
    """The name of a checkpoint's file in messages."""
    return label if label.endswith(f"/{file}") else f"{label}: {file}"


def open_bundle(store: FileStore, label: str, index: str, files: Mapping[str, FileInfo]) -> RemoteCheckpoint:
    """Open a TensorFlow checkpoint: read its index file and the few bytes of its step and object graph."""
    prefix = index.removesuffix(INDEX)

    def read(end: str, start: int, stop: int) -> bytes:
        file = f"{prefix}{end}"
        return (
            store.read(file, start, stop, named(label, file), files[file]).tobytes() if stop > start else b""
        )

    sizes = {file.removeprefix(prefix): info.size for file, info in files.items()}
    with gc_paused():
        found = read_bundle(BundleFiles(sizes, read, lambda end: named(label, f"{prefix}{end}")))
    return RemoteCheckpoint(
        label,
        found.tensors,
        found.ranges,
        store,
        files,
        prefix=prefix,
        step=found.step,
        notes=found.notes,
        checksums=found.checksums,
    ).without_wrappers()


def open_safetensors(
    store: FileStore, label: str, files: Mapping[str, FileInfo], weight_map: bytes | None
) -> RemoteCheckpoint:
    """Open a safetensors checkpoint: read the header of its file or the headers of its shards."""
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
                raise InputError(f"{label}: its index lists tensor {name} in {file}, which does not have it")
            tensors[name] = header.tensors[name]
            # A single file has no name here, so the checkpoints of a series can share one index.
            called = file if weight_map is not None else ""
            ranges[name] = tuple(Piece(called, piece.offset, piece.numel) for piece in header.ranges[name])
        step = next((header.step for header in headers.values() if header.step is not None), None)
        prefix = next(iter(files)) if weight_map is None else ""
        found = RemoteCheckpoint(label, tensors, ranges, store, files, prefix=prefix, step=step)
        return found.without_wrappers()


def _header(store: FileStore, file: str, info: FileInfo, where: str) -> safetensors.Header:
    def read(start: int, stop: int) -> bytes:
        if stop <= len(info.head):
            return info.head[start:stop]
        return store.read(file, start, stop, where, info).tobytes()

    return safetensors.read_header(read, info.size, where)
