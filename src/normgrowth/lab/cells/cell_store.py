"""The output folder of a sweep: one file per cell, named by a hash of everything its outcome depends on.

So an interrupted sweep resumes, and a finer grid reuses the cells of a coarser one. A sweep with other settings is
refused, because it would replace the records. With overwrite it replaces them, and the cells of both sweeps stay.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite, nan
from pathlib import Path
from typing import Any

from normgrowth.errors import FolderMismatch, InputError, SchemaError
from normgrowth.lab.cells.cell import Outcome
from normgrowth.lab.cells.grid import Corpora
from normgrowth.lab.settings import DEFAULTS, TrainSettings, difference
from normgrowth.serialization.json_types import converted, read_json
from normgrowth.workspace import Workspace, write_json

CELLS, FACTS = "cells", "sweep.json"
CELL_VERSION = 1  # increase it when the same settings give another outcome


@dataclass(frozen=True)
class SweepFacts:
    """The contents of sweep.json."""

    request: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredCell:
    """The file of a cell: its settings and its outcome. NaN is stored as null, because JSON has no NaN."""

    settings: dict[str, Any]
    outcome: dict[str, int | float | bool | None]
    limit: float | None = None


class CellStore:
    def __init__(self, path: Path, corpora: Corpora) -> None:
        self.path, self.corpora = path, corpora

    @staticmethod
    def open(
        out: str | Path, corpora: Corpora, request: Mapping[str, Any], *, overwrite: bool = False
    ) -> "CellStore":
        """Open or create the folder of a sweep. request: the settings that all sweeps in the folder share."""
        folder = CellStore(Path(out), corpora)
        request = json.loads(json.dumps(dict(request)))
        try:
            if overwrite and (workspace := Workspace(folder.path, "sweep", overwrite=True)).found is not None:
                if workspace.found.kind != "sweep":
                    workspace.clear()
            elif (folder.path / FACTS).is_file():
                said = read_json(folder.path / FACTS, SweepFacts, advice="remove it to continue")
                if different := difference(said.request or request, request):
                    old, new = ({"kind": "sweep", **one} for one in different)
                    raise FolderMismatch(folder.path, old, new)
            there = [p.name for p in folder.path.iterdir()] if folder.path.is_dir() else []
            # This file is written first, so a sweep that is killed at its start leaves at most an incomplete one.
            strangers = [file for file in there if not file.startswith(f".{FACTS}.")]
            if strangers and FACTS not in strangers:
                raise InputError(f"{out} contains {strangers[0]} but no sweep; choose another folder")
            folder.path.mkdir(parents=True, exist_ok=True)
            write_json(folder.path / FACTS, {"format": 1, "request": request})
            (folder.path / CELLS).mkdir(exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write to {error.filename or out}: {error.strerror or error}") from error
        return folder

    def __enter__(self) -> "CellStore":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise InputError(
                f"{error.filename or self.path}: {error.strerror or error}; finished cells are kept in {self.path}"
            ) from error

    def _file(self, settings: TrainSettings) -> Path:
        own = {name: value for name, value in asdict(settings).items() if DEFAULTS.get(name, ...) != value}
        content = json.dumps([CELL_VERSION, own, self.corpora.fingerprint(settings)], sort_keys=True)
        return self.path / CELLS / f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.json"

    def load(self, settings: TrainSettings, limit: float | None) -> Outcome | None:
        """Return the stored outcome of a cell, or None. A timed-out one is valid for the same or a shorter limit."""
        try:
            path = self._file(settings)
            stored = read_json(path, StoredCell)
            values = {
                name: nan if value is None and name != "diverged_at" else value
                for name, value in stored.outcome.items()
            }
            outcome = converted(values, Outcome, path)
        except SchemaError:
            return None  # missing or damaged: train again
        if {**DEFAULTS, **stored.settings} != json.loads(json.dumps(asdict(settings))):
            return None
        if outcome.timed_out and (limit is None or limit > (stored.limit or 0)):
            return None
        return outcome

    def save(self, settings: TrainSettings, outcome: Outcome, limit: float | None, stacked: int) -> None:
        plain = {
            name: value if not isinstance(value, float) or isfinite(value) else None
            for name, value in asdict(outcome).items()
        }
        content = {"settings": asdict(settings), "outcome": plain, "limit": limit, "together": stacked}
        write_json(self._file(settings), content)
