"""Output folders: only one command at a time writes into a folder, and every file in it is complete.

The parts that commands use:

    Workspace.open(folder, kind, request)   lock the folder, refuse another request, remove scratch files at the end
    workspace.save(result)                  records.parquet and records.json
    ResultFolder(folder, kind, request)     a folder that is checked at the start and written at the end
    Cache(folder, codec)                    checked files of intermediate results, one per name
    replacing(path)                         write a file or folder completely or not at all
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
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from normgrowth.errors import FolderLocked, FolderMismatch, InputError
from normgrowth.serialization.checksums import OBJECT, FileCodec, JsonObject
from normgrowth.serialization.regular_files import LARGEST_CACHED, read_regular

if TYPE_CHECKING:
    from filelock import BaseFileLock

T = TypeVar("T")
REQUEST = "request.json"
UNKNOWN = "unknown"  # the kind of a folder whose request.json is damaged
WITHOUT_REQUEST = "without request"  # the kind of a folder that has a result and no request.json
RESULTS = ("records.parquet", "claims.json", "steps/part-*.arrows")  # files of results

# The files of each kind of result, except records and request.json. `overwrite` removes them.
FILES: dict[str, tuple[str, ...]] = {
    "trace": ("moments/step-*.parquet", "stripes/*.npz", "stripes/steps.json", "scalars/step-*.npz"),
    "saturation": (
        *("moments/step-*.parquet", "stripes/*.npz", "stripes/steps.json"),
        "levels/step-*.parquet",
    ),
    "degrees": (),
    "heads": (),
    "scaling": (),
    "behavior": (),
    "tracker": ("steps/*", "notes.jsonl"),
    "run": (
        *("state.pt", "checkpoints/step-*/*", "best/*"),
        *("tracker/steps/*", "tracker/notes.jsonl"),
        *("tracker/records.*", "tracker/request.json", "tracker/.lock"),
    ),
    "sweep": ("cells/*.json",),
    "reproduction": ("claims.json", "report.html", "finished.json"),
    "figures": (),
    WITHOUT_REQUEST: ("claims.json", "steps/*", "notes.jsonl"),
}
SHARED = ("records.parquet", "records.json", REQUEST)
# Files whose names depend on everything they contain, so that another request of the same kind can use them.
REUSABLE = {"sweep": ("cells/*.json",)}
# Kinds that need a folder without other files. With overwrite, a run or sweep with the same request still resumes.
ALONE = ("run", "sweep")


class replacing:
    """Write to a temporary file or folder next to the target, then move it there; on an error, remove it."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.temporary, self.aside = (
            target.with_name(f".{target.name}.{os.getpid()}.{what}") for what in ("part", "old")
        )

    def __enter__(self) -> Path:
        return self.temporary

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            if error is None:
                if self.temporary.is_dir() and self.target.is_dir():  # a folder cannot replace another one
                    self.target.rename(self.aside)
                self.temporary.replace(self.target)
        finally:
            _remove(self.temporary)
            _restore(self.aside, self.target)


def tidy(folder: Path) -> None:
    """Remove or restore what `replacing` left in a folder and its subfolders when its process was killed."""
    for pattern in (".*.[0-9]*.part", "*/.*.[0-9]*.part"):
        for path in folder.glob(pattern):
            _remove(path)
    for pattern in (".*.[0-9]*.old", "*/.*.[0-9]*.old"):
        for path in folder.glob(pattern):
            if match := re.fullmatch(r"\.(.+)\.\d+\.old", path.name):
                _restore(path, path.with_name(match[1]))


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _restore(aside: Path, target: Path) -> None:
    """Move a folder back that was put aside, unless its replacement is complete."""
    if aside.is_dir() and not target.exists():
        aside.rename(target)
    _remove(aside)


class Cache(Generic[T]):
    """Intermediate results in one folder, a file per name. Without a folder, nothing is kept.

    Every file has a checksum. A damaged file counts as missing, so its content is computed again.
    """

    def __init__(self, folder: Path | None, codec: FileCodec[T]) -> None:
        self.folder, self.codec = folder, codec

    def put(self, name: str, value: T) -> None:
        if self.folder is not None:
            content = self.codec.encode(value)
            self.folder.mkdir(exist_ok=True)
            with replacing(self._path(self.folder, name)) as part:
                part.write_bytes(content)

    def get(self, name: str) -> T | None:
        if self.folder is None:
            return None
        try:
            return self.codec.decode(read_regular(self._path(self.folder, name), LARGEST_CACHED))
        except (OSError, ValueError):
            return None

    def names(self) -> list[str]:
        """The names of all files, also of damaged ones."""
        if self.folder is None:
            return []
        return sorted(path.name.removesuffix(self.codec.suffix) for path in self._files(self.folder))

    def clear(self) -> None:
        """Remove all files."""
        if self.folder is not None:
            for path in self._files(self.folder):
                path.unlink(missing_ok=True)
            with suppress(OSError):  # missing, or with files of other programs
                self.folder.rmdir()

    def _files(self, folder: Path) -> list[Path]:
        return [path for path in folder.glob(f"*{self.codec.suffix}") if not path.name.startswith(".")]

    def _path(self, folder: Path, name: str) -> Path:
        return folder / f"{name}{self.codec.suffix}"


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
    with replacing(path) as part:
        part.write_bytes(OBJECT.encode(dict(content)))


def read_json_object(path: Path) -> JsonObject:
    """A JSON object, with or without a checksum. Raises ValueError if the file is damaged."""
    return OBJECT.decode(read_regular(path))


@dataclass(frozen=True)
class FolderUse:
    """The use of a folder. request: must match before the folder is written; facts: stored, but not compared."""

    kind: str
    request: JsonObject = field(default_factory=dict)
    facts: JsonObject = field(default_factory=dict)

    @staticmethod
    def read(folder: Path) -> "FolderUse | None":
        """The use in request.json; None for a folder without a result."""
        path = folder / REQUEST
        if not path.is_file():
            there = any(any(folder.glob(pattern)) for pattern in RESULTS)
            return FolderUse(WITHOUT_REQUEST) if there else None
        try:
            said = read_json_object(path)
            kind, request, facts = said["kind"], said["request"], said["facts"]
        except (OSError, ValueError, KeyError):
            return FolderUse(UNKNOWN)
        whole = isinstance(kind, str) and isinstance(request, dict) and isinstance(facts, dict)
        return FolderUse(kind, request, facts) if whole else FolderUse(UNKNOWN)

    def differences(self, request: Mapping[str, Any]) -> tuple[JsonObject, JsonObject]:
        """The entries in which the requests differ, here and in `request`."""
        here = self.request
        names = [name for name in {**request, **here} if here.get(name) != request.get(name)]
        return {name: here.get(name) for name in names}, {name: request.get(name) for name in names}

    def write(self, folder: Path) -> None:
        content = {"format": 1, "kind": self.kind, "request": self.request, "facts": self.facts}
        write_json(folder / REQUEST, content)


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

    def __init__(
        self,
        folder: Path | None,
        kind: str,
        *,
        overwrite: bool = False,
    ) -> None:
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
        _refuse_empty(folder)
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

    def cache(self, name: str, codec: FileCodec[T]) -> Cache[T]:
        """Intermediate results in a subfolder."""
        return Cache(None if self.folder is None else self.folder / name, codec)

    def save(self, result: Writable) -> None:
        """Write the files of a result, if there is a folder."""
        if self.folder is not None:
            result.write(self.folder)

    def check(self, request: Mapping[str, Any]) -> None:
        """Raise FolderMismatch if the folder holds another result, unless overwrite is set."""
        if not self.overwrite and (differs := self._difference(request)) is not None:
            assert self.folder is not None
            raise FolderMismatch(self.folder, *differs)

    def _difference(self, request: Mapping[str, Any]) -> tuple[JsonObject, JsonObject] | None:
        """The kind and the entries of the present result and of the request, if they differ."""
        if self.found is None:
            return None
        if self.found.kind != self.kind:
            return {"kind": self.found.kind}, {"kind": self.kind}
        here, wanted = self.found.differences(_plain(request))
        return ({"kind": self.kind, **here}, {"kind": self.kind, **wanted}) if wanted else None

    def claim(self, request: Mapping[str, Any], facts: Mapping[str, Any] | None = None) -> None:
        """Write the request into the folder, before anything else; with overwrite, remove the old result first."""
        if self.folder is None:
            return
        self.check(request)
        tidy(self.folder)
        if self.found is None and self.kind in ALONE:
            self._refuse_other_files(self.folder)
        resumes = self.kind in ALONE and self._difference(request) is None
        if self.overwrite and self.found is not None and not resumes:
            self.clear()
        wanted = FolderUse(self.kind, _plain(request), _plain(facts or {}))
        if self.found != wanted:
            wanted.write(self.folder)
            self.found = wanted

    def _refuse_other_files(self, folder: Path) -> None:
        other = next((path.name for path in sorted(folder.iterdir()) if not path.name.startswith(".")), None)
        if other is not None:
            raise InputError(f"{folder} contains {other} but no {self.kind}; choose another folder")

    def clear(self) -> None:
        """Remove the files of the current result. request.json is removed last, so a kill leaves the folder claimed."""
        assert self.folder is not None
        kinds = dict.fromkeys((self.kind, *([self.found.kind] if self.found else ())))
        kept = REUSABLE.get(self.kind, ()) if len(kinds) == 1 else ()
        patterns = [pattern for kind in kinds for pattern in FILES.get(kind, ()) if pattern not in kept]
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


class ResultFolder:
    """An output folder of a result that is written once, at the end. request: the options that determine the result.

    Raises FolderMismatch, before anything is measured, if the folder contains another result and `overwrite` is not
    set. Without a folder, nothing is saved.
    """

    def __init__(
        self, folder: Path | str | None, kind: str, request: Mapping[str, Any], overwrite: bool
    ) -> None:
        _refuse_empty(folder)
        self.folder = None if folder is None else Path(folder)
        self.kind, self.request, self.overwrite = kind, request, overwrite
        Workspace(self.folder, kind, overwrite=overwrite).check(request)

    def write(self, result: Writable) -> None:
        with Workspace.open(self.folder, self.kind, self.request, overwrite=self.overwrite) as workspace:
            workspace.save(result)


def _refuse_empty(folder: str | Path | None) -> None:
    if folder == "":
        raise InputError("the name of the output folder is empty; set it with -o")


def _plain(content: Mapping[str, Any]) -> JsonObject:
    """The content converted as writing to JSON and reading back does."""
    return json.loads(json.dumps(dict(content)))
