"""The messages of a log against those that pyarrow writes, and the modules that a run with a log loads."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from normgrowth.tracking.log.arrow_messages import batch_message, schema_message

RUN = """
import sys, torch
from normgrowth import NormTracker
model = torch.nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0)
optimizer = torch.optim.AdamW(model.parameters())
with NormTracker(model, optimizer, every=1, include="all", out=sys.argv[1]):
    for step in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 3, 8)).square().sum().backward()
        optimizer.step()
    print(*{name.partition(".")[0] for name in sys.modules})
"""


@pytest.mark.parametrize("values", [1, 2, 7, 1000, 70_001])
@pytest.mark.parametrize("metadata", [{}, {"normgrowth": '{"é": 1}'}, {"a": "x" * 70_000, "bb": ""}])
def test_pyarrow_reads_what_it_would_have_written(values, metadata):
    numbers = np.random.default_rng(values).normal(size=(3, values))
    sums = pa.FixedSizeListArray.from_arrays(pa.array(numbers.ravel()), values)
    steps, checksums = pa.array([0, 5, 2**40]), pa.array([-1, 3, 2**62])
    schema = pa.schema(
        [("step", pa.int64()), ("sums", pa.list_(pa.float64(), values)), ("checksum", pa.int64())],
        metadata=metadata,
    )
    content = schema_message(values, metadata)
    for i in range(3):
        own = [steps[i].as_py(), *numbers[i], checksums[i].as_py()]
        kinds = ["<i8", *["<f8"] * values, "<i8"]
        values_of_step = b"".join(np.array(x, kind).tobytes() for x, kind in zip(own, kinds, strict=True))
        message = batch_message(values) + values_of_step
        assert len(message) % 8 == 0
        content += message
    table = pa.ipc.open_stream(content).read_all()
    table.validate(full=True)
    assert table.schema.equals(schema, check_metadata=True)
    assert table.combine_chunks().equals(pa.table([steps, sums, checksums], schema=schema))


def test_a_run_loads_no_arrow_and_no_compiler(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path / "run")], capture_output=True, text=True, check=True
    )
    assert {"pyarrow", "pandas", "numba"}.isdisjoint(done.stdout.split())
