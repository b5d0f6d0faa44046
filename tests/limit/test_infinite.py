"""Infinite constants beside values that grow: masks of every kind, minima and comparisons, rows without a key."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normgrowth.limit.saturated import saturated
from normgrowth.network.scaled_weights import scaled_weights

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_numbers")
T, WIDTH = 5, 8
CAUSAL = torch.ones(T, T).tril().bool()
LEAST, MOST = torch.finfo(torch.float64).min, torch.finfo(torch.float64).max


def filled(value: float, where: Tensor = ~CAUSAL) -> Tensor:
    """Zeros, and the value where a key is hidden."""
    return torch.zeros(T, T, dtype=torch.float64).masked_fill(where, value)


class Scores(nn.Module):
    """A function of scores q·k, whose lower orders come from biases."""

    def __init__(self, function, bias=True):
        super().__init__()
        self.query, self.key = (nn.Linear(WIDTH, WIDTH, bias=bias, dtype=torch.float64) for _ in range(2))
        self.function = function

    def forward(self, x):
        return self.function(self.query(x) @ self.key(x).transpose(-1, -2))


def expect_scaled(model, x, scale=1e7, tolerance=1e-5):
    """The limit is that of the scaled network; infinite elements are equal."""
    limit = saturated(model)
    with torch.no_grad():
        found = limit(x)
        with scaled_weights(model, scale):
            scaled = model(x)
    degree = float(limit.output_degrees or 0)
    assert torch.allclose(found.double(), scaled.double() / scale**degree, rtol=tolerance, atol=tolerance)
    return limit


FUNCTIONS = {
    "smallest": lambda s: s.masked_fill(~CAUSAL, math.inf).amin(-1),
    "smallest positive": lambda s: s.abs().masked_fill(~CAUSAL, math.inf).amin(-1),
    "place of the smallest": lambda s: s.abs().masked_fill(~CAUSAL, math.inf).argmin(-1),
    "nearest others": lambda s: (
        s.abs().masked_fill(torch.eye(T).bool(), MOST).topk(2, -1, largest=False).indices
    ),
    "sorted": lambda s: torch.where(CAUSAL, s.abs(), filled(math.inf)).sort(-1).values[..., 0],
    "added": lambda s: (s.abs() + filled(math.inf)).amin(-1),
    "joined": lambda s: torch.cat([s, torch.full_like(s[..., :1], math.inf)], -1).amin(-1),
    "joined below": lambda s: torch.cat([-s.abs(), torch.full_like(s[..., :1], -math.inf)], -1).amax(-1),
    "padded": lambda s: F.pad(s.abs(), (1, 0), value=math.inf).amin(-1),
    "scattered": lambda s: (
        torch.full_like(s, math.inf).scatter(-1, torch.arange(T).expand(s.shape), s).amin(-1)
    ),
    "bounded by infinities": lambda s: torch.minimum(s, filled(math.inf, CAUSAL) + filled(-math.inf)).softmax(
        -1
    ),
    "bounded from below": lambda s: torch.maximum(s, filled(math.inf)).neg().softmax(-1),
    "above minus infinity": lambda s: s.masked_fill(~CAUSAL, -math.inf) > -math.inf,
    "above half of the minimum": lambda s: s.masked_fill(~CAUSAL, LEAST) > LEAST / 2,
    "not minus infinity": lambda s: s.masked_fill(~CAUSAL, -math.inf) != -math.inf,
    "below infinity": lambda s: s < math.inf,
    "rectified": lambda s: s.masked_fill(~CAUSAL, -math.inf).relu(),
    "softplus": lambda s: F.softplus(s.masked_fill(~CAUSAL, -math.inf)),
    "silu": lambda s: F.silu(s.masked_fill(~CAUSAL, LEAST)),
    "negative infinity of a minimum": lambda s: (-s.masked_fill(~CAUSAL, math.inf)).softmax(-1),
    "a hidden row, filled": lambda s: s.masked_fill((torch.arange(T) == 1)[:, None], LEAST).softmax(-1),
    "a hidden row, added": lambda s: (s + filled(LEAST, (torch.arange(T) == 1)[:, None])).softmax(-1),
    "two masks": lambda s: (s + filled(LEAST) + filled(LEAST, torch.arange(T) == 0)).softmax(-1),
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_infinite_constants_outweigh_what_grows(name, bias):
    for _ in range(3):
        expect_scaled(Scores(FUNCTIONS[name], bias), torch.randn(2, T, WIDTH, dtype=torch.float64))


def test_lower_orders_of_hidden_keys_are_nothing():
    """A row in which a finite mask hides all keys is a mean, even if the scores have lower orders."""
    hidden = filled(LEAST, (torch.arange(T) == 1)[:, None])

    def weights(scores):
        return torch.softmax(scores + hidden, -1)

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Scores(weights), Scores(weights)
            self.values, self.branch = (nn.Linear(WIDTH, WIDTH, dtype=torch.float64) for _ in range(2))

        def forward(self, x):
            attended = self.first(x) @ self.branch(self.values(x))
            return self.second(F.layer_norm(attended + self.branch(x), (WIDTH,)))

    model = Deep()
    for orders in (1, 3):
        found = saturated(model, orders=orders)(torch.randn(2, T, WIDTH, dtype=torch.float64))
        assert torch.allclose(found[:, 1], torch.full_like(found[:, 1], 1 / T))


class Attention(nn.Module):
    def __init__(self, mask, width=WIDTH, **options):
        super().__init__()
        sizes = (WIDTH, WIDTH, width)
        self.projections = nn.ModuleList(nn.Linear(WIDTH, n, bias=False, dtype=torch.float64) for n in sizes)
        self.mask, self.options = mask, options

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (2, -1)).transpose(1, 2) for f in self.projections)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, **self.options)


@pytest.mark.parametrize("width", [WIDTH, 4], ids=["fused", "not fused"])
@pytest.mark.parametrize("form", ["bool", "minus infinity"])
def test_attention_of_queries_that_see_no_key_is_zero(form, width):
    seen = CAUSAL & (torch.arange(T) != 2)[:, None]
    mask = seen if form == "bool" else filled(-math.inf, ~seen)
    limit = expect_scaled(Attention(mask, width), torch.randn(2, T, WIDTH, dtype=torch.float64), 1e4)
    assert not limit.doubtful


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_finite_mask_in_all_keys_hides_none(dtype):
    hidden = filled(1.0, (torch.arange(T) == 2)[:, None]).bool()
    mask = torch.zeros(T, T, dtype=dtype).masked_fill(hidden, torch.finfo(dtype).min)
    model, x = Attention(mask).to(dtype), torch.randn(2, T, WIDTH, dtype=dtype)
    values = model.projections[2](x).unflatten(-1, (2, -1)).transpose(1, 2)
    found = saturated(model)(x)[:, :, 2]
    assert torch.allclose(found, values.mean(2), rtol=2e-2, atol=2e-2)


def test_outputs_that_are_no_numbers_are_counted():
    """0 times a mask that counts as minus infinity; the finite mask of the network would give 0."""
    limit = saturated(Scores(lambda s: s.masked_fill(~CAUSAL, LEAST) * CAUSAL))
    found = limit(torch.randn(2, T, WIDTH, dtype=torch.float64))
    assert limit.doubtful == int(found.isnan().sum()) > 0
