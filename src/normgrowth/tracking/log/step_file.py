"""The file format of measured steps: an append-only Arrow IPC stream.

The schema message has the layout of the steps as sealed JSON. Each measured step is one record batch with one row:

    step int64 | sums fixed_size_list<float64>[tensors × columns] | checksum int64 (crc32 of all bytes before it)

All batches of a file have the same length. So a damaged step can be skipped, and
the last step can be read without the others. Any Arrow reader opens the file (`pyarrow.ipc.open_stream`).
"""

import json
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import SchemaError
from normgrowth.serialization.checksums import seal_json
from normgrowth.serialization.json_types import parse_json
from normgrowth.serialization.record_schema import refuse_other_schemas
from normgrowth.tracking.log.arrow_messages import START, batch_message, schema_message
from normgrowth.tracking.log.step_records import StepLayout

if TYPE_CHECKING:
    import pyarrow as pa

Rows = NDArray[np.float64]
Bytes = NDArray[np.uint8]

KEY = b"normgrowth"
LONGEST_PREFIX = 4096  # maximum bytes of a batch before its values
ADVICE = "remove the file to continue without it"


@dataclass(frozen=True)
class LogHeader:
    """The content of the schema message. result: the fields of the trace, as in records.json."""

    layout: StepLayout
    from_step: int
    step_bytes: int
    result: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StepFile:
    """One part of a log: its steps have one layout, and replace the steps after from_step of earlier parts."""

    layout: StepLayout
    fields: dict[str, Any]
    from_step: int
    steps: NDArray[np.int64]
    rows: Sequence[Rows] | Rows  # (steps, tensors, columns)
    damaged: int = 0  # number of skipped steps with a wrong checksum


class StepEncoder:
    """Encodes the bytes of a file: the header, then one message per step."""

    def __init__(self, layout: StepLayout, fields: dict[str, Any], from_step: int) -> None:
        values = layout.shape[0] * layout.shape[1]
        self._prefix = batch_message(values)
        said = {"layout": asdict(layout), "result": fields, "from_step": from_step}
        sealed = json.dumps(seal_json({**said, "step_bytes": len(self._prefix) + _tail(values)}))
        self.header = schema_message(values, {KEY.decode(): sealed})

    def step(self, step: int, rows: Rows) -> bytes:
        content = (
            self._prefix + np.int64(step).astype("<i8").tobytes() + rows.astype("<f8", copy=False).tobytes()
        )
        return content + np.int64(zlib.crc32(content)).astype("<i8").tobytes()


class EncodedSteps:
    """The content of a file. Raises SchemaError if its header is damaged."""

    def __init__(self, path: Path, content: Bytes) -> None:
        self.path = path
        start = header_length(content)
        assert start is not None
        said = _read_header(path, content[:start].tobytes())
        self.layout, self.fields, self.from_step = said.layout, said.result, said.from_step
        values = self.layout.shape[0] * self.layout.shape[1]
        self._size, self._tail = said.step_bytes, _tail(values)
        if not self._tail < self._size <= self._tail + LONGEST_PREFIX:
            raise SchemaError(path, "step_bytes", f"{self._size} of steps with {values} values", ADVICE)
        body = content[start:]
        count = len(body) // self._size  # without a truncated last step
        self._messages = body[: count * self._size].reshape(count, self._size)

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def number(self) -> int:
        """The number of this part of the log."""
        return int(self.path.stem.removeprefix("part-"))

    def step_at(self, i: int) -> int:
        place = self._size - self._tail
        return int(self._messages[i, place : place + 8].view("<i8")[0])

    def last_before(self, step: int) -> "tuple[int, Rows] | None":
        """The last undamaged step up to `step`, without reading the other steps."""
        i = bisect_right(range(len(self)), step, key=self.step_at)
        while i and not self._is_whole(i - 1):
            i -= 1
        return (self.step_at(i - 1), self._values(self._messages[i - 1 : i])[1][0]) if i else None

    def read(self) -> StepFile:
        whole = np.array([self._is_whole(i) for i in range(len(self))], bool)
        steps, rows = self._values(self._messages if whole.all() else self._messages[whole])
        damaged = len(self) - int(whole.sum())
        return StepFile(self.layout, self.fields, self.from_step, steps, rows, damaged)

    def _is_whole(self, i: int) -> bool:
        message = self._messages[i]
        return zlib.crc32(message[:-8]) == int(message[-8:].view("<i8")[0])

    def _values(self, messages: Bytes) -> tuple[NDArray[np.int64], Rows]:
        """Steps and rows; the rows are views of the file, so that a long log is not copied into memory."""
        tails = messages[:, -self._tail :]
        steps = np.ascontiguousarray(tails[:, :8]).view("<i8")[:, 0]
        sums = tails[:, 8:-8].view("<f8")
        shape = (len(messages), *self.layout.shape)
        strides = (sums.strides[0], 8 * shape[2], 8)
        return steps.astype(np.int64), np.lib.stride_tricks.as_strided(sums, shape, strides, writeable=False)


def header_length(content: Bytes) -> int | None:
    """The offset of the first step; None if the header is incomplete because its writer was killed."""
    if len(content) < 8:
        return None
    length = 8 + int(content[4:8].view("<i4")[0])
    return None if content[:4].tobytes() == START and length > len(content) else max(length, 8)


def checked_layout(layout: StepLayout, path: Path) -> StepLayout:
    """The layout; raises SchemaError if it is inconsistent."""
    if len(layout.numel) != len(layout.readings):
        raise SchemaError(
            path, "layout.numel", f"{len(layout.numel)} sizes of {len(layout.readings)} tensors"
        )
    if any(not 0 <= (reading.layer or 0) < 2**31 for reading in layout.readings):
        raise SchemaError(path, "layout.readings", "a layer number is out of range")
    return layout


def _read_header(path: Path, content: bytes) -> LogHeader:
    import pyarrow as pa

    try:
        schema = pa.ipc.read_schema(pa.py_buffer(content))
    except (pa.ArrowException, OSError, ValueError) as error:
        said = f"not readable as an Arrow stream: {str(error).splitlines()[0]}"
        raise SchemaError(path, "", said, ADVICE) from error
    said = parse_json((schema.metadata or {}).get(KEY, b""), LogHeader, path, advice=ADVICE)
    refuse_other_schemas(said.result, path)
    layout = checked_layout(said.layout, path)
    if not schema.equals(_schema(layout.shape[0] * layout.shape[1])):
        raise SchemaError(path, "schema", "its columns do not match its layout", ADVICE)
    return said


def _schema(values: int) -> "pa.Schema":
    import pyarrow as pa

    sums = pa.list_(pa.float64(), values)
    return pa.schema([("step", pa.int64()), ("sums", sums), ("checksum", pa.int64())])


def _tail(values: int) -> int:
    """Bytes of a message from the step on: step, values, checksum."""
    return 8 * (values + 2)
