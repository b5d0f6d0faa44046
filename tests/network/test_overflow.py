"""Overflow of a norm is NaN, by what the norm computes and not by what it is called."""

import copy

import pytest
import torch
from torch import nn

from normgrowth.network.overflow import OverflowAsNan

pytestmark = pytest.mark.usefixtures("own_random_numbers")


class Centering(nn.Module):
    """A layer norm whose class is not called one, written out."""

    def forward(self, x):
        x = x - x.mean(-1, keepdim=True)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


class Directions(nn.Module):
    def forward(self, x):
        return x / x.norm(dim=-1, keepdim=True)


class Powers(nn.Module):
    def forward(self, x):
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).pow(-0.5)


class PreNorm(nn.Module):
    """Called a norm, and none: a norm and the layer behind it."""

    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(self.norm(x * 1e-30))


class Groups(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, x):
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


NORMS = [nn.LayerNorm(8), nn.RMSNorm(8), Centering(), Directions(), Powers(), Groups()]


def inputs() -> torch.Tensor:
    x = torch.randn(2, 3, 8)
    x[1] *= 1e25  # squares overflow float32
    return x


@pytest.mark.parametrize("norm", NORMS, ids=lambda norm: type(norm).__name__)
def test_a_norm_whose_squares_overflow_is_nan_there_and_only_there(norm):
    x = inputs()
    with torch.no_grad(), OverflowAsNan():
        found = norm(x)
    assert found[1].isnan().all()
    assert torch.equal(found[0], norm(x)[0])
    with torch.no_grad(), OverflowAsNan():
        assert copy.deepcopy(norm).double()(x.double()).isfinite().all()  # nothing overflows in float64


def test_what_is_only_called_a_norm_is_left_as_it_is():
    model, x = PreNorm(), inputs()
    with torch.no_grad(), OverflowAsNan():
        assert torch.equal(model(x), model(x))
        assert model(x).isfinite().all()


def test_the_unit_of_rounding_is_that_of_the_narrowest_cast():
    x = torch.randn(2, 8).double()
    with OverflowAsNan() as one:
        kept = x * 2 + torch.ones(8).double()
    assert one.rounding(kept) == torch.finfo(torch.float64).eps
    with OverflowAsNan() as one:
        cast = (x.float() * 2).double()
    assert one.rounding(cast) == torch.finfo(torch.float32).eps
