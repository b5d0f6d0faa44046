"""What a limit reports: masks that are finite numbers, and values that leave torch."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

import normgrowth
from normgrowth.limit.limit_findings import PassFinding, messages
from normgrowth.limit.saturated import saturated

pytestmark = pytest.mark.usefixtures("own_random_numbers")
TOKENS, SIZE = 6, 8


class Head(nn.Module):
    """One causal head; `write` applies the mask value to the scores."""

    def __init__(self, value: float, write: str) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(SIZE, SIZE, bias=False).double() for _ in range(3))
        self.value, self.write = value, write

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        later = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
        added = torch.zeros(TOKENS, TOKENS, dtype=x.dtype).masked_fill(later, self.value)
        if self.write == "fused":
            return scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], attn_mask=added)[:, 0]
        scores = q @ k.transpose(-1, -2)
        if self.write == "add":
            scores = scores + added
        elif self.write == "masked_fill":
            scores = scores.masked_fill(later, self.value)
        else:
            scores = torch.where(later, torch.tensor(self.value, dtype=x.dtype), scores)
        return scores.softmax(-1) @ v


@pytest.mark.parametrize("write", ["add", "masked_fill", "where", "fused"])
@pytest.mark.parametrize("value", [-1e4, -1e9])
def test_a_finite_mask_is_a_finding_and_the_limit_is_that_of_the_network(value, write):
    model = Head(value, write)
    x = torch.randn(2, TOKENS, SIZE).double()
    limit = saturated(model)
    found = limit(x)
    with normgrowth.scaled_weights(model, 1e7):
        scaled = model(x) / 1e7
    assert torch.allclose(found, scaled, rtol=1e-6)
    (finding,) = limit.findings
    assert (finding.kind, finding.module, finding.degree, finding.value) == ("finite_mask", "", 2, value)
    masked = saturated(Head(-math.inf, write))
    masked.model.load_state_dict(model.state_dict())
    assert not torch.allclose(found, masked(x))  # the future is seen, as the finding says
    assert masked.findings == []


WRITTEN = {
    "masked_fill": lambda scores, later, value: scores.masked_fill(later, value),
    "where": lambda scores, later, value: torch.where(later, value, scores),
    "index_put": lambda scores, later, value: scores.clone().masked_scatter(
        later, torch.full(later.shape, value, dtype=scores.dtype)
    ),
    "assigned": lambda scores, later, value: scores.index_put(
        (later,), torch.tensor(value, dtype=scores.dtype)
    ),
    "added": lambda scores, later, value: scores + value * later.to(scores.dtype),
    "subtracted": lambda scores, later, value: scores - -value * later.to(scores.dtype),
    "multiplied": lambda scores, later, value: scores * (~later) + value * later.to(scores.dtype),
    "beside ALiBi": lambda scores, later, value: (
        scores - torch.arange(TOKENS, dtype=scores.dtype) + value * later.to(scores.dtype)
    ),
    "ALiBi in one constant": lambda scores, later, value: (
        scores + (value * later.to(scores.dtype) - torch.arange(TOKENS, dtype=scores.dtype))
    ),
}
LAST_KEY = {
    "scatter": lambda scores, value: scores.scatter(-1, torch.full((TOKENS, 1), TOKENS - 1), value),
    "slice": lambda scores, value: written(scores, value),
    "slice of a tensor": lambda scores, value: written(scores, torch.tensor(value, dtype=scores.dtype)),
    "pad": lambda scores, value: pad(scores[:, :-1], (0, 1), value=value),
    "index_fill": lambda scores, value: scores.index_fill(-1, torch.tensor([TOKENS - 1]), value),
}


def written(scores, value):
    scores = scores.clone()
    scores[:, -1] = value
    return scores


class Written(nn.Module):
    """One head whose scores are masked in one of many ways."""

    def __init__(self, write, value: float) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(SIZE, SIZE, bias=False) for _ in range(3))
        self.write, self.value = write, value

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).T
        later = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
        arguments = (scores, later, self.value) if self.write in WRITTEN.values() else (scores, self.value)
        return self.write(*arguments).softmax(-1) @ self.v(x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("value", [-1e4, -5e4, -1e9])
@pytest.mark.parametrize("write", [*WRITTEN, *LAST_KEY])
def test_finite_masks_in_every_precision_and_of_every_way_to_write_them(write, value, dtype):
    if dtype is torch.float16 and value < torch.finfo(dtype).min:
        return  # minus infinity in float16
    model = Written((WRITTEN | LAST_KEY)[write], value).to(dtype)
    x = torch.randn(TOKENS, SIZE).to(dtype)
    wide = copy.deepcopy(model).double()
    with torch.no_grad(), normgrowth.scaled_weights(wide, 1e7):
        scaled = wide(x.double()) / 1e7
    limit = saturated(model)
    assert float((limit(x).double() - scaled).norm() / scaled.norm()) < 0.02
    assert {finding.kind for finding in limit.findings} == {"finite_mask"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_finite_masks_under_autocast(dtype):
    model = Written(WRITTEN["masked_fill"], -5e4)
    x = torch.randn(TOKENS, SIZE)
    limit = saturated(model)
    with torch.autocast("cpu", dtype):
        found = limit(x)
    with torch.no_grad(), normgrowth.scaled_weights(model, 1e5):
        scaled = model(x) / 1e5
    assert float((found.float() - scaled).norm() / scaled.norm()) < 0.02
    assert [finding.kind for finding in limit.findings] == ["finite_mask"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("write", ["masked_fill", "where", "assigned", "added", "ALiBi in one constant"])
def test_the_minimum_of_sixteen_bits_is_a_mask(write, dtype):
    model = Written(WRITTEN[write], torch.finfo(dtype).min).to(dtype)
    x = torch.randn(TOKENS, SIZE).to(dtype)
    wide = copy.deepcopy(model).double()
    wide.write, wide.value = WRITTEN["masked_fill"], -math.inf
    expected = saturated(wide)(x.double())
    limit = saturated(model)
    assert float((limit(x).double() - expected).norm() / expected.norm()) < 0.02
    assert limit.findings == []


@pytest.mark.parametrize("value", [-math.inf, torch.finfo(torch.float64).min, -1e30])
def test_what_masks_in_the_limit_is_no_finding(value):
    limit = saturated(Head(value, "add"))
    limit(torch.randn(1, TOKENS, SIZE).double())
    assert limit.findings == []


def test_position_biases_are_no_masks():
    class Alibi(Head):
        def forward(self, x):
            away = torch.arange(TOKENS).double()
            scores = self.q(x) @ self.k(x).transpose(-1, -2) - 400 * (away[:, None] - away).abs()
            return scores.softmax(-1) @ self.v(x)

    limit = saturated(Alibi(0.0, ""))
    limit(torch.randn(1, TOKENS, SIZE).double())
    assert limit.findings == []


class Leaves(nn.Module):
    def __init__(self, take) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()
        self.take = take

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.as_tensor(self.take(self.first(x)), dtype=x.dtype))


TAKEN = {
    "numpy": lambda h: h.numpy().copy(),
    "tolist": lambda h: h.tolist(),
    "__array__": lambda h: np.asarray(h).copy(),
    "__dlpack__": lambda h: np.from_dlpack(h).copy(),
    "to_dlpack": lambda h: torch.from_dlpack(torch.utils.dlpack.to_dlpack(h)).clone(),
}


@pytest.mark.parametrize("method", TAKEN)
def test_a_value_that_leaves_torch_is_a_finding(method):
    limit = saturated(Leaves(TAKEN[method]))
    x = torch.randn(2, 4).double()
    limit(x)
    assert PassFinding("left_torch", "", 1, method) in limit.findings
    assert "treated as constants" in normgrowth.degrees(limit.model, x).problems[0]


@pytest.mark.parametrize("by_keyword", [False, True])
def test_a_module_with_parameters_whose_kernel_is_not_seen_is_a_finding(by_keyword):
    class Foreign(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4).double())

        def forward(self, x):
            with torch.utils._python_dispatch._disable_current_modes():
                return torch.from_numpy(x.numpy() @ self.weight.detach().numpy())

    class Network(nn.Sequential):
        def forward(self, x):
            return self[1](x=self[0](x)) if by_keyword else super().forward(x)

    limit = saturated(Network(nn.Linear(4, 4).double(), Foreign()))
    limit(torch.randn(2, 4).double())
    assert "constant_output" in {finding.kind for finding in limit.findings}
    assert [finding.module for finding in limit.findings if finding.kind == "constant_output"] == ["1"]


def test_constants_that_leave_torch_are_no_finding():
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4).double()

        def forward(self, x):
            return self.layer(x) * torch.as_tensor(np.asarray(x)) + float(len(x.tolist()))

    limit = saturated(Positions())
    limit(torch.randn(2, 4).double())
    assert limit.findings == []


def test_findings_that_differ_in_their_module_share_a_sentence():
    found = [PassFinding("finite_mask", f"layer.{n}", 4, value=-1e4) for n in range(3)]
    (sentence,) = messages(found)
    assert sentence.startswith("3 modules, the first layer.0: the mask -10000")


def test_saturation_and_heads_pass_findings_on():
    from transformers import BertConfig, BertModel

    sizes = dict(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=50
    )
    model = BertModel(BertConfig(**sizes), add_pooling_layer=False).eval()
    plain = model.forward

    def with_finite_mask(input_ids=None, attention_mask=None, **more):
        later = torch.ones(6, 6).triu(1)
        return plain(input_ids=input_ids, attention_mask=(later * -10000.0).expand(2, 1, 6, 6), **more)

    model.forward = with_finite_mask
    batches = [
        {"input_ids": torch.randint(5, 50, (2, 6)), "attention_mask": torch.ones(2, 6, dtype=torch.long)}
    ]
    for result in (
        normgrowth.saturation(model, inputs=batches, c=()),
        normgrowth.heads(model, inputs=batches),
    ):
        assert any("the mask -10000 is finite" in note for note in result.notes)
