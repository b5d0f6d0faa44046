"""Attention some heads at a time is attention of all heads at once, in less memory."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import normgrowth.limit.rules.attention.head_groups as head_groups
from normgrowth import saturated
from normgrowth.limit.rules.attention.head_groups import groups, one_hot

transformers = pytest.importorskip("transformers")
TINY = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=50)
UNIT = 256 * torch.finfo(torch.float32).eps  # how near two scores of a row tie
MODELS = {
    "BERT": lambda: transformers.BertModel(transformers.BertConfig(**TINY)),
    "Llama": lambda: transformers.LlamaModel(transformers.LlamaConfig(**TINY, num_key_value_heads=2)),
    "T5": lambda: transformers.T5EncoderModel(
        transformers.T5Config(d_model=32, num_layers=2, num_heads=4, d_ff=64, d_kv=8, vocab_size=50)
    ),
}


@pytest.mark.parametrize("shape", [(3, 4, 5, 5), (1, 1, 1, 1), (2, 3, 0, 7), (0, 3, 4, 4)])
@pytest.mark.parametrize("size", [1, 25, 60, 10_000])
def test_groups_take_every_head_once_in_order(monkeypatch, shape, size):
    monkeypatch.setattr(head_groups, "GROUP", size)
    numbers = torch.arange(shape[0] * shape[1]).view(shape[:2])
    taken = torch.cat([numbers[place].flatten() for place in groups(torch.Size(shape))])
    assert torch.equal(taken, numbers.flatten())


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("orders", [1, 3])
def test_some_heads_at_a_time_is_all_at_once(monkeypatch, name, attention, orders):
    """With words that recur, so that scores tie, and with padding."""
    torch.manual_seed(0)
    model = MODELS[name]().eval().double()
    model.set_attn_implementation(attention)
    ids = torch.randint(3, 9, (3, 12))
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    found = []
    for size in (1, 1 << 30):
        monkeypatch.setattr(head_groups, "GROUP", size)
        monkeypatch.setattr(head_groups, "ROWS", size)
        limit = saturated(model, orders=orders)
        states = limit(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
        found.append((states, limit))
    (few, one), (every, all_) = found
    for a, b in zip(few, every, strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)
    assert one.ties == all_.ties
    assert one.sums == all_.sums
    assert one.outputs == all_.outputs
    assert (one.doubtful, one.cancelled, one.vanished) == (all_.doubtful, all_.cancelled, all_.vanished)


def test_one_largest_score_takes_all():
    torch.manual_seed(0)
    scores = torch.randn(2, 3, 7, 11)
    hiding = torch.zeros(1, 1, 7, 11).masked_fill(torch.rand(1, 1, 7, 11) < 0.3, -torch.inf)
    shares = torch.empty_like(scores)
    expected = F.one_hot((scores + hiding).argmax(-1), 11).float()
    assert one_hot(scores.clone(), shares, UNIT, hiding)
    assert torch.equal(shares, expected)
    assert one_hot(scores + hiding, shares, UNIT, None), "masks that are in the scores already"
    assert torch.equal(shares, expected)


@pytest.mark.parametrize(
    "row",
    [
        [1.0, 2.0, 2.0],
        [1.0, 2.0, 2.0 + 1e-5],
        [-torch.inf, -torch.inf, -torch.inf],
        [1.0, torch.nan, 0.0],
        [1.0, torch.inf, 0.0],
    ],
    ids=str,
)
def test_a_row_without_one_largest_score_is_left_to_the_exact_rule(row):
    scores = torch.tensor([[[[3.0, 1.0, 2.0], row]]])
    assert not one_hot(scores, torch.empty_like(scores), UNIT, None)


def test_scores_far_below_what_they_are_summed_from_are_near_each_other():
    scores = torch.tensor([[[[3e-6, 1e-6, 2e-6]]]])
    shares = torch.empty_like(scores)
    assert one_hot(scores.clone(), shares, UNIT, None)
    assert not one_hot(scores.clone(), shares, UNIT, None, torch.ones(1, 1, 1, 1))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 64, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (x @ w for w in self.weight)
        return F.scaled_dot_product_attention(q, k, v)


def peak(run) -> int:
    """The most bytes that tensors made by a call take at once."""
    with torch.profiler.profile(
        profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]
    ) as seen:
        run()
    held = most = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def test_scores_of_all_heads_are_never_held_at_once():
    torch.manual_seed(0)
    x = torch.randn(1, 16, 512, 64)
    limit = saturated(Attention())
    limit(x)
    inputs = 4 * x.nbytes  # q, k, v, and a copy
    assert peak(lambda: limit(x)) < inputs + 16 * 512 * 512 * 4 / 2, "half of the scores of all heads"


class Scores(nn.Module):
    """Eager attention with fixed positions, so that there are lower orders, and a step between scores and softmax."""

    def __init__(self, step=lambda scores, q, k, bias: scores) -> None:
        super().__init__()
        self.step = step
        self.weight = nn.Parameter(torch.randn(3, 64, 64) / 8)
        self.bias = nn.Parameter(torch.randn(4, 1, 1))
        self.register_buffer("positions", torch.randn(1, 1, 512, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (x @ w + self.positions[:, :, : x.shape[2]] for w in self.weight)
        scores = self.step(q @ k.mT, q, k, self.bias)
        return torch.softmax(scores, -1) @ v


def test_lower_orders_of_scores_are_never_held_for_all_heads():
    torch.manual_seed(0)
    x = torch.randn(1, 16, 512, 64)
    x[..., 1::2, :] = x[..., ::2, :]  # tokens that come twice
    found = []
    for orders in (1, 3):
        limit = saturated(Scores(lambda scores, *_: scores / 8), orders=orders)
        limit(x)
        found.append(peak(lambda limit=limit: limit(x)))
    one, three = found
    scores = 16 * 512 * 512 * 4
    assert three < one + scores, "one order of the scores of all heads more"


def write_after(scores, q, k, bias):
    scores = scores / 8
    q.zero_()
    k.mul_(2)
    return scores


def write_part(scores, q, k, bias):
    scores[:, 0] = 1.0
    return scores


def write_mask_after(scores, q, k, bias):
    mask = torch.zeros(scores.shape[-2:], dtype=scores.dtype).masked_fill(
        torch.ones(scores.shape[-2:]).triu(1) > 0, -torch.inf
    )
    scores = scores + mask
    mask.zero_()
    return scores


STEPS = {
    "nothing": lambda scores, q, k, bias: scores,
    "number": lambda scores, q, k, bias: 0.125 * scores,
    "in place": lambda scores, q, k, bias: scores.div_(8).add_(bias),
    "bias, then number": lambda scores, q, k, bias: (scores + bias) * 0.125,
    "twice": lambda scores, q, k, bias: scores + scores,
    "another view": lambda scores, q, k, bias: (scores.flatten(0, 1) + 1).view(scores.shape),
    "columns": lambda scores, q, k, bias: scores.mT,
    "clamp": lambda scores, q, k, bias: scores.abs(),
    "cast": lambda scores, q, k, bias: scores.float() * 0.5,
    "times one matrix": lambda scores, q, k, bias: scores * torch.ones_like(scores[0, 0]).tril(),
    "queries written to afterwards": write_after,
    "a part written to": write_part,
    "a mask written to afterwards": write_mask_after,
}


@pytest.mark.parametrize("name", STEPS)
def test_scores_whose_lower_orders_are_put_off(monkeypatch, name, own_random_numbers):
    """Whatever a network does to them, the result is that of scores with all orders at once."""
    model = Scores(STEPS[name]).double()
    x = torch.randn(2, 4, 12, 64).double()
    x[..., 1::2, :] = x[..., ::2, :]
    if name == "cast":
        model, x = model.float(), x.float()
    found = []
    for size in (1, 1 << 30):
        monkeypatch.setattr(head_groups, "GROUP", size)
        limit = saturated(model, orders=3)
        found.append((limit(x), limit))
    (few, one), (every, all_) = found
    assert one.ties or name == "columns"
    assert torch.allclose(few, every, rtol=1e-6 if name == "cast" else 1e-9)
    assert (one.ties, one.sums, one.outputs) == (all_.ties, all_.sums, all_.outputs)
    assert (one.doubtful, one.cancelled, one.vanished) == (all_.doubtful, all_.cancelled, all_.vanished)
