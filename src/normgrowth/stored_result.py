"""The files of a result: ``records.parquet`` has the table, ``records.json`` the kind, the schema and all fields.

Both files have checksums, and ``records.json`` also stores the checksum of its table. Damaged files, and files of two
different results, are refused.
"""

import time
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normgrowth.errors import InputError, RecordsMismatch
from normgrowth.records import Levels, Records
from normgrowth.serialization.checksums import JsonObject, from_parquet, to_parquet
from normgrowth.serialization.record_schema import conformed, refuse_other_schemas
from normgrowth.serialization.regular_files import LARGEST_TABLE, PARQUET_END, read_regular
from normgrowth.text import did_you_mean, json_problem
from normgrowth.workspace import read_json_object, replacing, write_json

if TYPE_CHECKING:
    import pyarrow as pa

FILE, SIDECAR = "records.parquet", "records.json"
LOG_FOLDER = "steps"  # measured steps of a run
LOG_READER = "normgrowth.tracking.log.log_reader"  # by name, like the types in `results.KINDS`: it is above this module
PAIRED = "records_sha256"  # in records.json: the checksum of the records.parquet that was written with it
PAUSES = (0.05, 0.1, 0.2, 0.4)  # seconds; so far a writer may have replaced only one of the two files


@dataclass(frozen=True)
class StoredResult:
    """The content of a result's files. fields: JSON values; `Result.from_stored` converts them to types."""

    records: Records
    fields: JsonObject = field(default_factory=dict)

    @property
    def kind(self) -> Any:
        """The kind of result; None if the fields do not have it."""
        return self.fields.get("kind")

    def write(self, folder: Path | str) -> None:
        """Write both files. A reader gets the old pair or the new pair, never a mix."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        checksum = write_parquet(self.records.table, folder / FILE)
        write_json(folder / SIDECAR, {**self.fields, PAIRED: checksum})

    @staticmethod
    def read(folder: Path | str, levels: Levels | None = None) -> "StoredResult":
        """The result in a folder, also of a run that is still going or was killed.

        levels: read only these levels of a tracker's log, which can have millions of rows for its tensors.
        """
        folder = Path(folder)
        if has_log(folder):
            return import_module(LOG_READER).read_run(folder, levels)
        return StoredResult.read_files(folder)

    def at_levels(self, levels: Levels | None) -> "StoredResult":
        """The same result with the rows of these levels; None: of all."""
        return self if levels is None else StoredResult(self.records.at_levels(levels), self.fields)

    @staticmethod
    def read_files(folder: Path | str) -> "StoredResult":
        """The content of both files. Raises RecordsMismatch if they were not written together."""
        folder = Path(folder)
        path = folder / FILE
        if not path.is_file():
            raise InputError(f"{folder}: {why_no_result(folder)}")
        table, said = _read_pair(folder)
        if said:  # a table alone has no fields
            refuse_other_schemas(said, folder / SIDECAR)
        return StoredResult(Records(conformed(table, path, said.get("kind"))), said)


def has_log(folder: Path) -> bool:
    """Whether the folder holds measured steps of a tracker."""
    return any((folder / LOG_FOLDER).glob("part-*.arrows"))


def has_records(folder: Path) -> bool:
    """Whether the folder holds a table of records, or a log from which one can be made."""
    return (folder / FILE).is_file() or has_log(folder)


def why_no_result(folder: Path) -> str:
    """Why a path has no result: it does not exist, is a file, or its subfolders have the results."""
    if not folder.exists():
        return f"no such folder{did_you_mean(folder)}"
    if folder.is_file():
        return "a file; pass its folder instead"
    below = sorted(path.name for path in folder.iterdir() if path.is_dir() and has_records(path))
    if not below:
        return (
            f"no normgrowth result here; to measure checkpoints, first run `normgrowth trace {folder} -o DIR`"
        )
    names = f"{', '.join(below[:5])}{' and more' if len(below) > 5 else ''}"
    which = f"subfolder {names} has one" if len(below) == 1 else f"subfolders {names} have results"
    return f"no normgrowth result here; its {which}: {folder / below[0]}"


def _read_pair(folder: Path) -> "tuple[pa.Table, JsonObject]":
    for pause in (*PAUSES, 0):
        table, checksum = _read_table(folder / FILE)
        said = _read_sidecar(folder / SIDECAR)
        if said is None or said.pop(PAIRED, None) == checksum:
            return table, said or {}
        time.sleep(pause)
    raise RecordsMismatch(folder)


def _read_table(path: Path) -> "tuple[pa.Table, str | None]":
    import pyarrow as pa

    try:
        return from_parquet(read_regular(path, LARGEST_TABLE, end=PARQUET_END))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path}: not readable as records: {str(error).splitlines()[0]}") from error


def _read_sidecar(sidecar: Path) -> JsonObject | None:
    if not sidecar.is_file():
        return None
    try:
        return read_json_object(sidecar)
    except (OSError, ValueError) as error:
        said = json_problem(error)
        raise InputError(
            f"{sidecar}: not readable: {said}; remove this file to read only the table"
        ) from error


def write_parquet(table: "pa.Table", target: Path, **options: Any) -> str:
    """Write a table with a checksum; returns the checksum."""
    content, checksum = to_parquet(table, **options)
    with replacing(target) as path:  # not written by Arrow, which rejects paths that are not valid UTF-8
        path.write_bytes(content)
    return checksum


def read_parquet(path: Path) -> "pa.Table":
    """Read the table of a parquet file. Raises ChecksumError if its checksum does not match."""
    return from_parquet(read_regular(path, LARGEST_TABLE, end=PARQUET_END))[0]
