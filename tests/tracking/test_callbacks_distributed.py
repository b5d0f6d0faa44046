"""The callbacks over two real ranks (gloo, DDP): the numbers of given weights, told by rank 0 alone, and no hang."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tracking.test_callbacks import board

from normgrowth.stored_result import StoredResult

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="gloo between local processes"),
]

WORKER = Path(__file__).with_name("callbacks_worker.py")
MEASURED = [2, 4, 6]


def launched(kind, folder, *launcher, options=()):
    """What both ranks saw. One that waited for the other would run into the time limit."""
    done = subprocess.run(
        [sys.executable, *launcher, str(WORKER), kind, str(folder), *options],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


def assert_numbers_of_given_weights(folder, ranks):
    stored = StoredResult.read(folder / "norms")
    records = stored.records
    assert records.distinct("step") == [0, *MEASURED]
    assert stored.fields["ranks"] == 2
    assert stored.fields["notes"] == []
    for rank in ranks:
        assert rank["wrapped"] == "DistributedDataParallel"
        assert len(rank["history"]) == 6, "a step is not one of the optimizer"
        for step in MEASURED:
            for name, wanted in rank["history"][step - 1].items():
                level = "model" if name == "model" else "layer"
                for quantity, value in wanted.items():
                    rows = records.where(step=step, level=level, name=name, quantity=quantity).table
                    assert rows["value"].to_pylist() == [pytest.approx(value, rel=1e-12)], (
                        step,
                        name,
                        quantity,
                    )
    assert [rank["contains records"] for rank in ranks] == [True, False]
    return records


def test_the_trainer_of_transformers(tmp_path):
    pytest.importorskip("accelerate")
    run = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    ranks = launched("hf", tmp_path, *run)
    records = assert_numbers_of_given_weights(tmp_path, ranks)
    steps, norms = (series[1:].tolist() for series in records.series("norm"))
    shown = board(tmp_path)  # of one rank: two would each have a file of their own
    assert len(list(tmp_path.rglob("events.out.tfevents.*"))) == 1
    assert shown["train/normgrowth/norm/model"] == pytest.approx(dict(zip(steps, norms, strict=True)))
    for rank in ranks:  # the Trainer's own log is as it was
        assert [row["step"] for row in rank["logged"] if "loss" in row] == MEASURED
        assert not [key for row in rank["logged"] for key in row if key.startswith("normgrowth")]


@pytest.mark.parametrize("start_method", ["popen", "spawn"])  # strategies ddp and ddp_spawn
def test_lightning(tmp_path, start_method):
    pytest.importorskip("lightning")
    ranks = launched("lightning", tmp_path, options=[start_method])  # it starts the other ranks by itself
    records = assert_numbers_of_given_weights(tmp_path, ranks)
    with (tmp_path / "logs" / "version_0" / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["normgrowth/norm/model"]]
    steps, norms = records.series("norm")
    assert [int(row["step"]) for row in rows] == steps[1:].tolist() == MEASURED
    assert [float(row["normgrowth/norm/model"]) for row in rows] == pytest.approx(norms[1:].tolist())
