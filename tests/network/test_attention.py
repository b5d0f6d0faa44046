"""Saturated attention against a reference in plain loops, against softmax at large c, and inside real models."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from normgrowth.errors import InputError
from normgrowth.limit.saturated import saturated
from normgrowth.network.saturated_attention import saturated_attention

close = torch.testing.assert_close
HALF = [torch.float16, torch.bfloat16]


def reference(q, k, v, visible=None, added=None, ties="average", scale=1.0):
    """One query at a time, one score at a time. For one batch row: q [heads, Q, D], k and v [groups, K, D]."""
    heads, queries, _ = q.shape
    out = torch.zeros(heads, queries, v.shape[-1], dtype=torch.float64)
    for h in range(heads):
        group = h * len(k) // heads
        for i in range(queries):
            scores = {}
            for j in range(k.shape[1]):
                if visible is None or visible[i][j]:
                    exact = math.fsum(float(a) * float(b) for a, b in zip(q[h, i], k[group, j], strict=True))
                    scores[j] = scale * exact + (0 if added is None else float(added[i][j]))
            if scores:
                best = max(scores.values())
                tied = [j for j, score in scores.items() if score == best]
                tied = {"average": tied, "leftmost": tied[:1], "rightmost": tied[-1:]}[ties]
                out[h, i] = sum(v[group, j].double() for j in tied) / len(tied)
    return out


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def weights_of(q, k, mask=None, **options):
    """The weights, as the attention to unit vectors."""
    unit = torch.eye(k.shape[-2], dtype=q.dtype).expand(*k.shape[:-2], -1, -1)
    return saturated_attention(q, k, unit, mask, **options)


def attended_positions(q, k, mask=None, **options):
    return (weights_of(q, k, mask, **options) > 0).sum(-1)


def small_integers(*shape, seed=0):
    """Few values, so that scores tie often and exactly."""
    return torch.randint(-1, 2, shape, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize("ties", ["average", "leftmost", "rightmost"])
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("seed", range(3))
def test_ties_of_each_kind_in_grouped_heads(ties, groups, seed):
    q, k = small_integers(6, 5, 3, seed=seed), small_integers(groups, 9, 3, seed=seed + 10)
    v = randn(groups, 9, 4)
    visible = torch.rand(5, 9, generator=torch.Generator().manual_seed(seed)) < 0.6
    visible[2] = False
    assert (attended_positions(q, k) > 1).double().mean() > 0.3
    bias = small_integers(5, 9, seed=seed + 20)
    for mask, parts in ((None, {}), (visible, dict(visible=visible)), (bias, dict(added=bias))):
        expected = reference(q, k, v, **parts, ties=ties, scale=0.5)
        close(saturated_attention(q, k, v, mask, ties=ties, scale=0.5), expected, rtol=0, atol=1e-15)
        weights = weights_of(q, k, mask, ties=ties, scale=0.5)
        close(weights @ v.repeat_interleave(6 // groups, 0), expected)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    sizes=st.tuples(*(st.integers(1, largest) for largest in (2, 2, 3, 6, 9))),
    kind=st.sampled_from(["none", "bool", "added", "causal"]),
)
def test_softmax_at_large_c_is_it_where_nothing_ties(seed, sizes, kind):
    batch, groups, repeats, queries, keys = sizes
    q = randn(batch, heads := groups * repeats, queries, 4, seed=seed)
    k, v = randn(batch, groups, keys, 4, seed=seed + 1), randn(batch, groups, keys, 3, seed=seed + 2)
    numbers, c, causal = randn(batch, heads, queries, keys, seed=seed + 3), 1e12, kind == "causal"
    mask = {"bool": numbers < 0.5, "added": numbers}.get(kind)
    sharp = c * numbers if kind == "added" else mask
    soft = scaled_dot_product_attention(q * c, k, v, attn_mask=sharp, is_causal=causal, enable_gqa=True)
    close(saturated_attention(q, k, v, mask, causal=causal), soft, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF])
@pytest.mark.parametrize("times_smallest", [math.inf, 2, 1, 0.9])
def test_masks_of_any_spelling_close(dtype, times_smallest):
    q, k, v = (randn(2, 5, 4, seed=s, dtype=dtype) for s in range(3))
    visible = torch.ones(5, 5, dtype=torch.bool).tril()
    visible[3] = False
    number = times_smallest * torch.finfo(dtype).min
    added = torch.zeros(5, 5, dtype=torch.float64).masked_fill(~visible, number).to(dtype)
    by_bool = saturated_attention(q, k, v, visible)
    assert torch.equal(saturated_attention(q, k, v, added), by_bool)
    assert torch.equal(by_bool[:, 3], torch.zeros(2, 4, dtype=dtype))
    visible[3, :4] = True
    assert torch.equal(saturated_attention(q, k, v, causal=True), saturated_attention(q, k, v, visible))


@pytest.mark.parametrize("large", [-1e4, -1e30])
def test_large_finite_masks_lose_and_decide_nothing_alone(large):
    q, k, v = (randn(1, 4, 4, seed=s, dtype=torch.float32) for s in range(3))
    visible = torch.tensor([[True, False, True, True]]).expand(4, 4)
    added = torch.zeros(4, 4).masked_fill(~visible, large)
    assert torch.equal(saturated_attention(q, k, v, added), saturated_attention(q, k, v, visible))
    everywhere = saturated_attention(q, k, v, torch.full((4, 4), large))
    swallowed = v.mean(-2, keepdim=True).expand_as(v)  # by −1e30, in softmax too, all positions are alike
    close(everywhere, saturated_attention(q, k, v) if large == -1e4 else swallowed)


def test_equal_keys_tie_wherever_they_stand():
    """A matrix product alone would not see it: it sums in another order at the edges of its blocks."""
    for count in (7, 33, 100, 257):
        q, key = randn(1, 6, 64), randn(1, 1, 64, seed=1)
        k, v = key.expand(1, count, 64).contiguous(), randn(1, count, 2, seed=2)
        assert (attended_positions(q, k) == count).all()
        assert (attended_positions(q.float(), k.float()) == count).all()
        close(saturated_attention(q, k, v), v.mean(1, keepdim=True).expand(1, 6, 2))


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_makes_no_ties_of_its_own(dtype):
    q, k = randn(1, 4000, 32, dtype=dtype), randn(1, 128, 32, seed=1, dtype=dtype)
    v = randn(1, 128, 2, seed=2, dtype=dtype)
    rounded = q @ k.mT  # in half precision, as a model would
    falsely_tied = (rounded == rounded.amax(-1, keepdim=True)).sum(-1) > 1
    q = q[falsely_tied][None, :20]
    assert q.shape[1] > 3
    assert (attended_positions(q, k) == 1).all()
    assert torch.equal(saturated_attention(q, k, v).double(), reference(q, k, v))
    large = torch.full((1, 128, 1), 60000.0, dtype=dtype)  # their sum overflows float16, their mean does not
    assert torch.equal(saturated_attention(q * 0, k, large), large[:, :1].expand(1, q.shape[1], 1))


def test_near_ties_are_counted_and_averaged():
    k = torch.tensor([[1.0], [1.0 - 1e-6], [0.5], [1.0]], dtype=torch.float64)
    q, v = torch.ones(1, 1, dtype=torch.float64), torch.tensor([[0.0], [9.0], [100.0], [6.0]]).double()
    assert [int(attended_positions(q, k, tolerance=t)) for t in (0, 1e-7, 1e-5, 0.6)] == [2, 2, 3, 4]
    assert [saturated_attention(q, k, v, tolerance=t).item() for t in (0, 1e-5)] == [3.0, 5.0]
    for factor in (1e-9, 1e9):  # relative: the size of the scores does not matter
        assert attended_positions(q * factor, k, tolerance=1e-5).item() == 3
    assert attended_positions(q, k, torch.zeros(1, 4, dtype=torch.bool)).item() == 0


def test_what_is_not_a_number_is_not_hidden():
    q, v = torch.ones(3, 1), torch.ones(2, 1)
    for ties, number in product(("average", "leftmost"), (math.nan, math.inf)):
        assert saturated_attention(q, torch.tensor([[number], [1.0]]), v, ties=ties).isnan().all()
    closed = torch.tensor([[False, True]])
    assert (saturated_attention(q, torch.tensor([[math.nan], [1.0]]), v, closed) == 1).all()


def test_gradients_go_through_the_values():
    q, k, v = small_integers(2, 3, 2), small_integers(1, 5, 2, seed=1), randn(1, 5, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda v: saturated_attention(q, k, v), (v,))
    q.requires_grad_()
    saturated_attention(q, k, v).sum().backward()
    assert q.grad is None


class Kept(TorchDispatchMode):
    """Every tensor that is made, so that no memory is used twice."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        self.tensors = [*getattr(self, "tensors", []), *tree_leaves(made)]
        return made


@pytest.mark.parametrize("ties", ["average", "rightmost"])
def test_no_tensor_but_one_of_the_size_of_the_scores(ties):
    q = randn(1, 512, 4, dtype=torch.float32)
    with Kept() as kept:
        saturated_attention(q, q, q, ties=ties, causal=True)
    memory = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept.tensors}
    assert sorted(memory.values())[-2] < 8 * 512 * 512 == max(memory.values())


def test_bad_calls_say_what_is_wrong():
    q, k = torch.zeros(3, 2, 4), torch.zeros(2, 2, 4)
    with pytest.raises(InputError, match="3 query heads"):
        saturated_attention(q, k, k)
    bad = {"'first'": dict(ties="first"), "int64": dict(mask=q[0].long()), "got -1": dict(tolerance=-1)}
    for message, options in bad.items():
        with pytest.raises(InputError, match=message):
            saturated_attention(q, q, q, **options)


# Inside real models --------------------------------------------------------------------------------------

SMALL = dict(vocab_size=50, hidden_size=24, num_hidden_layers=3, num_attention_heads=4, intermediate_size=32)
MODELS = {
    "bert": SMALL,
    "gpt_neox": SMALL,
    "gpt2": dict(vocab_size=50, n_embd=24, n_layer=3, n_head=4),
    "llama": dict(SMALL, num_key_value_heads=2),
    "t5": dict(vocab_size=50, d_model=24, d_kv=6, num_layers=2, num_heads=4, d_ff=32),
    "gemma2": dict(SMALL, num_key_value_heads=2, head_dim=6, sliding_window=6),
    "qwen3": dict(SMALL, num_key_value_heads=2, head_dim=6),
    "bloom": dict(vocab_size=50, hidden_size=24, n_layer=2, n_head=4),
}


def build(kind, implementation="eager"):
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(kind, **MODELS[kind])
    torch.manual_seed(0)
    model = AutoModel.from_config(config, attn_implementation=implementation).double().eval()
    for parameter in model.requires_grad_(False).parameters():
        parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def inputs_for(model):
    tokens = 3 + 7 * torch.arange(33).view(3, 11) % 47  # no token twice: no ties
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    inputs["attention_mask"][1, 7:] = 0
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens.flip(0)[:, :6]
    return inputs


def attentions(outputs):
    if "decoder_attentions" in outputs:
        return [*outputs.encoder_attentions, *outputs.decoder_attentions, *outputs.cross_attentions]
    return list(outputs.attentions)


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_models_agree_with_their_own_attention_at_large_c(kind, monkeypatch):
    model, softmax = build(kind), nn.functional.softmax
    inputs = inputs_for(model)

    def sharp(scores, dim, dtype=None):  # in float64, whatever the model asks; its masks do not become −inf
        return softmax((scores * 1e9).clamp(min=torch.finfo(scores.dtype).min), dim)

    with monkeypatch.context() as patch:
        patch.setattr(nn.functional, "softmax", sharp)
        expected = model(**inputs, output_attentions=True, use_cache=False)
    found = saturated(model, attention_only=True)(**inputs, output_attentions=True, use_cache=False)
    padded = inputs["attention_mask"].bool()
    real = padded.new_ones(found[0].shape[:2]) if model.config.is_encoder_decoder else padded
    close(found[0][real], expected[0][real], rtol=1e-6, atol=1e-6)
    assert len(attentions(found)) == len(attentions(expected)) > 1
    for a, b in zip(attentions(found), attentions(expected), strict=True):
        queries = padded if a.shape[-2] == padded.shape[1] else real
        rows = (b == 1).any(-1) & queries[:, None]
        assert rows.sum() > 0.95 * b.shape[1] * queries.sum()
        close(a[rows], b[rows], rtol=0, atol=1e-6)
    soft = model(**inputs, use_cache=False)
    assert (soft[0] - expected[0])[real].abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "t5"])
def test_padding_changes_nothing(kind):
    model = build(kind)
    hard = saturated(model, attention_only=True)
    together = hard(**(inputs := inputs_for(model)))[0][1]
    short = {name: value[1:2, : 6 if "decoder" in name else 7] for name, value in inputs.items()}
    alone = hard(**short)[0][0]
    close(together[: len(alone)], alone)


def test_decoding_with_a_cache_gives_the_same():
    model = build("llama")
    hard = saturated(model, attention_only=True)
    tokens = inputs_for(model)["input_ids"]
    whole = hard(tokens).last_hidden_state
    past = hard(tokens[:, :8], use_cache=True)
    rest = hard(tokens[:, 8:], past_key_values=past.past_key_values).last_hidden_state
    close(torch.cat([past.last_hidden_state, rest], 1), whole)


def test_equal_scores_share_alike():
    model = build("gpt2")
    model.wpe.weight.zero_()  # nothing tells equal tokens apart: all scores tie
    hard = saturated(model, attention_only=True)
    weights = hard(torch.full((1, 5), 7), output_attentions=True).attentions[0]
    close(weights[0, 0, 4], torch.full((5,), 0.2, dtype=torch.float64))


class Routed(nn.Module):
    """Attention, a router whose experts share alike, and a softmax of the output."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.router = (nn.Linear(4, 4).double() for _ in range(4))
        self.experts = nn.Parameter(torch.randn(4, 4, 4).double())
        self.bias = nn.Parameter(torch.randn(5, 5).double())
        self.hard = False

    def forward(self, x):
        scores = (self.q(x) @ self.k(x).transpose(-1, -2) / 2 + self.bias).masked_fill(
            torch.ones(5, 5).triu(1).bool(), -torch.inf
        )
        weights = (scores * 1e9 if self.hard else scores).softmax(-1)
        states = x + weights @ self.v(x)
        shares = self.router(states).softmax(-1)
        return (torch.einsum("btd,edo,bte->bto", states, self.experts, shares)).softmax(-1)


def test_routers_and_outputs_stay_soft():
    torch.manual_seed(0)
    model, x = Routed(), torch.randn(2, 5, 4).double()
    with torch.no_grad():
        model.hard = True
        expected = model(x)
        model.hard = False
        found = saturated(model, attention_only=True)(x)
        assert not torch.allclose(found, model(x), atol=1e-2)
    assert torch.allclose(found, expected, atol=1e-9)
    assert all(not vars(p.untyped_storage()) for p in model.parameters()), "no mark remains"
