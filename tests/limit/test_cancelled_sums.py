"""Sums whose leading terms cancel to 0: omitted orders remain, so that more orders are needed."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from normgrowth.limit.saturated import saturated
from normgrowth.network.scaled_weights import scaled_weights


class Cancels(nn.Module):
    """Two values of degree 3 whose leading terms cancel in a sum, so that terms of degree 2 remain."""

    def __init__(self, use):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(4, 4).double() for _ in range(3))
        for parameter in self.parameters():
            parameter.data = torch.randint(-3, 4, parameter.shape).double()
        self.second.bias.data = torch.tensor([1.0, 2, -3, 1]).double()
        self.use = use

    def forward(self, x):
        states = self.first(x)
        opposite = -F.linear(states, self.second.weight)
        return self.use(torch.cat([self.third(self.second(states)), self.third(opposite)]))


ROW = torch.arange(6) % 3


def beside(high, both):
    """Sums of opposite rows, and of rows of a higher degree in another row of the same product."""
    zeros, ones = torch.zeros(3, 6).double(), torch.ones(1, 6).double()
    pairs = torch.eye(3).double().repeat(1, 2)
    return (torch.cat([torch.cat([pairs, zeros], 1), torch.cat([ones, ones], 1)]) @ torch.cat([both, high]))[
        :3
    ]


ADDED = {
    "index_add": lambda both: torch.zeros(3, 4).double().index_add(0, ROW, both),
    "index_add with a factor": lambda both: (
        torch.zeros(3, 4).double().index_add(0, ROW[:3], both[:3]).index_add(0, ROW[:3], -both[3:], alpha=-1)
    ),
    "scatter_add": lambda both: torch.zeros(3, 4).double().scatter_add(0, ROW[:, None].expand(6, 4), both),
    "scatter_reduce": lambda both: (
        torch.zeros(3, 4).double().scatter_reduce(0, ROW[:, None].expand(6, 4), both, "mean")
    ),
    "index_put": lambda both: torch.zeros(3, 4).double().index_put((ROW,), both, accumulate=True),
    "convolution": lambda both: F.conv1d(both.view(2, 12).T.reshape(12, 1, 2), torch.ones(1, 1, 2).double()),
    "fft": lambda both: torch.fft.rfft(both.view(2, 3, 4), dim=0)[0].real,
    "adaptive pooling": lambda both: F.adaptive_avg_pool2d(both.view(2, 12).T.reshape(1, 12, 2, 1), 1),
    "bilinear": lambda both: F.interpolate(
        both.view(2, 12).T.reshape(1, 12, 2, 1), size=(1, 1), mode="bilinear"
    ),
    "layer norm": lambda both: F.layer_norm(torch.zeros(3, 4).double().index_add(0, ROW, both), (4,)),
}


@pytest.mark.parametrize("use", ADDED)
def test_sums_that_cancel_need_more_orders(use):
    torch.manual_seed(1)
    model = Cancels(ADDED[use])
    x = torch.randint(-3, 4, (3, 4)).double()
    once = saturated(model, orders=1)
    once(x)
    assert sum(once.cancelled.values()) > 0
    run = saturated(model)
    found = run(x)
    assert run.doubtful == 0
    with torch.no_grad(), scaled_weights(model, 2.0**20):
        scaled = model(x) / 2.0 ** (20 * float(run.output_degrees))
    assert torch.allclose(found, scaled, rtol=1e-4, atol=1e-4)


BESIDE = {
    "matrix product": lambda both: beside(both.square(), both),
    "addition": lambda both: (torch.cat([both[:3], both.square()]) + torch.cat([both[3:], both.square()]))[
        :3
    ],
}


@pytest.mark.parametrize("use", BESIDE)
def test_sums_that_cancel_beside_a_higher_degree_are_counted(use):
    """Other rows have a higher degree, at which these rows are 0."""
    torch.manual_seed(1)
    limit = saturated(Cancels(BESIDE[use]), orders=1)
    limit(torch.randint(-3, 4, (3, 4)).double())
    assert sum(limit.cancelled.values()) > 0
