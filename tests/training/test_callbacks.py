"""Trackers in other people's training loops: the examples, run as they are, and what reaches the reporters."""

import csv
import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from normgrowth.cli import main
from normgrowth.records import Records
from normgrowth.training.journal import read

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_numbers")

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def run(name, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def board(folder):
    """What TensorBoard reads: name -> {step: value}."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for file in sorted(folder.rglob("events.out.tfevents.*")):
        events = EventAccumulator(str(file)).Reload()
        for tag in events.Tags()["scalars"]:
            found.setdefault(tag, {}).update({e.step: e.value for e in events.Scalars(tag)})
    return found


@pytest.mark.filterwarnings("ignore")  # of the libraries; ours are tested elsewhere
def test_the_trainer_of_transformers(tmp_path, monkeypatch, capsys):
    """Gradient accumulation, the wrapped optimizer, TensorBoard; then the run is resumed."""
    pytest.importorskip("accelerate")
    run("track_hf.py", monkeypatch, tmp_path, "--steps", 20)
    records = Records.read(tmp_path / "norms")
    steps, norms = records.series("norm")
    assert steps.tolist() == [5, 10, 15, 20]
    from safetensors.torch import load_file

    state = load_file(tmp_path / "checkpoints" / "checkpoint-20" / "model.safetensors")
    whole = np.sqrt(sum(float(t.double().square().sum()) for t in state.values()))
    assert norms[-1] == pytest.approx(whole, rel=1e-12)
    shown = board(tmp_path / "checkpoints") or board(tmp_path)
    (tag,) = [tag for tag in shown if tag.endswith("normgrowth/model/norm")]
    assert shown[tag] == {
        step: pytest.approx(norm, rel=1e-6) for step, norm in zip(steps, norms, strict=True)
    }
    assert any(tag.endswith("normgrowth/layer.1/relative_step") for tag in shown)

    run("track_hf.py", monkeypatch, tmp_path, "--steps", 40, "--resume")
    again = Records.read(tmp_path / "norms")
    assert again.series("norm")[0].tolist() == [5, 10, 15, 20, 25, 30, 35, 40]
    assert again.series("norm")[1][:4].tolist() == norms.tolist()
    assert main(["watch", str(tmp_path / "norms"), "--once"]) == 0
    assert "step 40, 8 measured" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")
def test_lightning(tmp_path, monkeypatch):
    pytest.importorskip("lightning")
    run("track_lightning.py", monkeypatch, tmp_path, "--steps", 20)
    records = Records.read(tmp_path / "norms")
    steps, norms = records.series("norm")
    assert steps.tolist() == [5, 10, 15, 20]
    with (tmp_path / "logs" / "version_0" / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["normgrowth/model/norm"]]
    assert [int(row["step"]) for row in rows] == steps.tolist()
    assert [float(row["normgrowth/model/norm"]) for row in rows] == pytest.approx(norms.tolist())
    gradients = records.series("gradient_norm")[1]
    assert [float(row["normgrowth/model/gradient_norm"]) for row in rows] == pytest.approx(gradients.tolist())


@pytest.mark.filterwarnings("ignore")
def test_a_plain_loop_with_tensorboard_and_wandb(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run("track_plain.py", monkeypatch, tmp_path, "--steps", 10, "--wandb")
    records = read(tmp_path / "norms")
    steps, norms = records.series("norm")
    assert steps.tolist() == [5, 10]
    assert board(tmp_path / "logs")["model/norm"] == {
        step: pytest.approx(norm, rel=1e-6) for step, norm in zip(steps, norms, strict=True)
    }
    (file,) = tmp_path.rglob("run-*.wandb")
    logged = wandb_history(file)
    assert [row["model/norm"] for row in logged] == pytest.approx(norms.tolist())


def wandb_history(file):
    """What an offline run of Weights & Biases holds: protocol buffers in blocks as LevelDB's log has them."""
    from wandb.proto import wandb_internal_pb2

    data, place, whole, rows = file.read_bytes(), 7, b"", []
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()  # pyright: ignore[reportAttributeAccessIssue]
            record.ParseFromString(whole)
            whole = b""
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                rows.append({i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in items})
    return [row for row in rows if "model/norm" in row]
