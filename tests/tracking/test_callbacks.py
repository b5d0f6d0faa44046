"""Trackers in other people's training loops: the examples, run as they are, and what reaches the reporters."""

import csv
import json
import pickle
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from normgrowth.cli.main import main
from normgrowth.records import Records

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
    assert steps.tolist() == [0, 5, 10, 15, 20]
    from safetensors.torch import load_file

    state = load_file(tmp_path / "checkpoints" / "checkpoint-20" / "model.safetensors")
    blocks = [t for name, t in state.items() if ".h." in name]
    assert norms[-1] == pytest.approx(
        np.sqrt(sum(float(t.double().square().sum()) for t in blocks)), rel=1e-12
    )
    shown = board(tmp_path / "checkpoints") or board(tmp_path)
    (tag,) = [tag for tag in shown if tag.endswith("normgrowth/norm/model")]
    assert shown[tag] == {
        step: pytest.approx(norm, rel=1e-6) for step, norm in zip(steps[1:], norms[1:], strict=True)
    }
    assert any(tag.endswith("normgrowth/relative_step/layer.1") for tag in shown)

    run("track_hf.py", monkeypatch, tmp_path, "--steps", 40, "--resume")
    again = Records.read(tmp_path / "norms")
    assert again.series("norm")[0].tolist() == [0, 5, 10, 15, 20, 25, 30, 35, 40]
    assert again.series("norm")[1][:5].tolist() == norms.tolist()
    assert main(["watch", str(tmp_path / "norms"), "--once"]) == 0
    assert "step 40, 9 measured" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")
def test_lightning(tmp_path, monkeypatch):
    pytest.importorskip("lightning")
    run("track_lightning.py", monkeypatch, tmp_path, "--steps", 20)
    records = Records.read(tmp_path / "norms")
    steps, norms = records.series("norm")
    assert steps.tolist() == [0, 5, 10, 15, 20]
    with (tmp_path / "logs" / "version_0" / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["normgrowth/norm/model"]]
    assert [int(row["step"]) for row in rows] == steps[1:].tolist()
    assert [float(row["normgrowth/norm/model"]) for row in rows] == pytest.approx(norms[1:].tolist())
    gradients = records.series("gradient_norm")[1]
    assert [float(row["normgrowth/gradient_norm/model"]) for row in rows] == pytest.approx(gradients.tolist())


def two_optimizers():
    """A Lightning module whose second optimizer steps at every third batch."""
    import lightning.pytorch as pl
    import torch
    from torch import nn

    class Two(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            torch.manual_seed(0)
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.seen = ([], [])

        def training_step(self, batch, i):
            self.b(self.a(batch[0])).square().mean().backward()
            for part, optimizer, seen in zip((self.a, self.b), self.optimizers(), self.seen, strict=True):
                if part is self.a or i % 3 == 0:
                    optimizer.step()
                    weights = [*self.a.parameters(), *self.b.parameters()]
                    gradients = [p.grad for p in part.parameters()]
                    seen.append([norm_of(weights), norm_of(gradients)])
            self.zero_grad()

        def configure_optimizers(self):
            return torch.optim.SGD(self.a.parameters(), lr=0.1), torch.optim.AdamW(self.b.parameters())

    def norm_of(tensors):
        return torch.cat([t.detach().double().flatten() for t in tensors]).norm().item()

    return Two()


@pytest.mark.filterwarnings("ignore")
def test_lightning_with_two_optimizers_that_step_unequally(tmp_path):
    """Numbers, folders and names of each; then the same Trainer goes on, and another one from a checkpoint."""
    pl = pytest.importorskip("lightning.pytorch")
    import torch
    from lightning.pytorch.loggers import CSVLogger
    from torch.utils.data import DataLoader, TensorDataset

    from normgrowth.tracking.integrations.lightning import NormCallback

    batches = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=4)

    def trainer(epochs, name):
        return pl.Trainer(
            accelerator="cpu",
            max_epochs=epochs,
            logger=CSVLogger(tmp_path, name=name, version=0),
            log_every_n_steps=1,
            callbacks=[NormCallback(every=1, out=str(tmp_path / "norms"), include="all")],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )

    def recorded(i, quantity):
        steps, values = Records.read(tmp_path / "norms" / f"optimizer-{i}").series(quantity)
        values = values[steps > 0]
        assert steps[steps > 0].tolist() == list(range(1, len(values) + 1))
        return values.tolist()

    def assert_recorded(seen, before=((), ())):
        for i, (old, new) in enumerate(zip(before, seen, strict=True)):
            for at, quantity in enumerate(("norm", "gradient_norm")):
                wanted = [row[at] for row in [*old, *new]]
                assert recorded(i, quantity) == pytest.approx(wanted, rel=1e-12)

    first, model = trainer(1, "first"), two_optimizers()
    first.fit(model, batches)
    assert [len(rows) for rows in model.seen] == [6, 2]
    assert_recorded(model.seen)
    with (tmp_path / "first" / "version_0" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    for i in range(2):
        tag = f"normgrowth/optimizer-{i}/gradient_norm/model"
        logged = {int(row["step"]): float(row[tag]) for row in rows if row[tag]}
        assert logged == pytest.approx(dict(enumerate(recorded(i, "gradient_norm"), 1)))
    first.save_checkpoint(tmp_path / "checkpoint")
    early = tuple(list(rows) for rows in model.seen)

    first.fit_loop.max_epochs = 2
    first.fit(model, batches)
    assert [len(rows) for rows in model.seen] == [12, 4]
    assert_recorded(model.seen)

    second, resumed = trainer(2, "second"), two_optimizers()
    second.fit(resumed, batches, ckpt_path=tmp_path / "checkpoint", weights_only=False)
    assert_recorded(resumed.seen, early)
    second.fit_loop.max_epochs = 3
    second.fit(resumed, batches)
    assert [len(recorded(i, "norm")) for i in range(2)] == [18, 6]
    assert_recorded(resumed.seen, early)


def logged_by_tensorboard(folder):
    return board(folder)


def logged_by_wandb(folder):
    (file,) = folder.rglob("run-*.wandb")
    found = {}
    for row in wandb_history(file):
        for name, value in row.items():
            found.setdefault(name, {})[row["train/global_step"]] = value
    return found


def logged_by_mlflow(folder):
    from mlflow import MlflowClient

    client = MlflowClient(f"file:{folder / 'mlruns'}")
    (run,) = client.search_runs([e.experiment_id for e in client.search_experiments()])
    return {
        name: {point.step: point.value for point in client.get_metric_history(run.info.run_id, name)}
        for name in run.data.metrics
    }


def logged_by_trackio(folder):
    import sqlite3

    (file,) = [path for path in (folder / "trackio").rglob("*.db") if "tiny" in path.name]
    found = {}
    with sqlite3.connect(file) as database:
        for (text,) in database.execute("select metrics from metrics"):
            row = json.loads(text)
            for name, value in row.items():
                found.setdefault(name, {})[row["train/global_step"]] = value
    return found


def tiny_trainer(folder, **settings):
    import torch
    import transformers

    torch.manual_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(vocab_size=64, n_positions=8, n_embd=8, n_layer=11, n_head=1, **ends)
    data = [{"input_ids": torch.randint(64, (8,)), "labels": torch.randint(64, (8,))} for _ in range(16)]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=6,
        per_device_train_batch_size=2,
        logging_steps=2,
        disable_tqdm=True,
        use_cpu=True,
        **{"report_to": [], "save_strategy": "no", **settings},
    )
    return transformers.Trainer(
        model=transformers.GPT2LMHeadModel(config), args=arguments, train_dataset=data
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reporter", ["tensorboard", "wandb", "mlflow", "trackio"])
def test_reporters_of_the_trainer(tmp_path, monkeypatch, capsys, reporter):
    """They get our values and the loss; log_history, trainer_state.json and the console get the loss only."""
    pytest.importorskip("accelerate")
    from normgrowth.tracking.integrations.transformers import NormCallback

    monkeypatch.chdir(tmp_path)
    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_DIR": str(tmp_path),
        "MLFLOW_TRACKING_URI": f"file:{tmp_path / 'mlruns'}",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
    }.items():
        monkeypatch.setenv(name, value)
    pytest.importorskip(reporter)  # trackio reads its folder when it is imported
    more = {"project": "tiny"} if reporter == "trackio" else {}
    trainer = tiny_trainer(
        tmp_path / "run", report_to=[reporter], save_strategy="steps", save_steps=6, run_name="tiny", **more
    )
    callback = NormCallback(every=1, include="all").log_to(trainer)
    trainer.add_callback(callback)
    trainer.train()
    if reporter == "wandb":
        pytest.importorskip("wandb").teardown()  # which writes the last rows
    shown = globals()[f"logged_by_{reporter}"](tmp_path)
    prefix = "" if reporter == "mlflow" else "train/"
    norms = dict(
        zip(*(series[1:].tolist() for series in callback.tracker.trace.records.series("norm")), strict=True)
    )
    assert shown[f"{prefix}normgrowth/norm/model"] == pytest.approx(norms, rel=1e-6)
    layers = sorted(name for name in shown if name.startswith(f"{prefix}normgrowth/angle/layer."))
    assert layers == [f"{prefix}normgrowth/angle/layer.{i:02d}" for i in range(11)]
    assert sorted(shown[f"{prefix}loss"]) == [2, 4, 6]
    saved = json.loads((tmp_path / "run" / "checkpoint-6" / "trainer_state.json").read_text())
    for history in (trainer.state.log_history, saved["log_history"]):
        assert [row["step"] for row in history if "loss" in row] == [2, 4, 6]
        assert not [name for row in history for name in row if "normgrowth" in name]
    console = capsys.readouterr()
    assert "'loss'" in console.out
    assert "normgrowth/" not in console.out + console.err


@pytest.mark.filterwarnings("ignore")
def test_a_plain_loop_with_tensorboard_and_wandb(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run("track_plain.py", monkeypatch, tmp_path, "--steps", 10, "--wandb")
    records = Records.read(tmp_path / "norms")
    steps, norms = records.series("norm")
    assert steps.tolist() == [0, 5, 10]
    assert board(tmp_path / "logs")["norm/model"] == {
        step: pytest.approx(norm, rel=1e-6) for step, norm in zip(steps[1:], norms[1:], strict=True)
    }
    (file,) = tmp_path.rglob("run-*.wandb")
    logged = wandb_history(file)
    assert [row["norm/model"] for row in logged if "norm/model" in row] == pytest.approx(norms[1:].tolist())


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
    return rows


@pytest.mark.parametrize("library", ["transformers", "lightning"])
def test_a_callback_pickles_without_its_run(library):
    pytest.importorskip(library)
    from importlib import import_module

    import torch
    from tracking.tiny_training import tiny

    from normgrowth import NormTracker

    kind = import_module(f"normgrowth.tracking.integrations.{library}").NormCallback
    callback = kind(every=3, out="norms", include="all")
    model = tiny()
    tracker = NormTracker(model, torch.optim.SGD(model.parameters(), lr=0.1))
    place, held = ("trackers", [tracker]) if library == "lightning" else ("tracker", tracker)
    setattr(callback, place, held)
    copy = pickle.loads(pickle.dumps(callback))
    assert (copy.every, copy.out, copy.options) == (3, "norms", {"include": "all"})
    assert not getattr(copy, place)


def test_steps_are_those_of_the_trainer_where_a_scaler_skips_some():
    """The Trainer counts a step that a gradient scaler skipped; the optimizer does not see it."""
    pytest.importorskip("transformers")
    from types import SimpleNamespace

    import torch
    from tracking.tiny_training import backward, tiny

    from normgrowth import NormCallback

    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    callback, state = NormCallback(every=1), SimpleNamespace(global_step=0)
    callback.on_train_begin(None, state, None, model=model, optimizer=optimizer)
    for _ in range(5):
        callback.on_step_begin(None, state, None)
        if state.global_step != 2:
            backward(model, state.global_step)
            optimizer.step()
        state.global_step += 1
        callback.on_step_end(None, state, None)
    assert callback.tracker.trace.records.distinct("step") == [0, 1, 2, 4, 5]
    callback.on_train_end(None, state, None)
