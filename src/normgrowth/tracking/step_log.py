"""The journal of a run: each measured step is on disk at once, and becomes records soon after.

    DIR/records.parquet, records.json   the records, as every command reads them
    DIR/journal                         the sums of the steps since: a line that says what they are, then numbers;
                                        the line and each step have a checksum
    DIR/.lock                           held while a tracker (or a trace) writes here

A step is one write of some kilobytes to the journal. From time to time the journal is turned into records and
begun anew; that rewrites all records, so it is done just so often that it takes a hundredth of the time.
Whatever moment a process is killed at, records are whole, and so is the journal but for a last step half
written; a step that is in both counts once. The next tracker to open the folder, or `read`, puts them together.
"""

import json
import os
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.checkpoints.parameters import Reading
from normgrowth.checksums import seal_json
from normgrowth.errors import FolderMismatch, InputError, SchemaError, SeriesWarning
from normgrowth.record_schema import sidecar_shape
from normgrowth.records import FILE, Block, Records, concatenated, replacing
from normgrowth.schema import parse_json
from normgrowth.tracking.step_records import TOTALS, Layout, Totals, blocks

if TYPE_CHECKING:
    import pyarrow as pa
    from filelock import BaseFileLock

JOURNAL = "journal"
COMMAND = "tracker"
PATIENCE = 100  # writing records may take one part in so many of the time

Rows = NDArray[np.float64]

READING = {"name": str, "stack": str, "layer": (int, None), "role": str, "counted": bool, "reason": str}
LAYOUT = {
    "run": str,
    "readings": [READING],
    "numel": [int],
    "references": [str],
    "levels": [str],
    "totals": bool,
}
HEADER = {"layout": LAYOUT, "made_by": sidecar_shape, "step_checksums?": bool}


class Journal:
    """Where a tracker puts its steps; without a folder, in memory.

    A folder that cannot be written to any more does not stop a training run: the journal says so once, keeps
    what follows in memory, and tries again when it is closed.
    """

    def __init__(self, folder: Path | None, lock: "BaseFileLock | None" = None) -> None:
        self.folder = folder
        self.stopped = False
        earlier = Records.read(folder, torn=True) if folder and (folder / FILE).is_file() else None
        self.run: str | None = next(iter(earlier.distinct("run")[-1:]), None) if earlier else None
        self.notes: list[str] = list(earlier.made_by.get("notes") or []) if earlier and len(earlier) else []
        self._lock = lock
        self._kept: list[pa.Table] = []  # records that are in memory only, before the pending steps
        self._layout: Layout | None = None
        self._made_by: dict[str, Any] = {}
        self._pending: list[tuple[int, Rows]] = []
        self._file: Any = None
        self._not_before = 0.0
        self._process = os.getpid()

    @staticmethod
    def open(
        out: str | Path | None, step: int | None, selection: Mapping[str, Any] | None = None
    ) -> "Journal":
        """Lock the folder and bring it to where it was at a step: records of later steps are dropped.

        selection: which parameters count. Records that count others are refused, since one series cannot hold both.
        """
        if out is None:
            return Journal(None)
        if out == "":
            raise InputError("the folder for the records has an empty name")
        from filelock import FileLock, Timeout

        folder = Path(out)
        lock = FileLock(folder / ".lock", timeout=0)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
            _go_back(folder, step, selection)
            return Journal(folder, lock)
        except Timeout:
            raise InputError(
                f"{folder}: another tracker (or a trace) is writing here; choose another folder"
            ) from None
        except OSError as error:
            lock.release()
            raise InputError(f"{folder}: cannot be written to: {error.strerror or error}") from error
        except InputError:
            lock.release()
            raise

    def begin(self, layout: Layout, made_by: dict[str, Any]) -> None:
        """From here on steps have this layout."""
        if self._pending and self._writes:
            self._try(self._write_records)
        if self._pending:
            self._kept = [self.records().table.slice(self._rows_on_disk())]
            self._pending = []
        self._layout, self._made_by = layout, made_by
        if self._writes:
            self._try(self._new_file)

    def append(self, step: int, rows: Rows) -> None:
        """Keep the rows of a step, on disk before this returns."""
        self._pending.append((step, rows))
        if self._writes:
            self._try(lambda: self._append(step, rows))

    def records(self) -> Records:
        """All records so far: those on disk, and what is to join them."""
        table = _concatenated([*self._on_disk(), *self._kept])
        if self._layout is not None:
            table = _joined(table, self._layout, self._pending)
        return Records(table, self._made_by)

    def noted(self) -> None:
        """What was said goes to disk at once: it is said once, and it may be the last."""
        if self._writes and self._file is not None:
            self._try(self._write_records)

    def _on_disk(self) -> "list[pa.Table]":
        known = self.folder is not None and (self.folder / FILE).is_file()
        return [Records.read(self.folder, torn=True).table] if known and self.folder is not None else []

    def _rows_on_disk(self) -> int:
        return sum(len(table) for table in self._on_disk())

    def close(self) -> None:
        """Put everything into records and let go of the folder."""
        if self.folder is None or self._lock is None or self._process != os.getpid():
            return  # the last: the end of a forked process is not that of the run
        written = not (self._pending or self._kept) or self._try(self._write_records)
        with suppress(OSError):  # what is left behind has no step that the records lack
            if self._file is not None:
                self._file.close()
            if written:
                (self.folder / JOURNAL).unlink(missing_ok=True)
        self._lock.release()
        self._lock = None
        if not written:
            warnings.warn(
                f"{self.folder}: the last steps could not be written; `records` of the tracker still has them",
                SeriesWarning,
                stacklevel=2,
            )

    @property
    def _writes(self) -> bool:
        return self.folder is not None and not self.stopped

    def _try(self, action: Callable[[], None]) -> bool:
        import pyarrow as pa

        try:
            action()
        except (OSError, InputError, pa.ArrowException) as error:
            if not self.stopped:
                self.stopped = True
                why = getattr(error, "strerror", None) or str(error).splitlines()[0]
                warnings.warn(
                    f"{self.folder}: the tracker stopped writing ({why}); training goes on, and what it measures "
                    "from here on is kept in memory: it is written if there is room when the tracker is closed",
                    SeriesWarning,
                    stacklevel=2,
                )
            return False
        return True

    def _append(self, step: int, rows: Rows) -> None:
        line = _sealed_step(step, rows)
        if self._file.write(line) != len(line):
            raise OSError("no room for a whole step")
        if time.monotonic() >= self._not_before:
            self._write_records()

    def _write_records(self) -> None:
        import pyarrow.parquet  # noqa: F401 - loading it is no part of what the next writing will take

        assert self.folder is not None
        began = time.monotonic()
        self.records().write(self.folder)
        self._kept, self._pending = [], []
        self._new_file()
        now = time.monotonic()
        self._not_before = now + PATIENCE * (now - began)

    def _new_file(self) -> None:
        assert self.folder is not None
        assert self._layout is not None
        if self._file is not None:
            self._file.close()
        with replacing(self.folder / JOURNAL) as path:
            path.write_bytes(_header(self._layout, self._made_by))
        self._file = (self.folder / JOURNAL).open("ab", buffering=0)


def read(folder: str | Path) -> Records:
    """The records of a run, also of one that goes on or was killed: with the steps in its journal."""
    folder = Path(folder)
    found = _read_journal(
        folder / JOURNAL
    )  # first: what moves on meanwhile is then found in both, not in neither
    if found is None:
        return Records.read(folder, torn=True)
    layout, facts, steps, damaged = found
    if damaged:
        told = f"{folder / JOURNAL}: {damaged} of {damaged + len(steps)} steps are damaged and left out"
        warnings.warn(told, SeriesWarning, stacklevel=2)
        facts = {**facts, "notes": [*(facts.get("notes") or []), told]}
    tables = [Records.read(folder, torn=True).table] if (folder / FILE).is_file() else []
    return Records(_joined(_concatenated(tables), layout, steps), facts)


def _go_back(folder: Path, step: int | None, selection: Mapping[str, Any] | None) -> None:
    for part in folder.glob(".*.part"):
        part.unlink()
    journal = folder / JOURNAL
    if not (journal.exists() or (folder / FILE).exists()):
        return
    records = read(folder)
    command = records.made_by.get("command", "another program")
    if command != COMMAND:
        raise InputError(f"{folder}: has records of {command}; choose another folder for those of a run")
    if step is None and len(records):
        last = int(np.max(records.table["step"].to_numpy()))
        raise InputError(
            f"{folder}: has records of a run up to step {last}; give step= to go on from a step of it "
            "(0 begins anew: later records are dropped), or choose another folder"
        )
    earlier = records.made_by.get("selection")
    if step and selection and isinstance(earlier, dict) and earlier != selection:
        differ = [name for name in selection if earlier.get(name) != selection[name]]
        old, new = (
            {"kind": COMMAND, **{name: said.get(name) for name in differ}} for said in (earlier, selection)
        )
        raise FolderMismatch(
            folder,
            old,
            new,
            "resume with the same parameters, begin anew with step=0, or choose another folder",
        )
    if journal.exists():  # first, with all steps: a kill before the next lines drops none of them
        records.write(folder)
        journal.unlink()
    kept = records.table.filter(records.table["step"].to_numpy() <= (step or 0))
    if len(kept) < len(records):
        Records(kept, records.made_by).write(folder)


def _header(layout: Layout, made_by: dict[str, Any]) -> bytes:
    content = {"layout": asdict(layout), "made_by": made_by, "step_checksums": True}
    return json.dumps(seal_json(content)).encode() + b"\n"


def _sealed_step(step: int, rows: Rows) -> bytes:
    """Step and sums, and their checksum."""
    content = np.int64(step).tobytes() + rows.tobytes()
    return content + np.int64(zlib.crc32(content)).tobytes()


def _read_journal(path: Path) -> tuple[Layout, dict[str, Any], list[tuple[int, Rows]], int] | None:
    """Layout, provenance, steps and how many steps are damaged, which are left out; None if there is no journal.

    A last step that was cut short is left out, too.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    header, _, body = content.partition(b"\n")
    said = parse_json(header, HEADER, path, advice="remove it to go on without")
    own = {key: said["layout"][key] for key in LAYOUT}
    readings = [Reading(**{key: reading[key] for key in READING}) for reading in own["readings"]]
    layout = Layout(**{**own, "readings": readings})
    if len(layout.numel) != len(readings):
        raise SchemaError(path, "layout.numel", f"{len(layout.numel)} sizes of {len(readings)} tensors")
    if any(not 0 <= (reading.layer or 0) < 2**31 for reading in readings):
        raise SchemaError(path, "layout.readings", "a layer number is out of range")
    values = layout.shape[0] * layout.shape[1]
    content = 8 * (1 + values)
    sealed = said.get("step_checksums", False)
    length = content + 8 * sealed
    steps: list[tuple[int, Rows]] = []
    damaged = 0
    for start in range(0, len(body) - length + 1, length):
        if sealed and zlib.crc32(body[start : start + content]) != int.from_bytes(
            body[start + content : start + length], sys.byteorder
        ):
            damaged += 1
            continue
        step = int(np.frombuffer(body, np.int64, 1, start)[0])
        rows = np.frombuffer(body, np.float64, values, start + 8)
        steps.append((step, rows.reshape(layout.shape)))
    return layout, said["made_by"], steps, damaged


def _joined(table: "pa.Table", layout: Layout, steps: Sequence[tuple[int, Rows]]) -> "pa.Table":
    """The table and the steps that come after it; steps that it has already are not taken again."""
    last = int(np.max(table["step"].to_numpy())) if len(table) else -1
    new = [(step, rows) for step, rows in steps if step > last]
    if not new:
        return table
    whole = new[-1][0] - new[0][0] + 1 == len(new)  # a sum over all steps needs each of them
    before = _totals_before(table, new[0][0]) if layout.totals and whole else None
    expanded = blocks(layout, [step for step, _ in new], np.stack([rows for _, rows in new]), before)
    return _concatenated([table, Records.from_blocks(layout.run, expanded, {}).table])


def _totals_before(table: "pa.Table", step: int) -> Totals | None:
    """The budget's sums up to the step before; None if the table does not have them."""
    if step == 1:
        return {}
    rows = table.filter(table["step"].to_numpy() == step - 1).to_pylist()
    totals: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row["quantity"] in TOTALS:
            sums = totals.setdefault(row["level"], {}).setdefault(row["name"], [0.0] * len(TOTALS))
            sums[TOTALS.index(row["quantity"])] = row["value"]
    return totals or None


def _concatenated(tables: "Sequence[pa.Table]") -> "pa.Table":
    tables = [table for table in tables if len(table)]
    if not tables:
        return Records.from_blocks("", [Block("model", [], [], [], [], {})], {}).table
    return tables[0] if len(tables) == 1 else concatenated(tables)
