"""Output folders: only one command at a time writes into a folder, and every file in it is complete.

The parts that commands use:

    Workspace.open(folder, kind, request)   lock the folder, refuse another request, remove scratch files at the end
    workspace.save(result)                  records.parquet and records.json
    replacing(path)                         write a file completely or not at all
    write_json(path, object), read_json     JSON with a checksum
    AppendLog                               append to files, and retry after the disk was full
    lock_folder(folder)                     only the lock, for a folder without a request

Files in a folder:

    DIR/request.json    the kind of result and its request, written before anything else
    DIR/.lock           locked while a command writes here
    DIR/.scratch/       downloads of a running command

A folder belongs to one request. Another kind or another request is refused (`FolderMismatch`) and changes nothing,
unless `overwrite` is set; then the files of the old result are removed. Files of other programs are never removed.
"""

import errno
import json
import os
import re
import shutil
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from normgrowth.errors import FolderLocked, FolderMismatch, InputError
from normgrowth.serialization.checksums import JsonObject, seal_json, unseal_json
from normgrowth.serialization.record_schema import with_include

if TYPE_CHECKING:
    from filelock import BaseFileLock

REQUEST = "request.json"
UNKNOWN = "unknown"  # the kind of a folder whose request.json is damaged

# The files of each kind of result, except records and request.json. `overwrite` removes them.
FILES: dict[str, tuple[str, ...]] = {
    "trace": ("moments/step-*.parquet", "stripes/*.npz", "stripes/steps.json"),
    "saturation": (
        *("moments/step-*.parquet", "stripes/*.npz", "stripes/steps.json"),
        "levels/step-*.parquet",
    ),
    "degrees": (),
    "heads": (),
    "scaling": (),
    "behavior": (),
    "tracker": ("journal", "steps/*", "notes.jsonl"),
    "train": (
        *("settings.json", "state.pt", "checkpoints/step-*/*", "best/*"),
        *("tracker/journal", "tracker/steps/*", "tracker/notes.jsonl"),
        *("tracker/records.*", "tracker/request.json", "tracker/.lock"),
    ),
    "sweep": ("sweep.json", "cells/*.json"),
    "reproduction": ("claims.json", "report.html"),
    "figures": (),
}
SHARED = ("records.parquet", "records.json", REQUEST)
# Files that identify the kind of a folder without request.json and records.json.
MARKS = {
    "settings.json": "train",
    "sweep.json": "sweep",
    "claims.json": "reproduction",
    "journal": "tracker",
    "steps/part-000.arrows": "tracker",
}


class replacing:
    """Write to a temporary file in the same folder, then move it to the target; on an error, remove it."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.temporary = target.with_name(f".{target.name}.{os.getpid()}.part")

    def __enter__(self) -> Path:
        return self.temporary

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is None:
            self.temporary.replace(self.target)
        else:
            self.temporary.unlink(missing_ok=True)


class AppendLog:
    """Appends to files. A failed write is undone, kept in memory, and retried with the next append."""

    def __init__(self) -> None:
        self._queue: deque[tuple[Path, bytes]] = deque()
        self._file: Any = None
        self._path: Path | None = None

    def append(self, path: Path, content: bytes) -> None:
        """Append the content. Raises OSError if it cannot be written now; it is then retried later."""
        self._queue.append((path, content))
        self.flush()

    def flush(self) -> None:
        while self._queue:
            self._write(*self._queue[0])
            self._queue.popleft()

    def queued(self) -> dict[Path, bytes]:
        """The content that is not written yet, by file."""
        found: dict[Path, list[bytes]] = {}
        for path, content in self._queue:
            found.setdefault(path, []).append(content)
        return {path: b"".join(parts) for path, parts in found.items()}

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = self._path = None

    def _write(self, path: Path, content: bytes) -> None:
        if self._path != path:
            self.close()
            path.parent.mkdir(exist_ok=True)
            self._file, self._path = path.open("ab", buffering=0), path
        end = os.fstat(self._file.fileno()).st_size
        try:
            if self._file.write(content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self._file.truncate(end)
            raise


def refuse_foreign(path: Path, mark: bytes) -> None:
    """Raise InputError if the path is a folder, or a file without the mark, which another program wrote."""
    if path.is_dir() or (path.is_file() and mark not in path.read_bytes()):
        raise InputError(
            f"{path}: exists and was not written by normgrowth; move it, or choose another place with -o"
        )


def origin_mark(origin: str) -> str:
    """The source of a figure or page, as text that needs no escaping in SVG, PNG, PDF and HTML."""
    return f"made from [{re.sub(r'[^A-Za-z0-9./:@*,=+-]', '_', origin)}]"


def refuse_other_origin(path: Path, origin: str) -> None:
    """Raise InputError if the path is a figure or page of another source."""
    found = re.search(rb"made from \[([^]]*)\]", path.read_bytes()) if path.is_file() else None
    if found and found[0] != origin_mark(origin).encode():
        raise InputError(
            f"{path}: was made from {found[1].decode()}, not from {origin}; replace it with --overwrite "
            "(overwrite=True), or choose another place with -o"
        )


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object with a checksum, completely or not at all."""
    text = json.dumps(seal_json(content), indent=1)
    with replacing(path) as part:
        part.write_text(text + "\n", encoding="utf-8")


def read_json(path: Path) -> JsonObject:
    """A JSON object, with or without a checksum. Raises ValueError if the file is damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    return unseal_json(content)


@dataclass(frozen=True)
class FolderUse:
    """The use of a folder. request: must match before the folder is written; facts: stored, but not compared."""

    kind: str
    request: JsonObject = field(default_factory=dict)
    facts: JsonObject = field(default_factory=dict)
    partial: bool = False  # inferred from older files: missing entries match any value

    @staticmethod
    def read(folder: Path) -> "FolderUse | None":
        """The claim from request.json or from older files; None for a folder without a result."""
        path = folder / REQUEST
        if path.is_file():
            try:
                said = read_json(path)
                kind, facts = said["kind"], said["facts"]
                request = said["request"]
            except (OSError, ValueError, KeyError):
                return FolderUse(UNKNOWN)
            whole = isinstance(kind, str) and isinstance(request, dict) and isinstance(facts, dict)
            return FolderUse(kind, with_include(request), facts) if whole else FolderUse(UNKNOWN)
        return _told_by_records(folder) or _told_by_marks(folder)

    def differs(self, kind: str, request: Mapping[str, Any]) -> bool:
        return self.kind != kind or bool(self.differences(request))

    def differences(self, request: Mapping[str, Any]) -> list[str]:
        """The names of the entries in which the requests differ."""
        names = (
            [name for name in request if name in self.request]
            if self.partial
            else {**request, **self.request}
        )
        return [name for name in names if self.request.get(name) != request.get(name)]


def _told_by_records(folder: Path) -> FolderUse | None:
    try:
        fields = read_json(folder / "records.json")
    except (OSError, ValueError):
        return None
    kind, selection = fields.get("command"), fields.get("selection")
    if not isinstance(kind, str) or kind not in FILES:
        return None
    request = with_include({**fields, **(selection if isinstance(selection, dict) else {})})
    return FolderUse(kind, request, fields, partial=True)


def _told_by_marks(folder: Path) -> FolderUse | None:
    found = [mark for mark in MARKS if (folder / mark).is_file()]
    if not found:
        return None
    request = {}
    if found[0] == "claims.json":
        with suppress(OSError, ValueError, KeyError):
            request = {"scale": read_json(folder / found[0])["scale"]}
    return FolderUse(MARKS[found[0]], request, partial=True)


def lock_folder(folder: Path) -> "BaseFileLock":
    """Create the folder if needed and lock it. Raises FolderLocked if another process holds the lock."""
    from filelock import FileLock, Timeout

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise FolderLocked(folder) from None
    except OSError as error:
        raise InputError(f"{folder}: cannot be written to: {error.strerror or error}") from error
    return lock


class Writable(Protocol):
    """The part of a result that a workspace uses."""

    def write(self, folder: Path) -> None: ...


class Workspace:
    """An output folder, locked for one command at a time. Without a folder, nothing is saved.

        with Workspace.open("traces/gpt", "trace", {"include": "blocks"}) as workspace: ...

    A command that must read its input to know the request opens without one and calls `claim` before it writes.
    """

    def __init__(self, folder: Path | None, kind: str, *, overwrite: bool = False) -> None:
        self.folder, self.kind, self.overwrite = folder, kind, overwrite
        found = FolderUse.read(folder) if folder is not None else None
        self.found = found  # the result that was already here

    @staticmethod
    @contextmanager
    def open(
        folder: str | Path | None,
        kind: str,
        request: Mapping[str, Any] | None = None,
        *,
        facts: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> "Iterator[Workspace]":
        """Lock the folder; with a request, claim it. Disk errors become an InputError."""
        if folder is None:
            yield Workspace(None, kind)
            return
        if folder == "":
            raise InputError("the name of the output folder is empty; set it with -o")
        folder = Path(folder)
        lock = lock_folder(folder)
        try:
            workspace = Workspace(folder, kind, overwrite=overwrite)
            if request is not None:
                workspace.claim(request, facts)
            yield workspace
        except OSError as error:
            # Errors from reading are already InputErrors, so this one comes from writing here.
            raise InputError(
                f"{error.filename or folder}: {error.strerror or error}; results saved earlier are kept in {folder}"
            ) from error
        finally:
            shutil.rmtree(folder / ".scratch", ignore_errors=True)
            lock.release()

    @property
    def scratch(self) -> Path | None:
        """A folder for downloads, removed when the workspace is closed."""
        if self.folder is None:
            return None
        path = self.folder / ".scratch"
        path.mkdir(exist_ok=True)
        return path

    def save(self, result: Writable) -> None:
        """Write the files of a result, if there is a folder."""
        if self.folder is not None:
            result.write(self.folder)

    def check(self, request: Mapping[str, Any]) -> None:
        """Raise FolderMismatch if the folder holds another result, unless overwrite is set."""
        request = _plain(request)
        if self.found is None or self.overwrite or not self.found.differs(self.kind, request):
            return
        assert self.folder is not None
        if self.found.kind != self.kind:
            raise FolderMismatch(self.folder, {"kind": self.found.kind}, {"kind": self.kind})
        names = self.found.differences(request)
        old, new = ({name: said.get(name) for name in names} for said in (self.found.request, request))
        raise FolderMismatch(self.folder, {"kind": self.kind, **old}, {"kind": self.kind, **new})

    def claim(self, request: Mapping[str, Any], facts: Mapping[str, Any] | None = None) -> None:
        """Write the request into the folder, before anything else; with overwrite, remove the old result first."""
        if self.folder is None:
            return
        self.check(request)
        for part in (*self.folder.glob(".*.[0-9]*.part"), *self.folder.glob("*/.*.[0-9]*.part")):
            part.unlink(missing_ok=True)  # half-written by a killed process
        if self.overwrite and self.found is not None:
            self.clear()
        wanted = FolderUse(self.kind, _plain(request), _plain(facts or {}))
        if self.found != wanted:
            said = {"format": 1, "kind": wanted.kind, "request": wanted.request, "facts": wanted.facts}
            write_json(self.folder / REQUEST, said)
            self.found = wanted

    def clear(self) -> None:
        """Remove the files of the current result. request.json is removed last, so a kill leaves the folder claimed."""
        assert self.folder is not None
        kinds = dict.fromkeys((self.kind, *([self.found.kind] if self.found else ())))
        patterns = [pattern for kind in kinds for pattern in FILES.get(kind, ())]
        for pattern in (*patterns, *SHARED):
            for path in self.folder.glob(pattern):
                if path.is_file() or path.is_symlink():
                    path.unlink(missing_ok=True)
        parents = {parent for pattern in patterns for parent in Path(pattern).parents if parent.parts}
        for parent in sorted(parents, key=lambda p: -len(p.parts)):
            for path in self.folder.glob(str(parent)):
                if path.is_dir() and not any(path.iterdir()):
                    path.rmdir()
        self.found = None


def _plain(content: Mapping[str, Any]) -> JsonObject:
    """The content converted as writing to JSON and reading back does."""
    return json.loads(json.dumps(dict(content)))
