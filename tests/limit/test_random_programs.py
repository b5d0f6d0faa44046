"""A search for wrong limits that nothing reports: random programs, their limits beside mpmath at large c."""

import random

import pytest
import torch
from limit.programs import NoReference, Program, approaches, random_leaves, random_steps

from normgrowth.errors import InputError
from normgrowth.limit.saturated import saturated

pytestmark = pytest.mark.usefixtures("one_thread")


@torch.no_grad()
def outcome(steps, leaves):
    limit = saturated(Program(steps, leaves))
    try:
        found = limit()
    except InputError:
        return "refused"
    if limit.doubtful:
        return "undecided"
    try:
        return "right" if approaches(steps, leaves, found, limit.output_degrees) else "wrong"
    except NoReference:
        return "no reference"


@pytest.mark.parametrize(
    "seeds", [range(60), pytest.param(range(60, 10_000), marks=pytest.mark.slow)], ids=str
)
def test_no_limit_is_wrong_without_saying_so(seeds):
    found = []
    for seed in seeds:
        draw = random.Random(seed)
        leaves, steps = random_leaves(draw), random_steps(draw)
        found.append(outcome(steps, leaves))
        assert found[-1] != "wrong", (seed, steps)
    assert found.count("right") > len(found) / 4


# Steps 0 to 2 are parameters, 3 is a constant. Each limit was wrong, and nothing reported it.
FAULTS = {
    "small part of a product inside addmm": [
        ("tanh", 0),
        ("logsigmoid", 1),
        ("addmm", 5, 4),
        ("argmax", 6, 2),
    ],
    "small part of a running product": [("tanh", 0), ("cumprod", 4), ("mul", 5, 3), ("topk", 6, 1)],
    "small part of elu where its argument grows": [("logsumexp", 1), ("elu", 4), ("gt", 5, 2)],
    "logarithm of a small part without a decay": [("elu", 0), ("maximum", 4, 2), ("div", 5, 4), ("log", 6)],
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_that_the_search_found(name):
    for seed in range(8):
        leaves = random_leaves(random.Random(seed))
        assert outcome(FAULTS[name], leaves) != "wrong", seed
