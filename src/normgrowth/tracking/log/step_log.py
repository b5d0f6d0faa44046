"""The log of a run: each measured step is on disk before `optimizer.step()` returns, and nothing is rewritten.

    DIR/request.json                    the counted parameters
    DIR/steps/part-000.arrows           the sums of the steps (`step_file`); a resume or a new layout starts a new part
    DIR/notes.jsonl                     warnings and notes, one per line
    DIR/records.parquet, records.json   the records; written at the end, unless the log is very large
    DIR/.lock                           locked while a tracker writes here

Memory and the times of a step, of opening and of closing do not depend on the number of steps. `Records.read` makes
records from the log at any time, even while the run is running or after it was killed.
"""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from normgrowth.errors import FolderMismatch, InputError, SeriesWarning
from normgrowth.records import Levels
from normgrowth.stored_result import FILE, LOG_FOLDER, SIDECAR, StoredResult
from normgrowth.trace.result import Trace
from normgrowth.tracking.log.log_reader import (
    EXPORTED,
    NEVER,
    NOTES,
    Note,
    encoded_parts,
    last_rows,
    log_files,
    part_paths,
    read_notes,
    records_of,
)
from normgrowth.tracking.log.step_file import Rows, StepEncoder, StepFile
from normgrowth.tracking.log.step_records import StepLayout
from normgrowth.workspace import AppendLog, FolderUse, lock_folder, tidy

if TYPE_CHECKING:
    from filelock import BaseFileLock

TRACKER = "tracker"  # kind of the folder
BEFORE_START = -1  # from_step of the first part, so that it replaces step 0 of earlier parts
EXPORT_BYTES = (
    8 * 2**20
)  # maximum size of a log whose records are written on close, which takes about a second


class StepLog:
    """The log of a tracker, in a folder or in memory.

    A full disk does not stop a training run: the log warns once, keeps unwritten steps in memory, and tries again at
    each step.
    """

    def __init__(self, folder: Path | None, lock: "BaseFileLock | None" = None, step: int = 0) -> None:
        self.folder = folder
        self.run: str | None = None  # name of a resumed run
        self.optimizer_changes: list[str] = []  # of a resumed run, up to the resume step
        self.last_step: tuple[StepLayout, Rows] | None = None  # last measured step before the resume
        self._lock, self._process = lock, os.getpid()
        self._files, self._failed = AppendLog(), False
        self._memory: list[tuple[StepLayout, dict[str, Any], int, list[int], list[Rows]]] = []
        self._encoder: StepEncoder | None = None
        self._waiting: list[
            tuple[Path, bytes]
        ] = []  # done at the first step, so that a run without measurements changes nothing
        self._replaces = False  # whether the folder has steps after the resume step
        self._part = -1
        self._notes: list[Note] = []
        self._use: FolderUse | None = None  # not yet written
        if folder is not None:
            self._resume(folder, step)

    @staticmethod
    def open(
        out: str | Path | None, step: int | None, selection: Mapping[str, Any] | None = None
    ) -> "StepLog":
        """Lock the folder. step: where a run resumes; later steps are replaced.

        selection: the counted parameters. Raises an error if the existing records count other parameters.
        """
        if out is None:
            return StepLog(None)
        if out == "":
            raise InputError("out must not be an empty string")
        folder = Path(out)
        lock = lock_folder(folder)
        try:
            tidy(folder)
            use = FolderUse(TRACKER, dict(selection or {}))
            found = _check(folder, step, use)
            log = StepLog(folder, lock, step or 0)
            log._use = None if use == found else use
            return log
        except OSError as error:
            lock.release()
            raise InputError(f"{folder}: cannot be written to: {error.strerror or error}") from error
        except InputError:
            lock.release()
            raise

    def _resume(self, folder: Path, step: int) -> None:
        self._part = len(part_paths(folder)) - 1
        parts = encoded_parts(folder)
        if parts:
            self.run = parts[-1].layout.run
            self._notes = read_notes(folder, parts)[0]
            before, last = last_rows(parts, step), last_rows(parts, NEVER)
            kept = [part for part in parts if part.from_step < step] if step else []
            self.optimizer_changes = list(kept[-1].fields.get("optimizer_changes", [])) if kept else []
            self.last_step = (before[0], before[2]) if before else None
            self._replaces = last is not None and last[1] > step
        self._notes = [note for note in self._notes if note.step <= step] if step else []

    @property
    def notes(self) -> list[str]:
        return [note.text for note in self._notes]

    @property
    def issued(self) -> set[tuple[str, str]]:
        """The issued warnings as (kind, tensor or layer)."""
        return {pair for note in self._notes for pair in note.issued}

    def begin(self, layout: StepLayout, fields: dict[str, Any], step: int) -> None:
        """Start a new part with this layout for the steps after `step`."""
        self._part += 1
        if self.folder is None:
            self._memory.append((layout, fields, step, [], []))
            return
        self._encoder = StepEncoder(layout, fields, step)
        self._waiting.append((self._path, self._encoder.header))

    def append(self, step: int, rows: Rows) -> None:
        """Write the sums of a step to disk before returning."""
        if self.folder is None:
            *_, steps, kept = self._memory[-1]
            steps.append(step)
            kept.append(rows)
        else:
            assert self._encoder is not None
            self._write(self._path, self._encoder.step(step, rows))

    def note(
        self, step: int, text: str, issued: Sequence[tuple[str, str]] = (), *, wait: bool = False
    ) -> None:
        """Write a note to disk before returning, because the run may end here. wait: write it with the next step."""
        note = Note(self._part, step, text, tuple(issued))
        self._notes.append(note)
        if self.folder is not None:
            self._waiting.append((self.folder / NOTES, note.to_line()))
            if not wait:
                self._write_waiting()

    def stored(self, levels: Levels | None = None) -> StoredResult:
        """The trace so far, including steps that could not be written yet. levels: only these levels."""
        if self.folder is None:
            parts = [
                StepFile(layout, fields, begin, np.array(steps, np.int64), rows)
                for layout, fields, begin, steps, rows in self._memory
            ]
            return records_of(parts, self.notes, levels)
        queued = self._files.queued()
        for path, content in self._waiting:
            queued[path] = queued.get(path, b"") + content
        parts = [part.read() for part in encoded_parts(self.folder, queued)]
        return records_of(parts, self.notes, levels)

    def close(self) -> None:
        """Write the records, unless the log is very large, and unlock the folder."""
        if self.folder is None or self._lock is None or self._process != os.getpid():
            return  # already closed, or in a forked process, whose end is not the end of the run
        if self._replaces:
            self._write_waiting()
        written = self._try(self._files.flush)
        if written and log_files(self.folder):
            with suppress(OSError):  # the log has everything
                self._export()
        self._files.close()
        self._lock.release()
        self._lock = None
        if not written:
            warnings.warn(
                f"{self.folder}: the last steps could not be written; `tracker.trace` still has them",
                SeriesWarning,
                stacklevel=2,
            )

    def _export(self) -> None:
        assert self.folder is not None
        files = log_files(self.folder)
        if sum(files.values()) <= EXPORT_BYTES:
            stored = Trace.from_stored(self.stored()).stored
            StoredResult(stored.records, {**stored.fields, EXPORTED: files}).write(self.folder)
        else:
            for name in (FILE, SIDECAR):  # records from before the resume
                (self.folder / name).unlink(missing_ok=True)

    @property
    def _path(self) -> Path:
        assert self.folder is not None
        return self.folder / LOG_FOLDER / f"part-{self._part:03d}.arrows"

    def _write_waiting(self) -> None:
        if (use := self._use) is not None and (folder := self.folder) is not None:
            self._use = None if self._try(lambda: use.write(folder)) else use
        waiting, self._waiting = self._waiting, []
        for path, content in waiting:
            self._try(lambda path=path, content=content: self._files.append(path, content))

    def _write(self, path: Path, content: bytes) -> None:
        self._write_waiting()
        self._try(lambda: self._files.append(path, content))

    def _try(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except OSError as error:
            if not self._failed:
                self._failed = True
                warnings.warn(
                    f"{self.folder}: the tracker cannot write ({error.strerror or error}); training continues, and "
                    "measured steps are kept in memory until they can be written",
                    SeriesWarning,
                    stacklevel=2,
                )
            return False
        self._failed = False
        return True


def _check(folder: Path, step: int | None, use: FolderUse) -> FolderUse | None:
    """The present use of the folder. Raises InputError if it is another one, or a run and `step` is None."""
    found = FolderUse.read(folder)
    if found is None:
        return None
    if found.kind != use.kind:
        advice = "choose another folder for the run"
        raise FolderMismatch(folder, {"kind": found.kind}, {"kind": use.kind}, advice)
    last = last_rows(encoded_parts(folder), NEVER)
    if step is None and last and last[1]:
        raise InputError(
            f"{folder}: contains records of a run up to step {last[1]}; pass resume_step= to resume from one of "
            "its steps (later records are dropped; 0 starts again), or choose another folder"
        )
    old, new = found.differences(use.request)
    if step and new:
        advice = "resume with the same parameters, start again with resume_step=0, or choose another folder"
        raise FolderMismatch(folder, {"kind": use.kind, **old}, {"kind": use.kind, **new}, advice)
    return found
