"""Synthetic traces: weights that really walk, measured by the moments that a real trace uses."""

import numpy as np
import pytest

from normgrowth.moments.moments import BUDGET, Moments, Pair, accumulated, by_reference
from normgrowth.records import Block, Records


def moments(now, references):
    """Written the obvious way, one entry for each vector of `now`."""
    return Moments(
        np.array([len(b) for b in now]),
        np.array([b @ b for b in now]),
        np.array([np.abs(b).max() for b in now]),
        np.array([(~np.isfinite(b)).sum() for b in now]),
        {
            key: Pair(
                np.array([r @ r for r in past]),
                np.array([r @ (b - r) for r, b in zip(past, now, strict=True)]),
                np.array([(b - r) @ (b - r) for r, b in zip(past, now, strict=True)]),
            )
            for key, past in references.items()
        },
    )


def blocks_of(level, names, layers, roles, steps, measured):
    """The blocks that `normgrowth trace` writes: from the first step on, from the second on."""
    found = [by_reference(m) for m in measured]
    for reference in found[-1]:
        here = [(step, one[reference]) for step, one in zip(steps, found, strict=True) if reference in one]
        at, rows = [step for step, _ in here], [row for _, row in here]
        values = {q: np.array([row[q] for row in rows]) for q in rows[0]}
        yield Block(level, names, layers, roles, at, values, reference)
        if reference == "previous":
            totals = accumulated(*(values[q] for q in BUDGET))
            yield Block(level, names, layers, roles, at, totals)


def make_trace(
    layers=12,
    steps=60,
    stacks=("layer",),
    every=2000,
    width=400,
    names=None,
    drift=0.05,
    pace=0.2,
    seed=0,
):
    """Layers that grow like √t, deeper ones faster; each has an attention and a feedforward part."""
    rng = np.random.default_rng(seed)
    index = [i for _ in stacks for i in range(layers)]
    names = names or [f"{stack}.{i}" for stack in stacks for i in range(layers)]
    roles = ("attention.query", "attention.value", "feedforward.in", "norm")
    speed = pace * np.array([(1 + i / layers) * (1 + j / 4) for i in index for j in range(len(roles))])
    group = np.repeat(np.arange(len(names)), len(roles))
    part = np.tile(np.arange(len(roles)), len(names))
    weights = [np.array([rng.normal(size=width) * 0.3 for _ in speed])]
    for _ in range(steps - 1):
        old = weights[-1]
        noise = rng.normal(size=old.shape)
        weights.append(old + speed[:, None] * (noise + drift * old / np.abs(old).mean()))
    measured = []
    for t, now in enumerate(weights):
        measured.append(moments(now, {"previous": weights[t - 1], "first": weights[0]} if t else {}))
    at = [every * t for t in range(steps)]
    none = [None] * len(names)
    blocks = [
        *blocks_of("layer", names, index, none, at, [m.grouped(group, len(names)) for m in measured]),
        *blocks_of("role", roles, [None] * 4, roles, at, [m.grouped(part, 4) for m in measured]),
        *blocks_of("model", ["model"], [None], [None], at, [m.grouped(group * 0, 1) for m in measured]),
    ]
    return Records.from_blocks("run", blocks)


@pytest.fixture(scope="session")
def trace():
    """The maker, so that each test says what it needs."""
    return make_trace
