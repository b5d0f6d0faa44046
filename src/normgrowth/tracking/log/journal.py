"""Folders that earlier versions wrote: records, and the steps after them in a file called journal.

A journal is a line of JSON that says what the steps are, then one block of numbers with a checksum for each step.
"""

import sys
import zlib
from pathlib import Path

import numpy as np

from normgrowth.record_schema import sidecar_shape
from normgrowth.records import JOURNAL
from normgrowth.schema import parse_json
from normgrowth.tracking.log.step_file import ADVICE, LAYOUT, StepFile, layout_from
from normgrowth.tracking.log.step_records import OF_RUN, STATE

HEADER = {"layout": LAYOUT, "made_by": sidecar_shape, "step_checksums?": bool}


def read_journal(path: Path) -> StepFile | None:
    """The steps of a journal, but those that are damaged or cut short; None if there is no journal."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    header, _, body = content.partition(b"\n")
    said = parse_json(header, HEADER, path, advice=ADVICE)
    columns = [name for name in OF_RUN if name not in STATE]  # the numbers of a run that a journal has
    layout = layout_from({**said["layout"], "of_run": columns}, path)
    values = layout.shape[0] * layout.shape[1]
    size = 8 * (1 + values)
    sealed = said.get("step_checksums", False)
    length = size + 8 * sealed
    steps, rows, damaged = [], [], 0
    for start in range(0, len(body) - length + 1, length):
        checksum = int.from_bytes(body[start + size : start + length], sys.byteorder)
        if sealed and zlib.crc32(body[start : start + size]) != checksum:
            damaged += 1
            continue
        steps.append(int(np.frombuffer(body, np.int64, 1, start)[0]))
        rows.append(np.frombuffer(body, np.float64, values, start + 8).reshape(layout.shape))
    return StepFile(layout, said["made_by"], 0, np.array(steps, np.int64), rows, damaged)


__all__ = ["JOURNAL", "read_journal"]
