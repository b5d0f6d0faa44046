"""Corners that a review found: each gave a wrong number, lost something, or stopped a run."""

import copy
import gc
import io
import shutil
import signal
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from tracking.tiny_training import WholeTracker

from normgrowth.errors import InputError, SeriesWarning
from normgrowth.records import Records
from normgrowth.stored_result import StoredResult
from normgrowth.workspace import AppendLog

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_numbers")


def value(records, quantity, step=-1):
    return records.series(quantity)[1][step]


def test_parameters_and_gradients_that_do_not_lie_side_by_side():
    model = nn.Module()
    model.column = nn.Parameter(torch.randn(50, 30)[:, 0])
    model.tall = nn.Parameter(torch.randn(2000, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with WholeTracker(model, optimizer, every=np.int64(1)) as tracker:
        model.column.grad = torch.randn(50)
        model.tall.grad = torch.ones(1).expand(2000, 1)
        optimizer.step()
    whole = torch.cat([p.detach().double().flatten() for p in model.parameters()])
    gradients = torch.cat([model.column.grad.double(), torch.ones(2000).double()])
    assert value(tracker.trace.records, "norm") == pytest.approx(whole.norm().item(), rel=1e-12)
    assert value(tracker.trace.records, "gradient_norm") == pytest.approx(gradients.norm().item(), rel=1e-12)


KILLED = """
import sys, os, warnings
import torch
from torch import nn
from normgrowth import NormTracker, records
warnings.simplefilter("ignore")
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tracker = NormTracker(model, optimizer, include="all", every=1, out=sys.argv[1])
for step in range(1, 7):
    for p in model.parameters():
        p.grad = torch.full_like(p, float("nan") if step == 6 else 1.0)
    optimizer.step()
os.kill(os.getpid(), 9)
"""


def test_a_warning_survives_the_death_of_the_run(tmp_path):
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "out")], check=False)
    assert ended.returncode == -signal.SIGKILL
    stored = StoredResult.read(tmp_path / "out")
    assert stored.records.series("norm")[0].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert any("step 6: NaN or infinite weights" in note for note in stored.fields["notes"])


def test_no_step_twice_when_a_disk_fills_and_the_model_changes(tmp_path, monkeypatch):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = torch.ones_like(p)
        optimizer.step()

    tracker = WholeTracker(model, optimizer, every=1, out=tmp_path / "out")
    step()

    def full(self, *_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(AppendLog, "_write", full)
        with pytest.warns(SeriesWarning, match="cannot write"):
            step()
    model[1].weight = nn.Parameter(torch.randn(4, 4))
    optimizer.add_param_group({"params": [model[1].weight]})
    with pytest.warns(SeriesWarning, match="the parameters of the model have changed"):
        step()
    assert tracker.trace.records.series("norm")[0].tolist() == [0, 1, 2, 3]
    tracker.close()
    assert Records.read(tmp_path / "out").series("norm")[0].tolist() == [0, 1, 2, 3]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(4, 4)

    def forward(self, x):
        scores = self.map(x)[:, None] @ x.transpose(-1, -2)[:, None]
        return torch.softmax(input=scores, dim=-1) @ x[:, None]


def test_observing_never_breaks_a_pass_or_a_copy():
    model = Attention()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(2, 3, 4)
    with WholeTracker(model, optimizer, every=1, logits=True) as tracker:
        model(x).sum().backward()
        expected = (model.map(x) @ x.transpose(-1, -2)).abs().max().item()
        optimizer.step()
        assert value(tracker.trace.records, "attention_logit") == pytest.approx(expected, rel=1e-6)
        twin = copy.deepcopy(model)
        torch.save(model, io.BytesIO())
        twin(x).sum().backward()  # a copy is not watched
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        with pytest.warns(SeriesWarning, match="no logits were captured"):
            optimizer.step()


def test_watch_of_a_run_that_has_not_begun(tmp_path, capsys):
    from normgrowth.cli.main import main

    assert main(["watch", str(tmp_path), "--once"]) == 2
    assert "start a NormTracker with this folder as `out`" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
def test_the_trainer_may_be_interrupted_and_begin_again(tmp_path):
    """Ctrl-C in a notebook, then train() again in the same process and folder."""
    pytest.importorskip("accelerate")
    import transformers

    from normgrowth.tracking.integrations.transformers import NormCallback

    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=64, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    data = [{"input_ids": torch.randint(64, (8,)), "labels": torch.randint(64, (8,))} for _ in range(64)]

    class Interrupt(transformers.TrainerCallback):
        armed = True

        def on_step_end(self, args, state, control, **parts):
            if self.armed and state.global_step == 3:
                self.armed = False
                raise KeyboardInterrupt

    def trainer(**options):
        settings = transformers.TrainingArguments(
            output_dir=str(tmp_path / "run"),
            max_steps=6,
            per_device_train_batch_size=2,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            save_strategy="no",
        )
        made = transformers.Trainer(
            model=transformers.GPT2LMHeadModel(config), args=settings, train_dataset=data
        )
        made.add_callback(NormCallback(every=1, out=str(tmp_path / "norms"), **options))
        made.add_callback(Interrupt())
        return made

    first = trainer(resume_step=0)
    with pytest.raises(KeyboardInterrupt):
        first.train()
    first.train()
    assert Records.read(tmp_path / "norms").series("norm")[0].tolist() == [0, 1, 2, 3, 4, 5, 6]
    with pytest.raises(InputError, match="contains records of a run"):
        trainer().train()


# --- what a second review found -------------------------------------------------------------------------------
def given(parameters):
    for p in parameters:
        p.grad = torch.ones_like(p)


def test_an_optimizer_that_finds_its_own_learning_rate():
    transformers = pytest.importorskip("transformers")
    model = nn.Linear(4, 4)
    optimizer = transformers.Adafactor(model.parameters())
    assert optimizer.param_groups[0]["lr"] is None
    with WholeTracker(model, optimizer, every=1) as tracker:
        given(model.parameters())
        optimizer.step()
    assert value(tracker.trace.records, "step_size") > 0
    assert "learning_rate" not in tracker.trace.records.distinct("quantity")


def test_a_gradient_that_is_conjugated_in_name_only():
    model = nn.Module()
    model.phase = nn.Parameter(torch.tensor([3 + 4j, 1j]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with WholeTracker(model, optimizer, every=1) as tracker:
        (model.phase.conj() * torch.tensor([2j, 1.0])).real.sum().backward()
        assert model.phase.grad.is_conj()
        optimizer.step()
    assert value(tracker.trace.records, "gradient_norm") == pytest.approx(5**0.5, rel=1e-6)
    assert value(tracker.trace.records, "step_size") == pytest.approx(5**0.5, rel=1e-6)


def test_a_hook_that_clears_gradients_after_the_step():
    model = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    optimizer.register_step_post_hook(lambda optimizer, *_: optimizer.zero_grad())
    before = model.weight.detach().double().norm().item()
    with WholeTracker(model, optimizer, every=1) as tracker:
        given(model.parameters())
        optimizer.step()
    assert value(tracker.trace.records, "decay_step") == pytest.approx(0.05 * before, rel=1e-12)
    assert value(tracker.trace.records, "gradient_norm") == pytest.approx(4.0)
    assert value(tracker.trace.records, "equilibrium_norm") > 0


def test_a_step_uses_the_gradients_of_its_own_optimizer():
    model = nn.ModuleDict({"a": nn.Linear(4, 4, bias=False), "b": nn.Linear(4, 4, bias=False)})
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model.values()]
    trackers = [WholeTracker(model, optimizer, every=1) for optimizer in optimizers]
    model["a"].weight.grad, model["b"].weight.grad = torch.full((4, 4), 2.0), torch.full((4, 4), 3.0)
    for optimizer in optimizers:
        optimizer.step()
    assert [value(tracker.trace.records, "gradient_norm") for tracker in trackers] == [8.0, 12.0]
    assert [value(tracker.trace.records, "step_size") for tracker in trackers] == pytest.approx([0.8, 1.2])


def test_data_of_another_size_under_the_same_parameter():
    """The first weights are shorter then: nothing may be read beyond their end."""
    model = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with WholeTracker(model, optimizer, every=1, compare_first=True) as tracker:
        given(model.parameters())
        optimizer.step()
        model.weight.grad = None
        model.weight.data = torch.ones(40, 40)
        given(model.parameters())
        with pytest.warns(SeriesWarning, match="the parameters of the model have changed"):
            optimizer.step()
    assert value(tracker.trace.records, "numel") == 1600
    assert value(tracker.trace.records, "rms") == pytest.approx(0.9, rel=1e-6)
    assert tracker.trace.records.series("step_size", reference="first")[1][-1] == pytest.approx(4.0, rel=1e-6)


@pytest.mark.parametrize("held", ["a", "b", "ab"])
def test_parameters_that_share_their_memory_count_once(held):
    model = nn.Module()
    model.a = nn.Parameter(torch.ones(16))
    model.b = nn.Parameter(model.a.data)
    optimizer = torch.optim.AdamW([getattr(model, name) for name in held], lr=0.1, weight_decay=0.5)
    with WholeTracker(model, optimizer, every=1) as tracker:
        given(optimizer.param_groups[0]["params"])
        optimizer.step()
    assert tracker.trace.records.where(level="tensor").distinct("name") == ["a"]
    assert value(tracker.trace.records, "numel") == 16
    after = model.a.detach().double()
    assert value(tracker.trace.records, "norm") == pytest.approx(after.norm().item(), rel=1e-12)
    assert value(tracker.trace.records, "step_size") == pytest.approx((after - 1).norm().item(), rel=1e-12)
    assert value(tracker.trace.records, "gradient_norm") == pytest.approx((16 * len(held)) ** 0.5)
    assert value(tracker.trace.records, "learning_rate") == 0.1


def test_a_closed_tracker_lets_the_weights_go():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracker = WholeTracker(model, optimizer, every=1, compare_first=True, logits=True)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    weights = weakref.ref(model.weight)
    tracker.close()
    del model, optimizer
    gc.collect()
    assert weights() is None
    assert value(tracker.trace.records, "norm") > 0
    assert tracker.latest()["norm/model"] == value(tracker.trace.records, "norm")


def test_news_of_a_layout_that_is_gone():
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fails():
        raise ZeroDivisionError

    with WholeTracker(model, optimizer, every=1) as tracker:
        optimizer.step()
        model.append(nn.Linear(4, 4))
        with pytest.warns(SeriesWarning, match="2 new names"), pytest.raises(ZeroDivisionError):
            optimizer.step(fails)
        assert tracker.latest() == {}


def test_parameters_without_a_shape_yet():
    model = nn.Sequential(nn.LazyLinear(4))
    with pytest.raises(InputError, match=r"0\.weight has no shape before the model's first pass"):
        WholeTracker(model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_a_compiled_step():
    """The compiler leaves the tracker alone: it broke over the tracker's own compiled code."""
    found, graphs = {}, {}
    for kind in ("plain", "compiled", "not tracked"):
        torch._dynamo.utils.counters.clear()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01))
        step = optimizer.step if kind == "plain" else torch.compile(optimizer.step, backend="aot_eager")
        tracker = WholeTracker(model, optimizer, every=2) if kind != "not tracked" else None
        for i in range(12):  # more than the compiler tries again
            optimizer.zero_grad()
            model(torch.ones(2, 4) * i).sum().backward()
            step()
        found[kind] = [p.detach().clone() for p in model.parameters()], tracker
        graphs[kind] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        torch._dynamo.reset()
    assert graphs["compiled"] == graphs["not tracked"] > 0
    for a, b in zip(found["compiled"][0], found["not tracked"][0], strict=True):
        assert torch.equal(a, b)
    for quantity in ("norm", "step_size", "gradient_norm", "decay_step"):
        (steps, seen), (same, wanted) = (
            found[kind][1].trace.records.series(quantity) for kind in ("compiled", "plain")
        )
        start = [0] if quantity == "norm" else []  # before the first step there are norms only
        assert steps.tolist() == same.tolist() == [*start, 2, 4, 6, 8, 10, 12]
        np.testing.assert_allclose(seen, wanted, rtol=1e-4)  # a compiler rounds in its own way


FORKED = """
import os, sys
import torch
from torch import nn
from normgrowth import NormTracker, records
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tracker = NormTracker(model, optimizer, include="all", every=1, out=sys.argv[1])
for step in range(6):
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    if step == 2 and (child := os.fork()) == 0:
        sys.exit()
os.waitpid(child, 0)
optimizer.step()
os.kill(os.getpid(), 9)
"""


def test_a_forked_process_that_ends_takes_nothing_with_it(tmp_path):
    ended = subprocess.run([sys.executable, "-c", FORKED, str(tmp_path / "out")], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert Records.read(tmp_path / "out").series("norm")[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_a_kill_while_a_run_goes_back_leaves_no_hole(tmp_path, monkeypatch):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given(model.parameters())
    with WholeTracker(model, optimizer, every=1, out=tmp_path / "run"):
        for _ in range(6):
            optimizer.step()
        shutil.copytree(tmp_path / "run", tmp_path / "killed")
    (tmp_path / "killed" / ".lock").unlink()
    seen, put = [], AppendLog._write

    def look(self, *content):
        """What a kill before and after each write would leave."""
        seen.append(Records.read(tmp_path / "killed").series("norm")[0].tolist())
        put(self, *content)
        seen.append(Records.read(tmp_path / "killed").series("norm")[0].tolist())

    with monkeypatch.context() as watched:
        watched.setattr(AppendLog, "_write", look)
        WholeTracker(model, optimizer, every=1, out=tmp_path / "killed", resume_step=2).close()
    whole, dropped = [0, 1, 2, 3, 4, 5, 6], [0, 1, 2]
    assert seen
    assert all(steps in (whole, dropped) for steps in seen), seen
    assert Records.read(tmp_path / "killed").series("norm")[0].tolist() == dropped


def test_records_that_cannot_be_written_do_not_stop_a_run(tmp_path):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracker = WholeTracker(model, optimizer, every=1, out=tmp_path / "run")
    optimizer.step()
    (tmp_path / "run" / "records.parquet").mkdir()
    tracker.close()
    (tmp_path / "run" / "records.parquet").rmdir()
    assert Records.read(tmp_path / "run").series("norm")[0].tolist() == [0, 1], "what was measured is kept"
    WholeTracker(model, optimizer, out=tmp_path / "run", resume_step=1).close()  # and the folder is free


def test_watch_says_what_is_wrong_with_a_log(tmp_path, capsys):
    from normgrowth.cli.main import main

    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "part-000.arrows").write_text("something else")
    assert main(["watch", str(tmp_path), "--once"]) == 2
    assert "part-000.arrows: not readable as an Arrow stream" in capsys.readouterr().err
