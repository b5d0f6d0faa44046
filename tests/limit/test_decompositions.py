"""Operations without a rule, which torch computes by simpler ones: their limit is that of scaled weights."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from normgrowth import UnsupportedOperation, saturated, scaled_weights

C = 1e5
TARGET = torch.rand(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
GRID = torch.rand(1, 3, 3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

# name -> the function of two outputs of linear maps, and its degree
FUNCTIONS = {
    "binary_cross_entropy_with_logits": (lambda a, _: F.binary_cross_entropy_with_logits(a, TARGET), 1),
    "smooth_l1_loss": (F.smooth_l1_loss, 1),
    "huber_loss": (lambda a, b: F.huber_loss(a, b, reduction="none"), 1),
    "pairwise_distance": (F.pairwise_distance, 1),
    "triplet_margin_loss": (lambda a, b: F.triplet_margin_loss(a, b, a * b), 0),
    "vdot": (lambda a, b: torch.vdot(a[0], b[0]), 2),
    "dist": (torch.dist, 1),
    "addcdiv": (lambda a, b: torch.addcdiv(a, a, b), 1),
    "renorm": (lambda a, _: torch.renorm(a, 2, 0, 1.0), 0),
    "heaviside": (lambda a, _: torch.heaviside(a, TARGET), 0),
    "interpolate": (lambda a, _: F.interpolate(a[None], scale_factor=2, mode="linear"), 1),
    "grid_sample": (lambda a, _: F.grid_sample(a.reshape(1, 1, 4, 5), GRID, align_corners=False), 1),
    "nansum": (lambda a, _: torch.nansum(a), 1),
}


class Two(nn.Module):
    def __init__(self, function):
        super().__init__()
        torch.manual_seed(2)
        self.left, self.right = nn.Linear(6, 5).double(), nn.Linear(6, 5).double()
        self.function = function

    def forward(self, x):
        return self.function(self.left(x), self.right(x))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_limit_of_a_decomposed_operation(name):
    function, degree = FUNCTIONS[name]
    model, x = Two(function), torch.randn(4, 6, dtype=torch.float64)
    limit = saturated(model)
    found = limit(x)
    assert limit.degrees[""] == degree
    assert not limit.doubtful
    with scaled_weights(model, C):
        scaled = model(x) / C**degree
    assert found.shape == scaled.shape
    assert (found - scaled).abs().max() <= 1e-3 * found.abs().max()


def test_a_decomposition_does_not_hide_that_there_is_no_limit():
    with pytest.raises(UnsupportedOperation, match="sin"):
        saturated(Two(lambda a, _: torch.sinc(a)))(torch.randn(4, 6, dtype=torch.float64))
