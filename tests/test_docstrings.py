"""The examples in the docstrings of public functions run, and print what they show."""

import doctest
import inspect
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers

import normgrowth as ng
from normgrowth.engine import Threads

FUNCTIONS = [name for name in ng.__all__ if not inspect.isclass(getattr(ng, name))]
CLASSES = ["NormTracker", "scaled_weights"]


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory):
    """A folder with the checkpoints of a small model, and the names that the examples use."""
    folder = tmp_path_factory.mktemp("examples")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=None
    )
    model = transformers.GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    tokens = torch.randint(0, 50, (8, 16))

    def train(model, optimizer, steps=20):
        for _ in range(steps):
            optimizer.zero_grad()
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()

    for step in range(0, 60, 5):
        model.save_pretrained(folder / "checkpoints" / f"checkpoint-{step}")
        train(model, optimizer, 5)
    model.eval()
    names = dict(ng=ng, np=np, torch=torch, model=model, optimizer=optimizer, inputs={"input_ids": tokens})
    return SimpleNamespace(folder=folder, names=names | {"train": train, "Threads": Threads})


@pytest.mark.parametrize("name", sorted({*FUNCTIONS, *CLASSES}))
def test_the_example_of_a_docstring_runs(name, surroundings, monkeypatch):
    monkeypatch.chdir(surroundings.folder)
    names = dict(surroundings.names)
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(ng, name), name, globs=names)
    assert example.examples, "an example"
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(example, out=report.append, clear_globs=False)
    assert not report, "".join(report)
