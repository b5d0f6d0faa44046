"""Modules of torch in small networks, against the networks with their parameters times c in float64."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from normgrowth.limit.saturated import saturated
from normgrowth.network.scaled_weights import scaled_weights

C = 2.0**20


class Prototypes(nn.Module):
    """Distances to vectors that are learned."""

    def __init__(self):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(5, 8))

    def forward(self, x):
        return torch.cdist(x, self.centers)


class Mixing(nn.Module):
    """As FNet mixes tokens."""

    def forward(self, x):
        return torch.fft.fft(torch.fft.fft(x, dim=-1), dim=0).real


def image(*layers):
    return nn.Sequential(nn.Unflatten(-1, (1, 2, 4)), nn.Conv2d(1, 3, 1), *layers, nn.Flatten())


NETWORKS = {
    "weight norm": (lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 8)), nn.ReLU()), 1),
    "PReLU": (lambda: nn.Sequential(nn.Linear(8, 8), nn.PReLU(8)), 2),
    "CELU": (lambda: nn.Sequential(nn.Linear(8, 8), nn.CELU(0.5), nn.Linear(8, 4)), 2),
    "SELU": (lambda: nn.Sequential(nn.Linear(8, 8), nn.SELU(), nn.Linear(8, 4)), 2),
    "max pooling, 1d": (lambda: nn.Sequential(nn.Linear(8, 8), nn.MaxPool1d(3, 2, 1)), 1),
    "max pooling, 2d": (lambda: image(nn.MaxPool2d(2)), 1),
    "adaptive max pooling": (lambda: image(nn.AdaptiveMaxPool2d(1)), 1),
    "distances": (lambda: nn.Sequential(nn.Linear(8, 8), Prototypes()), 1),
    "Fourier transform": (lambda: nn.Sequential(nn.Linear(8, 8), Mixing(), nn.Linear(8, 4)), 2),
    "log softmax": (lambda: nn.Sequential(nn.Linear(8, 8), nn.LogSoftmax(-1)), 1),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_modules(name, own_random_numbers):
    build, degree = NETWORKS[name]
    model = build().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    x = torch.randn(6, 8).double()
    run = saturated(model)
    found = run(x)
    assert run.degrees[""] == degree
    assert run.doubtful == 0
    with torch.no_grad(), scaled_weights(model, C):
        scaled = model(x) / C**degree
    torch.testing.assert_close(found, scaled, rtol=1e-4, atol=1e-5 * float(found.abs().max()))
