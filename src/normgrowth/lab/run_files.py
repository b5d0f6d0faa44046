"""The output folder of a training run, which is complete at any time.

settings.json            the settings; a run with other settings is refused
state.pt                 weights, optimizer, step and evaluations, to resume from
checkpoints/step-…/      a series of models that every command can read
best/                    the checkpoint with the lowest development loss
tracker/                 the tracker's records; `normgrowth watch` shows them during the run
records.parquet, .json   evaluations, and at the end also the tracker's rows of the model and its layers
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
from normgrowth.serialization.json_types import read_json
from normgrowth.stored_result import FILE
from normgrowth.workspace import Workspace, replacing, write_json

if TYPE_CHECKING:
    from filelock import BaseFileLock

    from normgrowth.lab.run import Run

SETTINGS, STATE, SERIES, BEST, TRACKER = "settings.json", "state.pt", "checkpoints", "best", "tracker"


class RunFolder:
    """A folder that one run at a time can lock; only the first rank writes to it."""

    def __init__(self, folder: Path, lock: "BaseFileLock | None") -> None:
        self.path, self._lock = folder, lock
        self.name = folder.resolve().name  # resolve first, because "." has no name

    @staticmethod
    def open(
        out: str | Path, settings: TrainSettings, facts: Mapping[str, Any], *, overwrite: bool = False
    ) -> "RunFolder":
        """Lock the folder; raise unless it is empty or contains this run.

        facts: further properties of the run, such as the fingerprint of the corpus. overwrite: remove another result.
        """
        from filelock import FileLock, Timeout

        folder, new = Path(out), {**asdict(settings), **facts}
        lock = FileLock(folder / ".lock", timeout=0)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
            file = folder / SETTINGS
            for rest in folder.glob(f".{SETTINGS}.*.part"):  # left by a run that was killed at its start
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
                    f"{folder} contains {strangers[0]} but no training run; choose another folder"
                )
            else:
                write_json(file, new)
            return RunFolder(folder, lock)
        except Timeout:
            raise InputError(f"another run is writing to {folder}; choose another folder") from None
        except OSError as error:
            lock.release()
            raise InputError(f"cannot write to {folder}: {error.strerror or error}") from error
        except InputError:
            lock.release()
            raise

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def load(self) -> dict[str, Any] | None:
        """Return the last saved state, or None for a new run."""
        path = self.path / STATE
        if not path.is_file():
            return None
        try:
            if (damaged := ZipFile(path).testzip()) is not None:  # torch itself ignores these checksums
                raise BadZipFile(f"{damaged}: its checksum does not match")
            return torch.load(path, map_location="cpu", weights_only=True)
        except OSError as error:  # a problem of the disk: the state itself may be intact
            raise InputError(f"cannot read {path}: {error.strerror or error}") from error
        except Exception as error:  # torch raises many types of errors for a damaged state
            if isinstance(error, MemoryError) or is_mistake(error):
                raise
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(f"cannot read {path}: {said}. Remove it to start over") from error

    def save(self, state: dict[str, Any]) -> None:
        with _disk(self.path / STATE), replacing(self.path / STATE) as path:
            torch.save(state, path)

    def checkpoint(self, step: int, model: LanguageModel, words: Sequence[str], *, best: bool) -> None:
        """Write a checkpoint of the series; with `best`, also as the best one."""
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
    """Write a checkpoint folder atomically: under another name first, then renamed."""
    part, old = (target.with_name(f".{target.name}.{what}") for what in ("part", "old"))
    for rest in (part, old):
        shutil.rmtree(rest, ignore_errors=True)
    try:
        write(part, model, words)
        if target.is_dir():
            target.rename(old)
        part.rename(target)
    finally:
        if old.is_dir() and not target.exists():  # interrupted between the two renames
            old.rename(target)
        for rest in (part, old):
            shutil.rmtree(rest, ignore_errors=True)


def _tidy(folder: Path) -> None:
    """Clean up after a killed run: remove partial files, and restore folders that were renamed but not replaced."""
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
    """Turns errors of the disk, for example a full one, into an `InputError`; earlier files stay complete."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        # If the system refuses to write, torch raises RuntimeError and safetensors raises SafetensorError.
        by_torch = isinstance(error, RuntimeError) and any(word in str(error) for word in TORCH_WRITER)
        if isinstance(error, OSError) or by_torch or type(error).__name__ == "SafetensorError":
            said = getattr(error, "strerror", None) or str(error).splitlines()[0]
            raise InputError(
                f"cannot write {self.path}: {said}. The run stops; all files saved before are complete. "
                "Free some space and run the same command again to resume"
            ) from error


def _clear(folder: Path, new: Mapping[str, Any]) -> None:
    """Remove the contents of the folder, unless they belong to this run, which then resumes."""
    with suppress(SchemaError):
        if not difference(read_json(folder / SETTINGS, dict), new):
            return
    workspace = Workspace(folder, "train", overwrite=True)
    if workspace.found is not None:
        workspace.clear()
