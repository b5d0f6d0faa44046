"""Lint's `renamed`: only where the values show it."""

import pytest
import torch
from synthetic_series import moved, tiny_state, write_series

from normgrowth.lint import lint

WIDTH = 32
GAIN = "transformer.h.0.ln_1.weight"
BIAS = "transformer.h.0.mlp.c_fc.bias"
MATRIX = "transformer.h.0.mlp.c_fc.weight"


def trained(count=8):
    states = [tiny_state(width=WIDTH)]
    for i in range(1, count):
        states.append(moved(states[-1], i, 0.01))
    return states


def renamed(states, old, new, first=4, values=None):
    for i in range(first, len(states)):
        tensor = states[i].pop(old)
        states[i][new] = tensor if values is None else values(tensor)
    return states


def said(folder, states):
    return [(f.step, f.name, f.kind) for f in lint(write_series(folder, states))]


@pytest.mark.parametrize("name", [MATRIX, GAIN, BIAS, "transformer.h.0.attn.c_proj.weight"])
def test_a_tensor_that_goes_on_under_another_name(tmp_path, name):
    new = name.replace("weight", "scale").replace("bias", "offset")
    assert said(tmp_path, renamed(trained(), name, new)) == [(400, new, "renamed")]


@pytest.mark.parametrize("name", [MATRIX, GAIN, BIAS])
def test_another_tensor_of_the_same_shape_is_new(tmp_path, name):
    """Gains are all near 1, and biases near 0: that does not make them one tensor."""
    mean = 1.0 if name == GAIN else 0.0
    generator = torch.Generator().manual_seed(5)

    def other(tensor):
        return mean + 0.1 * torch.randn(tensor.shape, generator=generator)

    found = said(tmp_path, renamed(trained(), name, "transformer.h.0.other.weight", values=other))
    assert {(step, kind) for step, _, kind in found if kind in ("missing", "new", "renamed")} == {
        (400, "missing"),
        (400, "new"),
    }


@pytest.mark.parametrize("name", [MATRIX, BIAS])
def test_a_tensor_that_was_replaced_while_all_others_were_renamed(tmp_path, name):
    """A rule of names is no evidence."""
    states = trained()
    generator = torch.Generator().manual_seed(5)
    stranger = torch.randn(states[0][name].shape, generator=generator)
    for i in range(4, 8):
        states[i] = {f"model.{n}": stranger + 0.01 * i if n == name else x for n, x in states[i].items()}
    found = said(tmp_path, states)
    names = [n for _, n, kind in found if kind == "renamed"]
    assert len(names) == len(states[0]) - 1
    assert f"model.{name}" not in names
    assert {(n, kind) for _, n, kind in found if kind in ("missing", "new")} >= {
        (name, "missing"),
        (f"model.{name}", "new"),
    }


def test_tensors_that_do_not_vary_yet_follow_the_others(tmp_path):
    states = trained()
    for name, x in states[0].items():
        if "ln_1" in name:
            states[0][name] = torch.ones_like(x)
    for i in range(1, 8):
        states[i] = (
            {f"model.{name}": x for name, x in moved(states[0], i, 0.01).items()}
            if i == 1
            else moved(states[i - 1], i, 0.01)
        )
    assert said(tmp_path, states) == [(100, "", "renamed")]
