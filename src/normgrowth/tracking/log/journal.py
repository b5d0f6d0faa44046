"""Folders of earlier versions: records, and later steps in a journal file.

A journal is a line of JSON that describes the steps, then one block of numbers with a checksum for each step.
"""

import sys
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from normgrowth.serialization.json_types import parse_json
from normgrowth.stored_result import JOURNAL
from normgrowth.tracking.log.step_file import ADVICE, StepFile, checked_layout
from normgrowth.tracking.log.step_records import OF_MODEL, RULES, StepLayout


@dataclass(frozen=True)
class JournalHeader:
    """The first line. made_by: the fields of the result."""

    layout: StepLayout
    made_by: dict[str, Any]
    step_checksums: bool = False


def read_journal(path: Path) -> StepFile | None:
    """The steps of a journal without damaged or truncated steps; None if there is no journal."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    header, _, body = content.partition(b"\n")
    said = parse_json(header, JournalHeader, path, advice=ADVICE)
    layout = checked_layout(replace(said.layout, of_run=["gradient", *RULES, *OF_MODEL]), path)
    values = layout.shape[0] * layout.shape[1]
    size = 8 * (1 + values)
    sealed = said.step_checksums
    length = size + 8 * sealed
    steps, rows, damaged = [], [], 0
    for start in range(0, len(body) - length + 1, length):
        checksum = int.from_bytes(body[start + size : start + length], sys.byteorder)
        if sealed and zlib.crc32(body[start : start + size]) != checksum:
            damaged += 1
            continue
        steps.append(int(np.frombuffer(body, np.int64, 1, start)[0]))
        rows.append(np.frombuffer(body, np.float64, values, start + 8).reshape(layout.shape))
    return StepFile(layout, said.made_by, 0, np.array(steps, np.int64), rows, damaged)


__all__ = ["JOURNAL", "read_journal"]
