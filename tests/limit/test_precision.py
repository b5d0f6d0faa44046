"""Limits of models in 16 bits and under autocast, against the float64 limit of the same weights."""

import copy
from typing import Any

import pytest
import torch
from limit.architectures import EAGER_ONLY, IMAGE, MODELS, PLAIN, Case, Double, build, inputs
from limit.comparison import floating
from torch import Tensor, nn

from normgrowth.limit.saturated import saturated
from normgrowth.network.scaled_weights import scaled_weights

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),  # DeBERTa
]
CASES = [
    Case(name, "eager" if name in EAGER_ONLY | PLAIN else "sdpa", padding=name not in IMAGE | PLAIN)
    for name in MODELS
]
SMALL = [case for case in CASES if case.model in ("BERT", "T5", "GPT-NeoX", "MPT", "Llama", "mBART", "ViT")]


def cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def check(case: Case, dtype: torch.dtype, autocast: bool = False) -> None:
    """In `dtype`, or in float32 under an autocast to it after a plain pass, which fills its cache."""
    model = build(case)
    given = inputs(case, model)
    stored = torch.float32 if autocast else dtype
    narrow = model.to(stored)
    args = [cast(value, stored) for value in given.args]
    with Double():
        reference = saturated(copy.deepcopy(narrow).double())
        expected = floating(reference(*(cast(a, torch.float64) for a in args), **given.kwargs))[0]
    limit = saturated(narrow)
    with torch.no_grad(), torch.autocast("cpu", dtype, enabled=autocast):
        if autocast and case.model != "nn.LSTM":  # for which this CPU has no such kernel
            narrow(*args, **given.kwargs)
        found = floating(limit(*args, **given.kwargs))[0]
    cosine = torch.cosine_similarity(found.double(), expected, dim=-1)
    if not (limit.doubtful or reference.doubtful):
        assert float(cosine.min()) >= 0.999
        assert limit.degrees == reference.degrees
        assert torch.allclose(
            found.double().norm(),
            expected.norm(),
            rtol=8 * torch.finfo(dtype if autocast else found.dtype).eps,  # autocast rounds the weights
        ), "the size, within the precision of the type"
    assert limit.vanished == reference.vanished


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_sixteen_bits(case, dtype):
    check(case, dtype)


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_autocast(case):
    check(case, torch.bfloat16, autocast=True)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", [case for case in CASES if case not in SMALL], ids=str)
def test_sixteen_bits_of_every_architecture(case, dtype):
    check(case, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case not in SMALL], ids=str)
def test_autocast_of_every_architecture(case):
    check(case, torch.bfloat16, autocast=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_layer_norm_of_values_with_a_large_mean(dtype):
    """Values between 2 and 4 differ by less than bfloat16 keeps beside their mean."""
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.LayerNorm(64, elementwise_affine=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.diag(torch.linspace(2, 4, 64)))
    found = saturated(model.to(dtype))(torch.ones(1, 64, dtype=dtype))
    assert float(found.norm()) == pytest.approx(8, rel=0.01)


def test_squares_beyond_float16():
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.LayerNorm(8, elementwise_affine=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.diag(torch.linspace(300, 3000, 8)))
    found = saturated(model.to(torch.float16))(torch.ones(1, 8, dtype=torch.float16))
    assert float(found.norm()) == pytest.approx(8**0.5, rel=0.01)


def test_scaling_under_autocast():
    """Autocast caches weights in 16 bits, and must not serve those of before."""
    model = nn.Linear(4, 4, bias=False)
    x = torch.randn(2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        before = model(x).detach()
        with scaled_weights(model, 1000):
            inside = model(x).detach()
        after = model(x).detach()
    assert float(inside.norm() / before.norm()) == pytest.approx(1000, rel=0.02)
    assert torch.equal(before, after)


def test_partial_writes_keep_thirty_two_bits():
    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            out = torch.zeros(2, 8, dtype=x.dtype)
            out[:, :4] = self.linear(x)
            out[:, 4:] = out[:, :4] * (1 + 2**-12)
            return (out[:, 4:] - out[:, :4]).float()

    model = Written().to(torch.bfloat16)
    x = torch.randn(2, 4).to(torch.bfloat16)
    expected = torch.nn.functional.linear(x.double(), model.linear.weight.double()) * 2**-12
    found = saturated(model)(x)
    assert torch.allclose(found.double(), expected, rtol=1e-2, atol=1e-7)


@pytest.mark.parametrize(
    "join", [lambda t: t.float(), lambda t: torch.cat([t, -t], -1)[..., :4].float(), lambda t: t]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_table_that_the_network_rounds_and_widens_again(join, dtype):
    """Rotations in 16 bits, back in 32 or joined: the limit uses them as they were before."""

    class Rotated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            table = torch.linspace(0.1, 1.3, 4, dtype=torch.float32).cos().to(x.dtype)
            return (self.linear(x).float() * join(table)).float()

    model = Rotated().to(dtype)
    x = torch.randn(2, 4).to(dtype)
    table = torch.linspace(0.1, 1.3, 4, dtype=torch.float32).cos().double()
    expected = torch.nn.functional.linear(x.double(), model.linear.weight.double()) * table
    assert torch.allclose(saturated(model)(x).double(), expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_mask_made_by_multiplication(dtype):
    """(1 - mask) times the smallest number is 0 where nothing is masked, also with the mask as it was in 32 bits."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 6, bias=False)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            hidden = (1.0 - mask.to(x.dtype)) * torch.finfo(x.dtype).min
            return torch.softmax(self.linear(x) + hidden, -1)

    model = Masked().to(dtype)
    x, mask = torch.randn(3, 4).to(dtype), torch.tensor([1.0, 0, 1, 1, 0, 1])
    scores = torch.nn.functional.linear(x.double(), model.linear.weight.double())
    expected = scores.masked_fill(mask == 0, -torch.inf).argmax(-1)
    found = saturated(model)(x, mask)
    assert torch.equal(found.double(), torch.nn.functional.one_hot(expected, 6).double())


@pytest.mark.parametrize("size", [1e-12, 1e12])
def test_coefficients_outside_the_range_of_float16(size):
    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return (self.linear(x).float() * size).to(x.dtype)

    limit = saturated(Large().half())
    limit(torch.ones(2, 4, dtype=torch.float16))
    assert [finding.kind for finding in limit.findings] == ["out_of_range"]
    wide = saturated(Large())
    wide(torch.ones(2, 4))
    assert not wide.findings


@pytest.mark.parametrize("spread", [3e-6, 1e-6])
def test_rows_that_are_nearly_constant_are_doubtful(spread):
    """In float32, a difference of some units of rounding may be real: the limit in float64 keeps it."""
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.LayerNorm(8, elementwise_affine=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.diag(1000 * (1 + spread * torch.linspace(-1, 1, 8))))
    wide = saturated(copy.deepcopy(model).double())
    assert float(wide(torch.ones(1, 8).double()).norm()) == pytest.approx(8**0.5)
    assert not wide.doubtful
    limit = saturated(model)
    found = limit(torch.ones(1, 8))
    assert limit.doubtful or float(found.norm()) == pytest.approx(8**0.5, rel=0.01)
    with torch.no_grad():
        model[0].weight.copy_(1000 * torch.eye(8))
    limit(torch.ones(1, 8))
    assert not limit.doubtful
