"""Reads the log of a run: parts with measured steps, notes, and the records made from them.

A part replaces all steps after its from_step in earlier parts, and the notes on these steps.
"""

import json
import os
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from normgrowth.errors import InputError, SeriesWarning
from normgrowth.records import Block, Levels, Records, quantities_by_level
from normgrowth.serialization.checksums import seal_json, unseal_json
from normgrowth.serialization.regular_files import read_regular
from normgrowth.stored_result import FILE, LOG_FOLDER, SIDECAR, StoredResult
from normgrowth.tracking.log.step_file import Bytes, EncodedSteps, Rows, StepFile, header_length
from normgrowth.tracking.log.step_records import TOTALS, StepLayout, Totals, record_blocks
from normgrowth.workspace import read_json_object

NOTES = "notes.jsonl"
EXPORTED = "step_log"  # in records.json: names and sizes of the files that the records were made from
CHUNK_BYTES = 2**25  # bytes of sums that are expanded at once
NEVER = 2**63 - 1


@dataclass(frozen=True)
class Note:
    """A note on a step in a part of the log. issued: its warnings, so that they are not repeated."""

    part: int
    step: int
    text: str
    issued: tuple[tuple[str, str], ...] = ()

    def to_line(self) -> bytes:
        return json.dumps(seal_json(asdict(self))).encode() + b"\n"

    @staticmethod
    def from_line(line: bytes) -> "Note":
        """Raises ValueError, KeyError or TypeError if the line is damaged."""
        said = unseal_json(json.loads(line))
        issued = tuple((str(what), str(name)) for what, name in said["issued"])
        return Note(int(said["part"]), int(said["step"]), str(said["text"]), issued)


def read_run(folder: str | Path, levels: Levels | None = None) -> StoredResult:
    """The trace of a run, which may still be running or have been killed. levels: read only these levels."""
    folder = Path(folder)
    if (exported := _exported(folder)) is not None:
        return exported.at_levels(levels)
    parts = encoded_parts(folder)
    if not parts:
        return StoredResult.read_files(folder).at_levels(levels)
    notes, damaged = read_notes(folder, parts)
    told = [note.text for note in notes]
    if damaged:
        told.append(f"{folder / NOTES}: skipped {damaged} damaged lines")
    read = [part.read() for part in parts]
    for part, steps in zip(parts, read, strict=True):
        if steps.damaged:
            told.append(f"{part.path}: skipped {steps.damaged} damaged of {len(part)} steps")
            warnings.warn(told[-1], SeriesWarning, stacklevel=2)
    return records_of(read, told, levels)


def part_paths(folder: Path) -> list[Path]:
    return sorted((folder / LOG_FOLDER).glob("part-*.arrows"))


def encoded_parts(folder: Path, queued: "dict[Path, bytes] | None" = None) -> list[EncodedSteps]:
    """The parts of a log. queued: content that a writer could not write yet."""
    queued = queued or {}
    parts = []
    for path in sorted({*part_paths(folder), *(path for path in queued if path.suffix == ".arrows")}):
        content = _content(path)
        if path in queued:
            content = np.concatenate([content, np.frombuffer(queued[path], np.uint8)])
        if header_length(content) is not None:  # otherwise the writer was killed before the first step
            parts.append(EncodedSteps(path, content))
    return parts


def _content(path: Path) -> Bytes:
    try:
        if path.exists() and not path.is_file():  # opening a pipe waits
            raise InputError(f"cannot read {path}: not a file")
        size = _stored_size(path)
        return np.memmap(path, np.uint8, "r", shape=(size,)) if size else np.zeros(0, np.uint8)
    except FileNotFoundError:
        return np.zeros(0, np.uint8)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def _stored_size(path: Path) -> int:
    """The size of a file without a hole at its end, which has no steps and can be larger than the disk."""
    end = 0
    with path.open("rb") as file, suppress(OSError):  # no data after the last piece
        while True:
            end = os.lseek(file.fileno(), os.lseek(file.fileno(), end, os.SEEK_DATA), os.SEEK_HOLE)
    return end


def last_kept(from_steps: Sequence[int]) -> list[int]:
    """For each part, the last step that no later part replaces."""
    return [min(from_steps[i + 1 :], default=NEVER) for i in range(len(from_steps))]


def read_notes(folder: Path, parts: Sequence[EncodedSteps]) -> tuple[list[Note], int]:
    """The notes that no later part replaces, and the number of damaged lines."""
    try:
        lines = read_regular(folder / NOTES).split(b"\n")[:-1]  # without a truncated last line
    except FileNotFoundError:
        return [], 0
    found, damaged = [], 0
    for line in lines:
        try:
            note = Note.from_line(line)
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            damaged += 1
            continue
        if note.step <= min((part.from_step for part in parts if part.number > note.part), default=NEVER):
            found.append(note)
    return found, damaged


def records_of(
    parts: Sequence[StepFile],
    notes: Sequence[str],
    levels: Levels | None = None,
) -> StoredResult:
    """The records of all parts, and the fields of the last part. levels: only these levels."""
    fields = {**(parts[-1].fields if parts else {}), "notes": list(notes)}
    run = parts[-1].layout.run if parts else ""
    return StoredResult(Records.from_blocks(run, _blocks(parts, levels)), fields)


def _blocks(parts: Sequence[StepFile], levels: Levels | None) -> Iterator[Block]:
    """The blocks of the steps that no later part replaces."""
    chosen = None if levels is None else quantities_by_level(levels)
    totals: _Totals | None = None
    last = -1
    for part, end in zip(parts, last_kept([part.from_step for part in parts]), strict=True):
        places = np.flatnonzero((part.steps <= end) & (part.steps > last))
        if not len(places):
            continue
        layout = part.layout if chosen is None else replace(part.layout, levels=_both(part.layout, chosen))
        size = max(1, CHUNK_BYTES // (8 * layout.shape[0] * layout.shape[1]))
        steps = part.steps[places]
        # Totals over all steps need every step.
        whole = layout.totals and int(steps[-1] - steps[0]) + 1 == len(steps)
        for start in range(0, len(places), size):
            at = steps[start : start + size].tolist()
            rows = np.stack([part.rows[i] for i in places[start : start + size]])
            before = _totals_before(totals, at[0]) if whole else None
            totals = _Totals(at[-1])
            for block in record_blocks(layout, at, rows, before):
                totals.take(block)
                yield _restricted(block, chosen)
        last = int(steps[-1])


def _both(layout: StepLayout, chosen: Mapping[str, Collection[str] | None]) -> list[str]:
    return [level for level in layout.levels if level in chosen]


def _restricted(block: Block, chosen: Mapping[str, Collection[str] | None] | None) -> Block:
    """The block with the chosen quantities of its level."""
    quantities = None if chosen is None else chosen.get(block.level)
    if quantities is None:
        return block
    return replace(block, values={name: v for name, v in block.values.items() if name in quantities})


def last_rows(parts: Sequence[EncodedSteps], step: int) -> tuple[StepLayout, int, Rows] | None:
    """The last measured step up to `step`, without reading the other steps."""
    found = None
    for part, end in zip(parts, last_kept([part.from_step for part in parts]), strict=True):
        if (last := part.last_before(min(step, end))) is not None:
            found = part.layout, *last
    return found


@dataclass
class _Totals:
    """The sums of the budget up to a step, by level and name."""

    step: int
    sums: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def take(self, block: Block) -> None:
        if all(term in block.values for term in TOTALS):
            ends = np.stack([block.values[term][-1] for term in TOTALS], axis=1)
            self.sums[block.level] = dict(zip(block.names, ends.tolist(), strict=True))


def _totals_before(last: _Totals | None, step: int) -> Totals | None:
    """The sums of the budget up to the step before; None if the records do not have them."""
    if step <= 1:
        return {}
    return last.sums or None if last is not None and last.step == step - 1 else None


# Records that were made from the log ------------------------------------------------------------------------


def log_files(folder: Path) -> dict[str, int]:
    """Names and sizes of the files of a log. Files only grow, so equal sizes mean equal logs."""
    paths = [*part_paths(folder), folder / NOTES]
    return {path.name: path.stat().st_size for path in paths if path.is_file()}


def _exported(folder: Path) -> StoredResult | None:
    """The result in records.parquet, if it was made from the current log."""
    try:
        said = read_json_object(folder / SIDECAR).get(EXPORTED)
    except (OSError, ValueError):
        return None
    if said is None or said != log_files(folder) or not (folder / FILE).is_file():
        return None
    stored = StoredResult.read_files(folder)
    del stored.fields[EXPORTED]
    return stored
