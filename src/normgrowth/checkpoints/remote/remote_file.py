"""Checkpoints elsewhere, not opened: what `folder.Unit` is for this machine.

safetensors are read by ranges. A checkpoint in another format is fetched into the scratch folder when it is
opened, and removed when it is closed. An index is read once in a process, however often it is opened.
"""

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from normgrowth.checkpoints.checkpoint import Checkpoint
from normgrowth.checkpoints.local_files import TRAINER_STATE, grouped, open_fetched, step_of_trainer
from normgrowth.checkpoints.remote import hub
from normgrowth.checkpoints.remote import hub_download as download
from normgrowth.checkpoints.remote.remote_checkpoint import (
    AT_ONCE,
    Folder,
    Index,
    Once,
    Place,
    RemoteCheckpoint,
    Seen,
    Session,
    Sharing,
    named,
    read_index,
)
from normgrowth.checkpoints.remote.website import HubFiles
from normgrowth.errors import InputError

SMALL_FILE = 100_000_000  # bytes of an index or a trainer's log
PART = 64 << 20  # bytes in memory of a file that is fetched


@dataclass(frozen=True)
class Reading:
    """How the checkpoints of one series are read, and what they share."""

    scratch: Path | None = None
    sharing: Sharing = field(default_factory=Sharing)
    session: Session = field(default_factory=Session)
    indexes: dict[bytes, bytes] = field(default_factory=dict)  # content of *.index.json, each once


@dataclass(frozen=True, eq=False)
class RemoteUnit:
    """One checkpoint elsewhere, not opened; the counterpart of `folder.Unit`."""

    place: Folder  # where its files lie
    name: str  # the file to start from
    format: str
    alone: bool  # called by its folder, which holds nothing else
    files: dict[str, Seen | None]  # those with values, and what is known of them
    weight_map: bytes | None  # content of the index
    has_trainer: bool
    reading: Reading
    _index: Once[Index] = field(default_factory=Once, repr=False)
    _step: Once[int | None] = field(default_factory=Once, repr=False)

    @property
    def label(self) -> str:
        return self.place.show().rstrip("/") if self.alone else self.main_label

    @property
    def main_label(self) -> str:
        return self.place.show(self.name)

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
    def slow(self) -> bool:
        return not self.format.startswith("safetensors")  # it would be fetched

    def look(self) -> None:
        """Find out what the listing did not say."""
        for file, seen in self.files.items():
            if seen is None:
                self.files[file] = self.place.look(file, named(self.label, file))

    def _seen(self) -> dict[str, Seen]:
        self.look()
        return {file: seen for file, seen in self.files.items() if seen is not None}

    def fingerprint(self) -> str:
        """Changes when the checkpoint does: name, size and ETag (or time) of each of its files."""
        index = hashlib.sha256(self.weight_map or b"").hexdigest()[:16]
        files = (f"{file}:{seen.size}:{seen.tag}" for file, seen in self._seen().items())
        return ";".join((self.path.name, index, *files))

    def trainer_step(self) -> int | None:
        where = self.place.show(TRAINER_STATE)
        if not self.has_trainer:
            return None
        return self._step(lambda: step_of_trainer(self.place.content(TRAINER_STATE, SMALL_FILE, where)))

    def open(self) -> Checkpoint:
        if self.format.startswith("safetensors"):
            files = self._seen()
            index = self._index(
                lambda: self.reading.sharing(read_index(self.place, self.label, files, self.weight_map))
            )
            return _checkpoint(self.label, self.place, index, files)
        return open_fetched(self.label, self._fetch, self.reading.scratch)

    def _fetch(self, folder: Path) -> Path:
        """All its files, each under its own name; the file to start from."""
        try:
            files = self._seen()
            download.check_space(self.label, sum(seen.size for seen in files.values()), folder)
            if self.weight_map is not None:
                (folder / self.name).write_bytes(self.weight_map)
            for file, seen in files.items():
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                with (folder / file).open("wb") as out:
                    out.write(seen.head)
                    for start in range(len(seen.head), seen.size, PART):
                        stop, where = min(start + PART, seen.size), named(self.label, file)
                        out.write(self.place.read(file, start, stop, where, seen).data)
        except OSError as error:
            raise InputError(f"{folder}: cannot hold a download: {error.strerror or error}") from error
        return folder if self.format == "distributed" else folder / self.name


@dataclass(frozen=True, eq=False)
class RevisionUnit:
    """One revision of a hub repository, not opened."""

    revision: hub.Revision
    reading: Reading
    _found: Once[tuple[Index, dict[str, Seen]] | None] = field(default_factory=Once, repr=False)

    def open(self) -> Checkpoint:
        if (found := self._found(self._find)) is None:
            fetch = partial(download.fetch, self.revision)
            return open_fetched(self.revision.label, fetch, self.reading.scratch)
        return _checkpoint(self.revision.label, HubFiles(self.revision), *found)

    def _find(self) -> tuple[Index, dict[str, Seen]] | None:
        """What its headers say; None if it has no safetensors."""
        sizes, index, files = hub.chosen(self.revision)
        label, place, content = self.revision.label, HubFiles(self.revision), None
        if not (index or files[0]).endswith((".safetensors", ".safetensors.index.json")):
            return None
        if index is not None:
            content = place.content(index, SMALL_FILE, named(label, index))
            content = self.reading.indexes.setdefault(content, content)
            files = hub.shards(self.revision, index, content, sizes)
        elif len(files) > 1:
            found = grouped(
                files, format_of=lambda _: "safetensors", shards_of=lambda _: set(), show=place.show
            )
            raise InputError(f"{label}: holds {len(found)} checkpoints, not one")
        with ThreadPoolExecutor(AT_ONCE) as threads:
            looks = threads.map(lambda file: place.look(file, named(label, file)), files)
            seen = dict(zip(files, looks, strict=True))
        for file in files:
            if sizes[file] and sizes[file] != seen[file].size:
                raise InputError(f"{label}: {file} has {seen[file].size} bytes, not the {sizes[file]} listed")
        return self.reading.sharing(read_index(place, label, seen, content)), seen


def _checkpoint(label: str, place: Place, index: Index, files: Mapping[str, Seen]) -> RemoteCheckpoint:
    return RemoteCheckpoint(label, place, index.tensors, index.ranges, files, next(iter(files)), index.step)


def path_of(address: str) -> PurePosixPath:
    """The part of an address whose names can say a step: a host or a bucket cannot."""
    return PurePosixPath("/", unquote(address.partition("://")[2].partition("/")[2]))
