"""Learning rates, decay and betas that a run recorded: `dynamics` needs none of them by hand."""

import json
import os
import tracemalloc

import numpy as np
import pytest

import normgrowth as ng
from normgrowth.checkpoints.local_files import LARGEST_TRAINER_STATE
from normgrowth.schedules import cosine, linear, recorded
from normgrowth.trace.trainer_state import recorded_groups, recorded_schedule


def test_a_recorded_schedule_is_the_one_that_was_logged():
    given = linear(1e-3, 100, warmup=20)
    found = recorded({t: given(t) for t in range(0, 121, 5)})
    assert len(found.points) == 4, "only corners are kept"
    at = np.array([0, 3, 20, 55.5, 100, 120])
    np.testing.assert_allclose(found(at), given(at), atol=1e-12)
    for power in (1, 2):
        np.testing.assert_allclose(found.integral(at, power), given.integral(at, power), atol=1e-12)
        assert found.integral(55.5, power) == pytest.approx(given.integral(55.5, power))
    assert found(1000) == 0.0
    assert str(found) == "recorded learning rates, 0 to 0.001"


def write_log(folder, step, rates, padding=0):
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"step": at, "learning_rate": rate, "loss": 1.0} for at, rate in rates.items()]
    content = {"global_step": step, "log_history": rows, "padding": " " * padding}
    (folder / "trainer_state.json").write_text(json.dumps(content))


def test_the_newest_log_decides(tmp_path):
    for step, rate in ((20, 2.0), (9, 1.0), (100, 3.0)):
        write_log(tmp_path / f"checkpoint-{step}", step, {at + 1: rate for at in range(step)})
    write_log(tmp_path / "huge", 200, {1: 10**400, 10**400: 1.0, 2: 3.0})
    assert recorded_schedule(tmp_path)([0, 5, 50, 99]).tolist() == [3.0] * 4


def test_the_logs_of_many_checkpoints_take_the_memory_of_one(tmp_path):
    def peak(folder, count):
        for i in range(count):
            write_log(folder / f"checkpoint-{i}", i, {at + 1: 1e-3 for at in range(10_000)})
        tracemalloc.start()
        assert recorded_schedule(folder) is not None
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(tmp_path / "many", 8) < 1.5 * peak(tmp_path / "two", 2)


@pytest.mark.parametrize("kind", ["pipe", "device", "too large"])
def test_a_trainers_file_that_is_no_log_is_ignored(tmp_path, kind):
    from synthetic_series import walk, write_series

    write_series(tmp_path, walk(2))
    for at in (1, 2):
        folder = tmp_path / f"checkpoint-{at}"
        write_log(folder, at, {1: 1.0, 2: 1.0}, LARGEST_TRAINER_STATE if kind == "too large" else 0)
        for name in ("trainer_state.json", "scheduler.pt", "optimizer.pt") if kind != "too large" else ():
            (folder / name).unlink(missing_ok=True)
            os.mkfifo(folder / name) if kind == "pipe" else (folder / name).symlink_to("/dev/zero")
    (tmp_path / "trainer_state.json").symlink_to(tmp_path / "checkpoint-1/trainer_state.json")
    trace = ng.trace(tmp_path, lint=False)
    assert (trace.steps, trace.schedule) == ((0, 100), None)
    assert [entry.step for entry in ng.open_source(tmp_path / "step_100.safetensors").entries] == [100]


def test_a_curved_schedule_between_logged_steps():
    given = cosine(1e-3, 1000)
    found = recorded({t: given(t) for t in range(0, 1001, 10)})
    np.testing.assert_allclose(found.integral(1000.0, 2), given.integral(1000.0, 2), rtol=1e-4)


def test_a_tracker(tmp_path):
    """The same as with schedule, decay and betas by hand, from the trace and from its folder."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, betas=(0.8, 0.9))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / 40)
    with ng.NormTracker(model, optimizer, every=1, out=tmp_path / "run", warn=False) as tracker:
        for _ in range(30):
            optimizer.zero_grad()
            model(torch.randn(4, 3, 8)).square().mean().backward()
            optimizer.step()
            schedule.step()
    by_hand = ng.dynamics(tracker.trace, "linear:lr=1e-3,steps=40", weight_decay=0.1, betas=(0.8, 0.9))
    for source in (tracker.trace, tmp_path / "run"):
        found = ng.dynamics(source)
        assert found.weight_decay == 0.1
        assert found.optimizer.betas == (0.8, 0.9)
        assert found.misaligned.kappa == pytest.approx(by_hand.misaligned.kappa, rel=1e-6)
        assert found.verdict == by_hand.verdict
        assert [e.equilibrium.norm for e in found.equilibria] == pytest.approx(
            [e.equilibrium.norm for e in by_hand.equilibria], rel=1e-6
        )
    ng.dynamics(tracker.trace).save(tmp_path / "dynamics")
    assert ng.load(tmp_path / "dynamics").schedule == ng.dynamics(tracker.trace).schedule


CLOSED, NO_FORM, WITHOUT_DECAY = "closed", "no closed form", "without decay"
OPTIMIZERS = {
    "Muon": ({"lr": 1e-2, "weight_decay": 0.1}, NO_FORM),
    "Muon, no decay": ({"lr": 1e-2, "weight_decay": 0.0}, WITHOUT_DECAY),
    "SGD": ({"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2}, CLOSED),
    "SGD, Nesterov": ({"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-2}, NO_FORM),
    "SGD, no decay": ({"lr": 0.1}, WITHOUT_DECAY),
    "Adam": ({"lr": 1e-3, "weight_decay": 0.1}, NO_FORM),
    "AdamW": ({"lr": 1e-3, "weight_decay": 0.1}, CLOSED),
    "AdamW, amsgrad": ({"lr": 1e-3, "weight_decay": 0.1, "amsgrad": True}, CLOSED),
    "RMSprop": ({"lr": 1e-3, "weight_decay": 0.1}, NO_FORM),
    "Adagrad": ({"lr": 1e-2, "weight_decay": 0.1}, NO_FORM),
    "Adafactor": ({"lr": 1e-2, "weight_decay": 0.1}, NO_FORM),
    "NAdam": ({"lr": 1e-3, "weight_decay": 0.1, "decoupled_weight_decay": True}, NO_FORM),
    "RAdam": ({"lr": 1e-3, "weight_decay": 0.1, "decoupled_weight_decay": True}, NO_FORM),
    "Adamax": ({"lr": 1e-3, "weight_decay": 0.1}, NO_FORM),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_a_tracker(name, tmp_path):
    """An equilibrium with the recorded gradient norm, or a note on why there is none; never an error."""
    torch = pytest.importorskip("torch")
    kind, (options, expected) = name.partition(",")[0], OPTIMIZERS[name]
    if not hasattr(torch.optim, kind):
        pytest.skip(f"this torch has no {kind}")
    torch.manual_seed(0)
    model = torch.nn.ModuleDict(
        {"layers": torch.nn.ModuleList(torch.nn.Linear(4, 4, bias=False) for _ in range(2))}
    )
    optimizer = getattr(torch.optim, kind)(model.parameters(), **options)
    with ng.NormTracker(model, optimizer, every=1, out=tmp_path / "run", warn=False):
        for _ in range(6):
            for p in model.parameters():
                p.grad = torch.randn_like(p)
            optimizer.step()
    found = ng.dynamics(tmp_path / "run")
    assert found.misaligned is not None
    assert found.weight_decay == options.get("weight_decay", 0.0)
    assert bool(found.equilibria) == (expected == CLOSED)
    assert any("equilibrium" in note for note in found.notes) == (expected == NO_FORM)
    assert "sgd" not in " ".join(found.notes) or kind == "SGD"
    assert str(found)
    if kind == "SGD" and expected == CLOSED:
        gradients = ng.load(tmp_path / "run").records.series("gradient_norm")[1]
        norm = float(np.sqrt(np.mean(gradients**2)))
        wanted = ng.equilibrium("sgd", lr=0.1, weight_decay=1e-2, gradient_norm=norm, momentum=0.9)
        assert found.equilibria[0].equilibrium.norm == pytest.approx(wanted.norm, rel=1e-12)
    given = ng.dynamics(tmp_path / "run", weight_decay=0.2)
    assert given.weight_decay == 0.2


def test_groups_with_other_rates_have_no_common_schedule(tmp_path):
    torch = pytest.importorskip("torch")
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    first, *others = model.parameters()
    optimizer = torch.optim.AdamW([{"params": [first], "lr": 1e-2}, {"params": others}], lr=1e-3)
    with ng.NormTracker(model, optimizer, every=1, warn=False) as tracker:
        for _ in range(3):
            model(torch.randn(4, 3, 8)).square().mean().backward()
            optimizer.step()
    found = ng.dynamics(tracker.trace)
    assert found.schedule is None
    assert found.verdict is None
    assert found.weight_decay is None


@pytest.mark.filterwarnings("ignore")
def test_checkpoints_of_the_trainer(tmp_path):
    """A real Trainer with a real schedule: its log, and scheduler.pt where the log is gone."""
    pytest.importorskip("accelerate")
    from tracking.test_callbacks import tiny_trainer

    more = {"lr_scheduler_type": "linear", "learning_rate": 1e-3, "weight_decay": 0.1}
    more |= {"adam_beta1": 0.8, "adam_beta2": 0.99}
    trainer = tiny_trainer(tmp_path, save_strategy="steps", save_steps=2, **more)
    trainer.train()
    given = linear(1e-3, 6)
    schedule = recorded_schedule(tmp_path)
    np.testing.assert_allclose(schedule([1, 2, 3, 5]), given([1, 2, 3, 5]), atol=1e-12)
    decay = trainer.optimizer.param_groups[0]["weight_decay"]
    assert decay == 0.1
    trace = ng.trace(tmp_path, lint=False)
    assert [group.weight_decay for group in trace.optimizer_groups] == [0.1, 0.0]
    counts = [sum(p.numel() for p in group["params"]) for group in trainer.optimizer.param_groups]
    assert [group.parameters for group in trace.optimizer_groups] == counts
    found = ng.dynamics(trace)
    assert (found.weight_decay, found.optimizer.betas) == (0.1, (0.8, 0.99))
    assert found.schedule == schedule
    assert found.misaligned is not None

    for path in tmp_path.glob("*/trainer_state.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "log_history": []}))
    np.testing.assert_allclose(recorded_schedule(tmp_path)([2, 4]), given([2, 4]), atol=1e-12)
    for path in tmp_path.glob("*/scheduler.pt"):
        path.write_bytes(b"cos\nsystem\n(S'echo'\ntR.")
    assert recorded_schedule(tmp_path) is None
    for path in tmp_path.glob("*/optimizer.pt"):
        path.write_bytes(b"cos\nsystem\n(S'echo'\ntR.")
    assert recorded_groups(tmp_path) == ()
    (tmp_path / "checkpoint-2" / "trainer_state.json").write_text("[1, 2")
    assert recorded_schedule(tmp_path) is None
