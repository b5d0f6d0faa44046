"""Networks under scaled weights, for tests: inputs of any degree, slopes, and how fast a limit comes."""

import math

import torch
from torch import nn

from normgrowth.network.scaling import saturate


class Grown(nn.Module):
    """Data times k parameters, element by element: of degree k. No element is near 0."""

    def __init__(self, k, *shape):
        super().__init__()
        self.register_buffer("data", _away_from_zero(shape))
        self.factors = nn.ParameterList(nn.Parameter(_away_from_zero(shape)) for _ in range(k))

    def forward(self):
        return math.prod(self.factors, start=self.data)


class Fed(nn.Module):
    """part(x₁, x₂, ...), xᵢ of degree kᵢ."""

    def __init__(self, part, *degrees, shape=(2, 5, 6)):
        super().__init__()
        self.inputs = nn.ModuleList(Grown(k, *shape) for k in degrees)
        self.part = part.double() if isinstance(part, nn.Module) else part
        spread_norms(self)

    def forward(self):
        return self.part(*(x() for x in self.inputs))


def _away_from_zero(shape):
    x = torch.randn(shape, dtype=torch.float64)
    return x + 0.2 * x.sign()


def spread_norms(model):
    """Gains and biases of their own, so that nothing is tested at 1 and 0 only."""
    for module in model.modules():
        if isinstance(module, nn.LayerNorm) and module.weight is not None:
            nn.init.normal_(module.weight, 1, 0.3)
            if module.bias is not None:
                nn.init.normal_(module.bias, 0, 0.3)
    return model


def scaled(model, c, *args):
    """f(x; cθ)."""
    with saturate(model, c), torch.no_grad():
        return model(*args)


def slope(f, low, high):
    """Of log‖f(c)‖ against log c."""
    return math.log(f(high).norm() / f(low).norm()) / math.log(high / low)
