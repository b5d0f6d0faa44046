"""Losses of the saturated network, against mpmath and the scaled network."""

from fractions import Fraction
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from limit.growing import expect, leading, limit, powers
from limit.test_mode import Small
from limit.test_rules import few, log_of_sum
from mpmath import mp

from normgrowth.limit import Series, Term
from normgrowth.limit.dispatch import LimitMode
from normgrowth.limit.pass_log import Context
from normgrowth.limit.saturated import saturated
from normgrowth.network.scaled_weights import scaled_weights

TARGET = torch.tensor([1, 0, 2])


def surprises(x):
    return [log_of_sum(row) - row[target] for row, target in zip(x, TARGET.tolist(), strict=True)]


@few
@given(x=powers((3, 4), degrees=(0, 1, 2)))
def test_cross_entropy(x):
    found = limit(lambda x: F.cross_entropy(x, TARGET, reduction="none"), x, orders=3)
    expect(found, surprises, x, tolerance=1e-6)
    total = limit(lambda x: F.cross_entropy(x, TARGET, reduction="sum"), x, orders=3)
    expect(total, lambda x: mp.fsum(surprises(x)), x, tolerance=1e-6)


def test_logits_that_are_equal_up_to_rounding():
    """0.1 + 0.2 and 0.3 differ by rounding, which is no part of the loss that grows, and tie in float64."""
    scores = torch.tensor([[0.1 + 0.2, 0.3, -1.0], [0.3, 0.1 + 0.2, -2.0]], dtype=torch.float64)
    levels = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, 2.0]]).double()
    target = torch.tensor([1, 1])
    found = limit(lambda x: F.cross_entropy(x, target, reduction="none"), {3: scores, 0: levels}, orders=3)
    wanted = [float(level[:2].logsumexp(0) - level[1]) for level in levels]
    assert [leading(found, (row,)) for row in range(2)] == [(0, pytest.approx(value)) for value in wanted]
    context = Context(3)
    with torch.no_grad(), (mode := LimitMode(context, object())):
        several = mode.attach(
            Series((Term(Fraction(3), torch.cat([scores[:1], torch.eye(3).double()]), 1),), Fraction(0))
        )
        torch.log_softmax(several, -1)
    assert context.cancelled == {}, "they tie although the other rows show that the columns differ"


@few
@given(x=powers((3, 4)))
def test_negative_log_likelihood_with_weights(x):
    weights = torch.tensor([1.0, 2.0, 0.5, 1.0]).double()
    found = limit(lambda x: F.nll_loss(x, TARGET, weights), x)

    def reference(x):
        return -(2 * x[0][1] + x[1][0] + x[2][2] / 2) / 3.5

    expect(found, reference, x)
    image = limit(lambda x: F.nll_loss(x.t()[None], TARGET[None], reduction="none")[0], x)
    expect(image, lambda x: [-x[0][1], -x[1][0], -x[2][2]], x)


@few
@given(x=powers((2, 3)), y=powers((2, 3)))
def test_squared_errors(x, y):
    found = limit(lambda x, y: F.mse_loss(x, y, reduction="sum"), x, y, orders=3)

    def reference(x, y):
        return mp.fsum(
            (a - b) ** 2 for row, other in zip(x, y, strict=True) for a, b in zip(row, other, strict=True)
        )

    expect(found, reference, x, y)


SIDES = torch.tensor([[1.0, -1.0, 1.0], [-1.0, -1.0, 1.0]]).double()


@few
@given(x=powers((2, 3)))
def test_soft_margins(x):
    def reference(x, sides):
        return [
            [log_of_sum([mp.mpf(0), -v * side]) for v, side in zip(*both, strict=True)]
            for both in zip(x, sides, strict=True)
        ]

    def mean(x, sides):
        return mp.fsum(v for row in reference(x, sides) for v in row) / 6

    for sides in (SIDES, {1: SIDES}):
        found = limit(partial(F.soft_margin_loss, reduction="none"), x, sides, orders=3)
        expect(found, reference, x, sides, tolerance=1e-6)
        expect(limit(F.soft_margin_loss, x, sides, orders=3), mean, x, sides, tolerance=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_a_network(smoothing):
    targets = torch.tensor([2, 0])
    x = torch.tensor([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]]).double()
    model = Small(
        lambda self, x: F.cross_entropy(self.b(torch.relu(self.a(x))), targets, label_smoothing=smoothing)
    ).double()
    run = saturated(model)
    found = run(x)
    assert run.degrees[""] == 2
    with torch.no_grad(), scaled_weights(model, 2.0**20):
        torch.testing.assert_close(found, model(x) / 2.0**40, rtol=1e-5, atol=0)
