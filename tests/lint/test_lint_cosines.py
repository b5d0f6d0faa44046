"""Cosines in findings are those of the records, and the same series has the same findings in `lint` and `trace`."""

import re
import warnings

import pytest
import torch
from synthetic_series import moved, tiny_state, write_series

from normgrowth import SeriesWarning, lint, trace

MATRIX = "transformer.h.0.attn.c_attn.weight"
INCLUDE_CHOICES = ("all", "blocks")


def slow_walk(count=9, width=72):
    """Matrices of more values than a sample takes."""
    states = [tiny_state(width=width)]
    for i in range(1, count):
        states.append(moved(states[-1], i, 0.02))
    return states


def mixed_with(one, other, part):
    return {name: (1 - part) * one[name] + part * other[name] for name in one}


def stranger(states):
    states[4] = mixed_with(states[4], tiny_state(9, width=72), 0.8)


def another_run_from_here_on(states):
    start = mixed_with(states[4], tiny_state(9, width=72), 0.8)
    states[4:] = [{n: start[n] + state[n] - states[4][n] for n in state} for state in states[4:]]


def strange_tensor(states):
    other = tiny_state(9, width=72)[MATRIX]
    states[5][MATRIX] = 0.1 * states[5][MATRIX] + other * torch.linspace(0, 2, other.shape[1])


def rescaled(states):
    for state in states[6:]:
        state |= {name: 3 * x for name, x in state.items()}


def first(states):
    states[0] = tiny_state(5, width=72)


def zeros(states):
    states[4] = {name: torch.zeros_like(x) for name, x in states[4].items()}


def copied(states):
    states[3] = states[7]


def swapped(states):
    states[3], states[6] = states[6], states[3]


def stale(states):
    states[4][MATRIX] = states[3][MATRIX]


def frozen(states):
    for name in states[0]:
        if ".h.1." in name:
            states[5][name] = states[4][name]


def tied(states):
    for state in states:
        state["lm_head.weight"] = state["transformer.wte.weight"].clone()
    stranger(states)


def broken(states):
    states[4][MATRIX][0, 0] = torch.nan


def halved(states):
    for i, state in enumerate(states):
        if i > 4:
            states[i] = {name: x.bfloat16() for name, x in state.items()}


def backwards(states):
    states.reverse()


FAULTS = [stranger, another_run_from_here_on, strange_tensor, rescaled, first, zeros, copied, swapped, stale]
FAULTS += [frozen, tied, broken, halved, backwards]


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeriesWarning)
        yield


@pytest.mark.parametrize("include", INCLUDE_CHOICES)
@pytest.mark.parametrize("make", FAULTS)
def test_lint_and_trace_find_the_same(tmp_path, make, include):
    states = slow_walk()
    make(states)
    folder = write_series(tmp_path, states)
    found = tuple(lint(folder, include=include))
    assert trace(folder, include=include).findings == found


@pytest.mark.parametrize("include", INCLUDE_CHOICES)
@pytest.mark.parametrize("make", [stranger, another_run_from_here_on, strange_tensor, rescaled, first, tied])
def test_a_cosine_in_a_finding_is_that_of_the_records(tmp_path, make, include):
    states = slow_walk()
    make(states)
    folder = write_series(tmp_path, states)
    found = [finding for finding in lint(folder, include=include) if finding.kind == "run"]
    assert found
    records = trace(folder, include=include).records
    for finding in found:
        where = dict(level="tensor", name=finding.name) if finding.name else dict(level="model")
        steps, cosines = records.series("cosine", **where)
        exact = dict(zip(steps.tolist(), cosines.tolist(), strict=True))
        printed = re.findall(r"\(cosine (-?\d\.\d+)\)", finding.why)
        assert printed, finding.why
        near = [f"{exact[step]:.3f}" for step in (finding.step, finding.step + 100) if step in exact]
        assert set(printed) <= set(near), (finding.why, near)


def test_a_cosine_of_steps_that_no_sums_compare_is_said_to_be_sampled(tmp_path):
    states = slow_walk()
    stranger(states)
    (finding,) = lint(write_series(tmp_path, states))
    assert len(re.findall(r"\(cosine", finding.why)) == 2
    assert len(re.findall(r"\(sampled cosine", finding.why)) == 1
