"""Remote checkpoints before they are opened: the counterpart of `local_files.LocalFile`.

safetensors and TensorFlow checkpoints are read by byte ranges. A checkpoint in another format is downloaded to the
scratch folder when it is opened, and removed when it is closed. A process reads each index only once.
"""

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from normgrowth.checkpoints.checkpoint import Checkpoint
from normgrowth.checkpoints.file_groups import TRAINER_STATE, group_files, step_of_trainer
from normgrowth.checkpoints.formats.registry import FORMATS, format_of_name
from normgrowth.checkpoints.local_files import open_fetched
from normgrowth.checkpoints.remote.hub import hub_download as download
from normgrowth.checkpoints.remote.hub import revisions as hub
from normgrowth.checkpoints.remote.remote_checkpoint import (
    Index,
    RemoteCheckpoint,
    named,
    read_bundle_index,
    read_remote_index,
)
from normgrowth.checkpoints.remote.session import LazyValue, RemoteSession
from normgrowth.checkpoints.remote.transport import AT_ONCE, FileInfo, FileStore, ListableStore
from normgrowth.checkpoints.remote.web.website import HubFiles
from normgrowth.errors import InputError

SMALL_FILE = 100_000_000  # maximum bytes of an index or a trainer's log
PART = 64 << 20  # bytes in memory while a file is downloaded


@dataclass(frozen=True, eq=False)
class RemoteFile:
    """One remote checkpoint, not opened."""

    store: ListableStore  # has its files
    name: str  # the file to open
    format: str
    alone: bool  # its folder has no other checkpoint, so it is named by the folder
    files: dict[str, FileInfo | None]  # files with values, and their size and tag if known
    weight_map: bytes | None  # content of the index
    has_trainer: bool
    session: RemoteSession
    _index: LazyValue[Index] = field(default_factory=LazyValue, repr=False)
    _step: LazyValue[int | None] = field(default_factory=LazyValue, repr=False)

    @property
    def label(self) -> str:
        return self.store.show().rstrip("/") if self.alone else self.main_label

    @property
    def main_label(self) -> str:
        return self.store.show(self.name)

    @property
    def path(self) -> PurePosixPath:
        return path_of(self.label)

    @property
    def main(self) -> PurePosixPath:
        return path_of(self.main_label)

    @property
    def above(self) -> str:
        return self.path.parent.name

    @property
    def fetched(self) -> bool:
        """Whether opening downloads the whole checkpoint."""
        return not FORMATS[self.format].by_ranges

    def stat(self) -> None:
        """Request the size and tag of files for which the listing does not have them."""
        for file, info in self.files.items():
            if info is None:
                self.files[file] = self.store.stat(file, named(self.label, file))

    def _infos(self) -> dict[str, FileInfo]:
        self.stat()
        return {file: info for file, info in self.files.items() if info is not None}

    def fingerprint(self) -> str:
        """Text that changes if the checkpoint changes: name, size and ETag (or time) of each of its files."""
        index = hashlib.sha256(self.weight_map or b"").hexdigest()[:16]
        files = (f"{file}:{info.size}:{info.tag}" for file, info in self._infos().items())
        return ";".join((self.path.name, index, *files))

    def trainer_step(self) -> int | None:
        where = self.store.show(TRAINER_STATE)
        if not self.has_trainer:
            return None
        return self._step(lambda: step_of_trainer(self.store.content(TRAINER_STATE, SMALL_FILE, where)))

    def open(self) -> Checkpoint:
        if self.fetched:
            return open_fetched(self.label, self._fetch, self.session.scratch)
        files = self._infos()
        return _checkpoint(self.label, self.store, self._index(partial(self._read_index, files)), files)

    def _read_index(self, files: dict[str, FileInfo]) -> Index:
        if self.format == "tensorflow":
            found = read_bundle_index(self.store, self.label, self.name, files)
        else:
            found = read_remote_index(self.store, self.label, files, self.weight_map)
        return self.session.shared_index(found)

    def _fetch(self, folder: Path) -> Path:
        """Download all files into a folder; returns the path to open."""
        try:
            files = self._infos()
            download.check_space(self.label, sum(info.size for info in files.values()), folder)
            if self.weight_map is not None:
                (folder / self.name).write_bytes(self.weight_map)
            for file, info in files.items():
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                with (folder / file).open("wb") as out:
                    out.write(info.head)
                    for start in range(len(info.head), info.size, PART):
                        stop, where = min(start + PART, info.size), named(self.label, file)
                        out.write(self.store.read(file, start, stop, where, info).data)
        except OSError as error:
            raise InputError(f"{folder}: cannot write the download: {error.strerror or error}") from error
        return folder if self.format == "distributed" else folder / self.name


@dataclass(frozen=True, eq=False)
class RemoteRevision:
    """One revision of a hub repository, not opened."""

    revision: hub.Revision
    session: RemoteSession
    _found: LazyValue[tuple[Index, dict[str, FileInfo]] | None] = field(default_factory=LazyValue, repr=False)

    def open(self) -> Checkpoint:
        if (found := self._found(self._find)) is None:
            fetch = partial(download.fetch, self.revision)
            return open_fetched(self.revision.label, fetch, self.session.scratch)
        return _checkpoint(self.revision.label, HubFiles(self.revision, self.session), *found)

    def _find(self) -> tuple[Index, dict[str, FileInfo]] | None:
        """The index and the files; None if the format cannot be read by ranges."""
        sizes, index, files = hub.pick_files(self.revision)
        label, store, content = self.revision.label, HubFiles(self.revision, self.session), None
        format = format_of_name(index or files[0], files) or "distributed"
        if not FORMATS[format].by_ranges:
            return None
        if index is not None:
            content = store.content(index, SMALL_FILE, named(label, index))
            content = self.session.weight_maps.setdefault(content, content)
            files = hub.shards(self.revision, index, content, sizes)
        else:
            found = group_files(
                files,
                format_of=lambda name: format_of_name(name, files),
                shards_of=lambda _: set(),
                show=store.show,
            )
            if len(found) > 1:
                raise InputError(f"{label}: expected one checkpoint, got {len(found)}")
        with ThreadPoolExecutor(AT_ONCE) as threads:
            looks = threads.map(lambda file: store.stat(file, named(label, file)), files)
            info = dict(zip(files, looks, strict=True))
        for file in files:
            if sizes[file] and sizes[file] != info[file].size:
                raise InputError(
                    f"{label}: {file} has {info[file].size} bytes, but the hub lists {sizes[file]}"
                )
        if format == "tensorflow":
            read = read_bundle_index(store, label, files[0], info)
        else:
            read = read_remote_index(store, label, info, content)
        return self.session.shared_index(read), info


def _checkpoint(
    label: str, store: FileStore, index: Index, files: Mapping[str, FileInfo]
) -> RemoteCheckpoint:
    return RemoteCheckpoint(
        label,
        store,
        index.tensors,
        index.ranges,
        files,
        index.prefix,
        index.step,
        notes=index.notes,
        checksums=index.checksums,
    )


def path_of(address: str) -> PurePosixPath:
    """The path of an address without host or bucket, whose names do not have a step."""
    return PurePosixPath("/", unquote(address.partition("://")[2].partition("/")[2]))
