"""Lint on honest series: real training of every kind, random walks, and no alarm."""

import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_series import moved, tiny_state, walk, write_series
from tiny_runs import State, faults, train, write

from normgrowth.lint import lint
from normgrowth.lint.checks.trajectory import reordered


def cosine_rate(step: int) -> float:
    return 2e-3 * (1 + math.cos(math.pi * min(step, 60) / 60))


DOUBLING = (0, *(2**i for i in range(10)))
HONEST = {
    "constant rate": dict(rate=lambda step: 4e-3),
    "from rate 0, every step": dict(steps=range(12)),
    "a tenfold drop": dict(rate=lambda step: 4e-3 if step < 30 else 4e-4),
    "a hundredfold drop": dict(rate=lambda step: 1e-2 if step < 30 else 1e-4),
    "cosine to zero": dict(rate=cosine_rate),
    "cosine to zero, then on": dict(steps=range(0, 81, 5), rate=lambda s: cosine_rate(s) if s < 60 else 0.0),
    "restarts": dict(steps=range(0, 81, 5), rate=lambda step: 1e-2 * (1 - step % 15 / 15) ** 2),
    "far too high a rate for one interval": dict(rate=lambda s: 5e-2 if s in range(30, 35) else 2e-3),
    "high rate and decay": dict(rate=lambda step: 2e-2, decay=0.5),
    "SGD": dict(sgd=True, rate=lambda step: 0.1),
    "SGD with a drop": dict(sgd=True, rate=lambda step: 0.1 if step < 40 else 1e-3),
    "frozen embeddings": dict(freeze=["wte", "wpe"]),
    "a frozen layer": dict(freeze=[".h.0."]),
    "a layer thawed": dict(freeze=[".h.0."], until=30),
    "doubling steps": dict(steps=DOUBLING),
    "gaps": dict(steps=(0, 2, 4, 6, 8, 100, 102, 104, 106, 150)),
    "late": dict(steps=range(80, 121, 5)),
    "bfloat16": dict(dtype=torch.bfloat16),
    "bfloat16, tiny updates": dict(dtype=torch.bfloat16, rate=lambda step: 2e-5),
    "bfloat16, tiny late updates": dict(
        dtype=torch.bfloat16, steps=range(40, 71), rate=lambda step: 2e-3 if step < 40 else 1e-5
    ),
    "float16, tinier updates": dict(dtype=torch.float16, rate=lambda step: 1e-6),
}
SAID = {  # what is worth a remark
    "from rate 0, every step": {"identical"},
    "cosine to zero, then on": {"identical"},
    "frozen embeddings": {"initial"},
    "a frozen layer": {"initial"},
    "a layer thawed": {"frozen"},
    "doubling steps": {"identical"},
    "bfloat16, tiny updates": {"initial"},
    "bfloat16, tiny late updates": {"frozen"},
    "float16, tinier updates": {"initial"},
}


QUICK = ("constant rate", "cosine to zero", "SGD", "frozen embeddings", "bfloat16")  # `make test` has these


@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in HONEST]
)
def test_honest_training_raises_no_alarm(tmp_path, case):
    found = lint(write(tmp_path, train(**HONEST[case])))
    assert faults(found) == []
    assert {f.kind for f in found} <= SAID.get(case, set())
    if "frozen" in case:
        assert {f.name for f in found} == {
            name for name in train((0,))[0] if any(part in name for part in HONEST[case]["freeze"])
        }
    if "rate 0" in case or "doubling" in case:
        assert [(f.step, f.name) for f in found] == [(1, "")]


@pytest.mark.parametrize("seed", range(3))
def test_a_random_walk_raises_no_alarm(tmp_path, seed):
    assert not lint(write_series(tmp_path, walk(12, seed=seed)))


def drifting(seed: int, count: int, size: float, drift: float) -> list[State]:
    """A walk that also goes somewhere."""
    start = tiny_state(seed)
    way = {name: size * drift * (b - start[name]) for name, b in moved(start, seed + 1000, 1.0).items()}
    states = [start]
    for i in range(count - 1):
        states.append({name: b + way[name] for name, b in moved(states[-1], seed + i + 1, size).items()})
    return states


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    count=st.integers(6, 12),
    size=st.sampled_from([1e-4, 1e-2, 0.3]),
    drift=st.sampled_from([0.0, 0.5, 2.0]),
    data=st.data(),
)
def test_any_two_steps_exchanged_are_found_and_none_otherwise(seed, count, size, drift, data):
    states = drifting(seed, count, size, drift)
    one = data.draw(st.integers(0, count - 2))
    other = data.draw(st.integers(one + 1, count - 1))
    with tempfile.TemporaryDirectory() as folder:
        assert not lint(write_series(Path(folder) / "honest", states))
        states[one], states[other] = states[other], states[one]
        found = faults(lint(write_series(Path(folder) / "lie", states)))
    assert found == [(100 * one, "", "order"), (100 * other, "", "order")]


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    sizes=st.lists(st.floats(0.05, 1.0), min_size=4, max_size=20),
    drift=st.floats(0.0, 3.0),
)
def test_no_walk_is_reordered_whatever_its_schedule(seed, sizes, drift):
    rng = np.random.default_rng(seed)
    way = drift * rng.normal(size=300)
    points = np.cumsum([np.zeros(300), *(size * (rng.normal(size=300) + way) for size in sizes)], axis=0)
    distances = ((points[:, None] - points) ** 2).sum(axis=-1)
    assert list(reordered(range(len(points)), distances)) == []
