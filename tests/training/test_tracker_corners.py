"""Corners that a review found: each gave a wrong number, lost something, or stopped a run."""

import copy
import io
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from normgrowth import NormTracker
from normgrowth.errors import InputError, SeriesWarning
from normgrowth.training.journal import Journal, read

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_numbers")


def value(records, quantity, step=-1):
    return records.series(quantity)[1][step]


def test_parameters_and_gradients_that_do_not_lie_side_by_side():
    model = nn.Module()
    model.column = nn.Parameter(torch.randn(50, 30)[:, 0])
    model.tall = nn.Parameter(torch.randn(2000, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NormTracker(model, optimizer, every=np.int64(1)) as tracker:
        model.column.grad = torch.randn(50)
        model.tall.grad = torch.ones(1).expand(2000, 1)
        optimizer.step()
    whole = torch.cat([p.detach().double().flatten() for p in model.parameters()])
    gradients = torch.cat([model.column.grad.double(), torch.ones(2000).double()])
    assert value(tracker.records, "norm") == pytest.approx(whole.norm().item(), rel=1e-12)
    assert value(tracker.records, "gradient_norm") == pytest.approx(gradients.norm().item(), rel=1e-12)


KILLED = """
import sys, os, warnings
import torch
from torch import nn
from normgrowth import NormTracker
warnings.simplefilter("ignore")
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tracker = NormTracker(model, optimizer, every=1, out=sys.argv[1])
for step in range(1, 7):
    for p in model.parameters():
        p.grad = torch.full_like(p, float("nan") if step == 6 else 1.0)
    optimizer.step()
os.kill(os.getpid(), 9)
"""


def test_a_warning_survives_the_death_of_the_run(tmp_path):
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "out")], check=False)
    assert ended.returncode == -signal.SIGKILL
    records = read(tmp_path / "out")
    assert records.series("norm")[0].tolist() == [1, 2, 3, 4, 5, 6]
    assert any("step 6: NaN or infinite weights" in note for note in records.made_by["notes"])


def test_no_step_twice_when_a_disk_fills_and_the_model_changes(tmp_path, monkeypatch):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = torch.ones_like(p)
        optimizer.step()

    tracker = NormTracker(model, optimizer, every=1, out=tmp_path / "out")
    step()

    def full(self, *_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(Journal, "_append", full)
        with pytest.warns(SeriesWarning, match="stopped writing"):
            step()
    model[1].weight = nn.Parameter(torch.randn(4, 4))
    optimizer.add_param_group({"params": [model[1].weight]})
    with pytest.warns(SeriesWarning, match="other parameters than before"):
        step()
    assert tracker.records.series("norm")[0].tolist() == [1, 2, 3]
    tracker.close()
    assert read(tmp_path / "out").series("norm")[0].tolist() == [1, 2, 3]


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
    with NormTracker(model, optimizer, every=1, logits=True) as tracker:
        model(x).sum().backward()
        expected = (model.map(x) @ x.transpose(-1, -2)).abs().max().item()
        optimizer.step()
        assert value(tracker.records, "attention_logit") == pytest.approx(expected, rel=1e-6)
        twin = copy.deepcopy(model)
        torch.save(model, io.BytesIO())
        twin(x).sum().backward()  # a copy is not watched
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        with pytest.warns(SeriesWarning, match="no logits were seen"):
            optimizer.step()


def test_watch_of_a_run_that_has_not_begun(tmp_path, capsys):
    from normgrowth.cli import main

    assert main(["watch", str(tmp_path), "--once"]) == 2
    assert "a NormTracker with this `out` writes them" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
def test_the_trainer_may_be_interrupted_and_begin_again(tmp_path):
    """Ctrl-C in a notebook, then train() again in the same process and folder."""
    pytest.importorskip("accelerate")
    import transformers

    from normgrowth.training import hf

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
        hf.track(made, every=1, out=str(tmp_path / "norms"), **options)
        made.add_callback(Interrupt())
        return made

    first = trainer(step=0)
    with pytest.raises(KeyboardInterrupt):
        first.train()
    first.train()
    assert read(tmp_path / "norms").series("norm")[0].tolist() == [1, 2, 3, 4, 5, 6]
    with pytest.raises(InputError, match="has records of a run"):
        trainer().train()
