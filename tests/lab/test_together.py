"""Cells trained together against the same cells trained alone."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import tiny_settings
import torch
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st

from normgrowth.errors import InputError
from normgrowth.lab.build import new_model
from normgrowth.lab.cells import stacked_models as stacked
from normgrowth.lab.cells.cell import batches, train_alone
from normgrowth.lab.cells.stacked_cells import in_common, pays, train_together
from normgrowth.lab.cells.stacked_models import Stacked
from normgrowth.lab.data.corpus import load_corpus
from normgrowth.lab.evaluate import NextToken
from normgrowth.lab.settings import preset

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = replace(tiny_settings.TINY, batch=8, min_count=20)
PYDOC = load_corpus("pydoc", min_count=20)
SHAPES = {
    "paper_pre_norm": {},
    "usual_pre_norm": {"kind": "usual_pre_norm", "final_norm": True, "include": "all"},
    "post_norm": {"kind": "post_norm", "tied": True},
    "tied": {"tied": True, "include": "all"},
    "no biases": {"bias": False},
}
STEPS = {
    "adamw": [{"lr": 1e-3}, {"lr": 1e-2, "weight_decay": 0.5}, {"lr": 1e-4, "weight_decay": 0.0}],
    "clip": [{"clip": 1.0, "lr": 1e-2}, {"clip": 0.1}, {}],
    "sgd": [
        {"optimizer": "sgd", "lr": 0.1},
        {"optimizer": "sgd", "lr": 0.03, "weight_decay": 0.1, "momentum": 0.9},
        {"optimizer": "sgd", "lr": 1.0, "weight_decay": 0.1, "clip": 0.5},
    ],
    "all sorts": [
        {"schedule": "linear", "warmup": 3},
        {"schedule": "cosine", "end": 1e-4, "lr": 3e-3},
        {"optimizer": "adam", "weight_decay": 0.1},
        {"optimizer": "sgd", "momentum": 0.5, "lr": 0.2},
    ],
}


def assert_same(found, expected, rel=1e-9):
    found, expected = asdict(found), asdict(expected)
    assert found.pop("diverged_at") == expected.pop("diverged_at")
    for name in expected.keys() - {"seconds"}:
        assert found[name] == pytest.approx(expected[name], rel=rel, nan_ok=True), name


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("steps", STEPS)
def test_together_as_alone(shape, steps):
    cells = [replace(TINY, **SHAPES[shape], **own) for own in STEPS[steps]]
    for cell, found in zip(cells, train_together(cells, PYDOC, dtype=torch.float64), strict=True):
        assert_same(found, train_alone(cell, PYDOC, dtype=torch.float64))


@profile(max_examples=5, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([("adamw", 1e-2), ("sgd", 0.3)]), st.floats(1e-4, 1.0), st.floats(0, 3.0)),
        min_size=1,
        max_size=5,
    )
)
def test_any_rates_and_decays(drawn):
    cells = [
        replace(TINY, steps=5, optimizer=optimizer, lr=largest * part, weight_decay=decay)
        for (optimizer, largest), part, decay in drawn
    ]
    for cell, found in zip(cells, train_together(cells, PYDOC, dtype=torch.float64), strict=True):
        assert_same(found, train_alone(cell, PYDOC, dtype=torch.float64))


@pytest.mark.parametrize("bad", [{"optimizer": "sgd", "lr": 1e12}, {"lr": 1e200}])
def test_a_diverging_cell_disturbs_no_other(bad):
    good = [replace(TINY, lr=lr) for lr in (1e-4, 1e-3, 1e-2)]
    cells = [good[0], replace(TINY, **bad), good[1], replace(TINY, **bad, weight_decay=0.1), good[2]]
    found = train_together(cells, PYDOC, dtype=torch.float64)
    assert [cell.diverged for cell in found] == [False, True, False, True, False]
    for cell, expected in zip(found, cells, strict=True):
        assert_same(cell, train_alone(expected, PYDOC, dtype=torch.float64))
    worst = train_together([cells[1], cells[3]], PYDOC, dtype=torch.float64)
    assert [cell.diverged for cell in worst] == [True, True]


def test_in_single_precision_they_agree_to_it():
    cells = [replace(TINY, lr=lr, optimizer="sgd", momentum=0.9) for lr in (1e-2, 1e-1)]
    for cell, found in zip(cells, train_together(cells, PYDOC), strict=True):
        assert_same(found, train_alone(cell, PYDOC), rel=1e-4)


def test_neighbors_do_not_matter():
    """A sweep that goes on, with what is left of it in other groups, finds the same."""
    cells = [replace(TINY, lr=lr) for lr in (1e-3, 2e-3, 3e-3, 4e-3, 5e-3)]
    whole = train_together(cells, PYDOC)
    for cells_then, found in ((cells[:1], whole[:1]), (cells[3:], whole[3:])):
        for cell, expected in zip(train_together(cells_then, PYDOC), found, strict=True):
            assert_same(cell, expected, rel=1e-5)


def test_what_may_not_differ_is_named():
    with pytest.raises(InputError, match=r"lr.*, got width 32 instead of 16; seed 1 instead of 0$"):
        train_together([TINY, replace(TINY, width=32, seed=1, lr=0.1)], PYDOC)
    with pytest.raises(InputError, match="adafactor"):
        train_together([replace(TINY, optimizer="adafactor")], PYDOC)
    with pytest.raises(InputError, match="leaking"):
        train_together([replace(TINY, leaking=True)], PYDOC)
    assert train_together([], PYDOC) == []
    own = replace(TINY, lr=1.0, optimizer="sgd", momentum=0.5, schedule="linear", end=0.1, warmup=2, clip=2.0)
    assert in_common(own) == in_common(TINY) != in_common(replace(own, batch=4))


def test_the_limit_is_for_each_cell():
    cells = [replace(TINY, lr=lr, steps=None, epochs=1000) for lr in (1e-3, 1e-2)]
    found = train_together(cells, PYDOC, limit=0.5)
    assert all(cell.timed_out and cell.steps == found[0].steps > 0 for cell in found)
    assert found[0].seconds == pytest.approx(found[1].seconds, rel=0.1)
    assert 0.5 < found[0].seconds < 30


@pytest.mark.parametrize("piece", [1, 1 << 10, 1 << 30])
@pytest.mark.parametrize("shape", SHAPES)
def test_each_network_of_a_stack_is_itself(monkeypatch, shape, piece):
    """Losses and gradients of networks with weights of their own, however the logits are cut into pieces."""
    monkeypatch.setattr(stacked, "PIECE", piece)
    monkeypatch.setattr(stacked, "ROWS", 7)
    settings = replace(TINY, **SHAPES[shape])
    models = [new_model(replace(settings, seed=seed), PYDOC).double() for seed in range(3)]
    stack = Stacked(models[0], 3)
    names = [name for name, _ in models[0].named_parameters()]
    assert stack.names == names
    for row, model in zip(stack.flat, models, strict=True):
        row.copy_(torch.nn.utils.parameters_to_vector(model.parameters()).detach())
    ids, real, _ = next(batches(settings, PYDOC))
    losses = stack.losses(ids, real)
    gradients = torch.full_like(stack.flat, np.nan)
    stack.gradients(losses * torch.tensor([1.0, 2.0, 3.0]), gradients)
    for k, model in enumerate(models):
        expected = NextToken(model)(ids, real)
        assert losses[k].item() == pytest.approx(expected.item(), rel=1e-12)
        own = torch.autograd.grad(expected * (k + 1), list(model.parameters()))
        torch.testing.assert_close(
            gradients[k], torch.cat([gradient.flatten() for gradient in own]), rtol=1e-9, atol=1e-9
        )


def test_small_networks_are_trained_together_and_large_ones_alone():
    assert pays(TINY, PYDOC) == pays(preset("tiny", "pydoc"), PYDOC) == 8
    for change in ({"width": 256}, {"batch": 200}, {"leaking": True}, {"optimizer": "adafactor"}):
        assert pays(replace(TINY, **change), PYDOC) == 1
    assert pays(replace(TINY, feedforward=40_000), PYDOC) == 1  # too many weights
    assert pays(preset("paper", "pydoc"), PYDOC) == 1
