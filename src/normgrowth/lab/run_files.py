"""The folder of a training run of the lab, and how it is never left half written.

settings.json            what the run is; another run is refused
state.pt                 weights, optimizer, step and evaluations of a moment: where to go on from
checkpoints/step-…/      a series of models that every command reads
best/                    the checkpoint with the lowest development loss
tracker/                 the tracker's records; `normgrowth watch` shows them as they come
records.parquet, .json   evaluations, and at the end the tracker's rows of model and layers beside them
"""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile, ZipFile

import torch

from normgrowth.errors import FolderMismatch, InputError, SchemaError, is_mistake
from normgrowth.lab.settings import TrainSettings, difference
from normgrowth.network.models.encoder_folder import write
from normgrowth.network.models.encoders import LanguageModel
from normgrowth.schema import read_json
from normgrowth.stored_result import FILE
from normgrowth.workspace import Workspace, replacing, write_json

if TYPE_CHECKING:
    from filelock import BaseFileLock

    from normgrowth.lab.run import Run

SETTINGS, STATE, SERIES, BEST, TRACKER = "settings.json", "state.pt", "checkpoints", "best", "tracker"


class RunFolder:
    """Held by one run at a time; on other ranks than the first it only reads."""

    def __init__(self, folder: Path, lock: "BaseFileLock | None") -> None:
        self.path, self._lock = folder, lock
        self.name = folder.resolve().name  # "." has none of its own

    @staticmethod
    def open(
        out: str | Path, settings: TrainSettings, facts: Mapping[str, Any], *, overwrite: bool = False
    ) -> "RunFolder":
        """Lock it, and see that it is empty or holds this run. facts: what the settings stand for (the corpus).

        overwrite: remove another result that is there.
        """
        from filelock import FileLock, Timeout

        folder, new = Path(out), {**asdict(settings), **facts}
        lock = FileLock(folder / ".lock", timeout=0)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
            file = folder / SETTINGS
            for rest in folder.glob(f".{SETTINGS}.*.part"):  # of a run that was killed at once
                rest.unlink()
            if overwrite:
                _clear(folder, new)
            if file.is_file():
                if different := difference(read_json(file, dict, advice="--overwrite removes the run"), new):
                    old, new = ({"kind": "train", **said} for said in different)
                    raise FolderMismatch(folder, old, new)
                _tidy(folder)
            elif strangers := [path.name for path in folder.iterdir() if path.name != ".lock"]:
                raise InputError(
                    f"{folder}: holds {strangers[0]} but no run of this kind; choose another folder"
                )
            else:
                write_json(file, new)
            return RunFolder(folder, lock)
        except Timeout:
            raise InputError(f"{folder}: another run is writing here; choose another folder") from None
        except OSError as error:
            lock.release()
            raise InputError(f"{folder}: cannot be written to: {error.strerror or error}") from error
        except InputError:
            lock.release()
            raise

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def load(self) -> dict[str, Any] | None:
        """The last state, or None at the beginning."""
        path = self.path / STATE
        if not path.is_file():
            return None
        try:
            if (damaged := ZipFile(path).testzip()) is not None:  # torch itself ignores these checksums
                raise BadZipFile(f"{damaged}: its checksum does not match")
            return torch.load(path, map_location="cpu", weights_only=True)
        except OSError as error:  # the disk's: the state itself may be good
            raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
        except Exception as error:  # torch raises what it likes where a state is damaged
            if isinstance(error, MemoryError) or is_mistake(error):
                raise
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(f"{path}: not readable ({said}); remove it to begin anew") from error

    def save(self, state: dict[str, Any]) -> None:
        with _disk(self.path / STATE), replacing(self.path / STATE) as path:
            torch.save(state, path)

    def checkpoint(self, step: int, model: LanguageModel, words: Sequence[str], *, best: bool) -> None:
        """One of the series, and if it is the best so far, that too."""
        target = self.path / SERIES / f"step-{step:08d}"
        with _disk(target):
            _whole(target, model, words)
            if best:
                _whole(self.path / BEST, model, words)

    def write(self, result: "Run") -> None:
        with _disk(self.path / FILE):
            result.write(self.path)

    @property
    def best(self) -> Path:
        return self.path / BEST


def _whole(target: Path, model: LanguageModel, words: Sequence[str]) -> None:
    """A folder comes into being by its name: under it there is all of it, or nothing."""
    part, old = (target.with_name(f".{target.name}.{what}") for what in ("part", "old"))
    for rest in (part, old):
        shutil.rmtree(rest, ignore_errors=True)
    try:
        write(part, model, words)
        if target.is_dir():
            target.rename(old)
        part.rename(target)
    finally:
        if old.is_dir() and not target.exists():  # stopped between the two names
            old.rename(target)
        for rest in (part, old):
            shutil.rmtree(rest, ignore_errors=True)


def _tidy(folder: Path) -> None:
    """What a killed run left half written goes; what it had just put aside, and not yet replaced, comes back."""
    for place in (folder, folder / SERIES):
        for part in place.glob(".*.part"):
            if part.is_dir():
                shutil.rmtree(part)
            else:
                part.unlink()
        for old in place.glob(".*.old"):
            target = old.with_name(old.name[1 : -len(".old")])
            if target.exists():
                shutil.rmtree(old)
            else:
                old.rename(target)


TORCH_WRITER = ("inline_container", "iostream error", "PytorchStreamWriter", "Parent directory")


class _disk:
    """A disk that is full: what was there is whole, and a line says so."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        # torch's writer says RuntimeError for what the system refuses, safetensors its own SafetensorError
        by_torch = isinstance(error, RuntimeError) and any(word in str(error) for word in TORCH_WRITER)
        if isinstance(error, OSError) or by_torch or type(error).__name__ == "SafetensorError":
            said = getattr(error, "strerror", None) or str(error).splitlines()[0]
            raise InputError(
                f"{self.path}: cannot be written ({said}); the run stops. What was saved before is whole: make "
                "room, and the same command goes on from there"
            ) from error


def _clear(folder: Path, new: Mapping[str, Any]) -> None:
    """Remove what the folder holds, unless it is this run, which then goes on."""
    with suppress(SchemaError):
        if not difference(read_json(folder / SETTINGS, dict), new):
            return
    workspace = Workspace(folder, "train", overwrite=True)
    if workspace.found is not None:
        workspace.clear()
