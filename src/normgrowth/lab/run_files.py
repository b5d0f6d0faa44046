"""The output folder of a training run, which is complete at any time.

request.json             the settings; a run with other settings is refused
state.pt                 weights, optimizer, step and evaluations, to resume from
checkpoints/step-…/      a series of models that every command can read
best/                    the checkpoint with the lowest development loss
tracker/                 the tracker's records; `normgrowth watch` shows them during the run
records.parquet, .json   evaluations, and at the end also the tracker's rows of the model and its layers
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile, ZipFile

import torch

from normgrowth.errors import InputError, is_mistake
from normgrowth.lab.settings import TrainSettings
from normgrowth.network.models.encoder_folder import write
from normgrowth.network.models.encoders import LanguageModel
from normgrowth.serialization.checksums import JsonObject
from normgrowth.stored_result import FILE
from normgrowth.tracking.distributed import is_main, of_main
from normgrowth.workspace import Workspace, replacing

if TYPE_CHECKING:
    from normgrowth.lab.run import Run

STATE, SERIES, BEST, TRACKER = "state.pt", "checkpoints", "best", "tracker"


@contextmanager
def open_run(
    out: str | Path, settings: TrainSettings, facts: JsonObject, *, overwrite: bool
) -> "Iterator[RunFolder]":
    """Claim the folder on the first rank; if this fails, raise the error on all ranks.

    facts: further properties of the run, such as the fingerprint of the corpus. overwrite: remove another result.
    """
    with ExitStack() as stack:
        problem = None
        if is_main():
            request = {**settings.request(), **facts}
            try:
                stack.enter_context(Workspace.open(out, "run", request, overwrite=overwrite))
            except InputError as error:
                problem = error
        if (said := of_main(None if problem is None else str(problem))) is not None:
            raise problem or InputError(said)
        yield RunFolder(Path(out))


class RunFolder:
    """The files of a run; only the first rank writes them."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.name = folder.resolve().name  # resolve first, because "." has no name

    def load(self) -> JsonObject | None:
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
        except UnpicklingError:  # torch's own message advises to load it without its checks
            raise InputError(
                f"cannot read {path}: its pickle is damaged or contains more than tensors and numbers, which train "
                "does not write. Remove it to start over"
            ) from None
        except Exception as error:  # torch raises many types of errors for a damaged state
            if isinstance(error, MemoryError) or is_mistake(error):
                raise
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(f"cannot read {path}: {said}. Remove it to start over") from error

    def save(self, state: JsonObject) -> None:
        with _disk(self.path / STATE), replacing(self.path / STATE) as path:
            torch.save(state, path)

    def checkpoint(self, step: int, model: LanguageModel, words: Sequence[str], *, best: bool) -> None:
        """Write a checkpoint of the series; with `best`, also as the best one."""
        series = self.path / SERIES / f"step-{step:08d}"
        for target in (series, self.best) if best else (series,):
            with _disk(target), replacing(target) as path:
                write(path, model, words)

    def write(self, result: "Run") -> None:
        with _disk(self.path / FILE):
            result.write(self.path)

    @property
    def best(self) -> Path:
        return self.path / BEST


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
