"""Remote checkpoints before they are opened: the counterpart of `local_files.LocalFile`.

safetensors and TensorFlow checkpoints are read by byte ranges. A checkpoint in another format is downloaded to the
scratch folder when it is opened, and removed when it is closed. A process reads each index only once.
"""

import hashlib
import shutil
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from normgrowth import engine
from normgrowth.checkpoints.checkpoint import Checkpoint
from normgrowth.checkpoints.file_groups import TRAINER_STATE, step_of_trainer
from normgrowth.checkpoints.formats.registry import FORMATS
from normgrowth.checkpoints.local_files import open_fetched
from normgrowth.checkpoints.remote.remote_checkpoint import (
    RemoteCheckpoint,
    named,
    open_bundle,
    open_safetensors,
)
from normgrowth.checkpoints.remote.session import LazyValue, RemoteSession
from normgrowth.checkpoints.remote.transport import AT_ONCE, FileInfo, FileStore
from normgrowth.errors import InputError

SMALL_FILE = 100_000_000  # maximum bytes of an index or a trainer's log
PART = 8 << 20  # bytes of a download that are requested at a time


@dataclass(frozen=True, eq=False)
class RemoteFile:
    """One remote checkpoint, not opened."""

    store: FileStore  # has its files
    name: str  # the file to open
    format: str
    alone: bool  # its folder has no other checkpoint, so it is named by the folder
    files: dict[str, FileInfo | None]  # files with values, and their size and tag if known
    weight_map: bytes | None  # content of the index
    has_trainer: bool
    session: RemoteSession
    _opened: LazyValue[RemoteCheckpoint] = field(default_factory=LazyValue, repr=False)
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
            return open_fetched(self.label, self.download, self.session.scratch)
        return self._opened(self._open)

    def _open(self) -> RemoteCheckpoint:
        files = self._infos()
        if self.format == "tensorflow":
            return self.session.share_index(open_bundle(self.store, self.label, self.name, files))
        return self.session.share_index(open_safetensors(self.store, self.label, files, self.weight_map))

    def download(self, folder: Path) -> Path:
        """Download all files into a folder; returns the path to open."""
        try:
            files = self._infos()
            _check_space(self.label, sum(info.size for info in files.values()), folder)
            if self.weight_map is not None:
                (folder / self.name).write_bytes(self.weight_map)
            for file, info in files.items():
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                (folder / file).write_bytes(info.head)
            parts = (
                (file, start)
                for file, info in files.items()
                for start in range(len(info.head), info.size, PART)
            )
            for _ in engine.map(partial(self._download_part, folder), parts, workers=AT_ONCE):
                pass
        except OSError as error:
            raise InputError(f"{folder}: cannot write the download: {error.strerror or error}") from error
        return folder if self.format == "distributed" else folder / self.name

    def _download_part(self, folder: Path, part: tuple[str, int]) -> None:
        file, start = part
        info = self.files[file]
        assert info is not None, "`download` has requested the sizes of all files"
        content = self.store.read(file, start, min(start + PART, info.size), named(self.label, file), info)
        with (folder / file).open("r+b") as out:
            out.seek(start)
            out.write(content.data)


def _check_space(label: str, needed: int, into: Path) -> None:
    free = shutil.disk_usage(into).free
    if needed > free:
        raise InputError(
            f"{label}: needs {needed / 1e9:.3g} GB, but {into} has {free / 1e9:.3g} GB free; "
            "free some space, or choose a folder on another disk"
        )


def path_of(address: str) -> PurePosixPath:
    """The path of an address without host or bucket, whose names do not have a step."""
    return PurePosixPath("/", unquote(address.partition("://")[2].partition("/")[2]))
