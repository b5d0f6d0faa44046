"""The saturated network as a limit: Prop. 1 and 2, the attention of section 4.2, Prop. 4 to 6 and biases."""

import math

import pytest
import torch
from homogeneity import scaled, slope
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from normgrowth.limit.saturated import saturated
from normgrowth.network.models.constructions import anbn, anbncn, case_of_greatest, counter, dyck1, majority
from normgrowth.network.models.encoders import Encoder, EncoderConfig
from normgrowth.network.saturated_attention import saturated_attention
from normgrowth.paper.stages.table1_networks import TABLE, Fed, Head, Sublayer, built, spread_norms

pytestmark = pytest.mark.usefixtures("one_thread")
few = settings(max_examples=8, deadline=None, derandomize=True)  # random weights may nearly tie: no surprises
seeds = st.integers(0, 10**6)
kinds = st.sampled_from(["paper_pre_norm", "usual_pre_norm", "post_norm"])
IDS = torch.tensor([[1, 5, 3, 3, 8, 0, 2], [7, 7, 2, 9, 10, 4, 1]])
close = torch.testing.assert_close


def encoder(seed=0, **options):
    torch.manual_seed(seed)
    options = (
        dict(vocabulary=11, max_length=9, width=12, layers=2, heads=3, feedforward=24, bias=False) | options
    )
    return spread_norms(Encoder(EncoderConfig(**options)).double())


# B. Norm growth and saturation -------------------------------------------------------------------------


@few
@given(seeds, kinds, st.booleans(), st.floats(-1, 0.6))
def test_proposition_2_uniform_growth_saturates(seed, kind, bias, power):
    """Prop. 1 and 2, where nothing ties: θ_t = c(t)·θ′ + o(c(t)) makes c⁻ᵏf(θ_t) go to the saturated network of θ′."""
    model = encoder(seed, kind=kind, bias=bias)
    limit = saturated(model)(IDS)
    generator = torch.Generator().manual_seed(seed)
    noise = {n: torch.randn(p.shape, generator=generator, dtype=p.dtype) for n, p in model.named_parameters()}
    away = []
    for small in (1e-1, 1e-6):  # the rest, relative to c
        c = small ** (1 / (power - 1))
        theta = {name: c * p + c**power * noise[name] for name, p in model.named_parameters()}
        with torch.no_grad():
            out = functional_call(model, theta, (IDS,)) / c**model.config.degree
        away.append((out - limit).norm() / limit.norm())
    assert away[1] < min(1e-2, away[0])


class Scores(nn.Module):
    """softmax(θ₁θ₃, θ₂θ₃)"""

    def __init__(self):
        super().__init__()
        self.theta = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self):
        return (self.theta[:2] * self.theta[2]).softmax(-1)


@pytest.mark.parametrize("rest", [math.sqrt, lambda t: 1 / math.sqrt(t)], ids=["o(t)", "o(1)"])
def test_proposition_2_as_printed_fails_at_a_tie(rest):
    """Prop. 2 as printed: θ′ = (1, 1, 1) ties, so θ_t − tθ′ decides, even if it goes to 0."""
    model = Scores()
    limit = saturated(model)
    close(limit(), torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert sum(tie.uniform for tie in limit.ties) == 1
    for t, wanted in ((1e2, 0.99), (1e6, 1 - 1e-12)):
        theta = t * torch.tensor([1, 1, 1.0], dtype=torch.float64) + torch.tensor([rest(t), 0, 0])
        assert functional_call(model, {"theta": theta}, ()).max() > wanted
        assert (theta / t - 1).abs().max() < 0.11


def test_definition_1_diverges_unless_the_degree_is_0():
    """Definition 1 to the letter: f(x; cθ) itself converges for k = 0 only; otherwise divided by cᵏ."""
    plain = encoder(kind="post_norm", norm_gain=False)
    close(scaled(plain, 1e9, IDS), saturated(plain)(IDS))
    gained = encoder(kind="post_norm")
    assert scaled(gained, 1e9, IDS).norm() > 1e8 * saturated(gained)(IDS).norm()
    close(scaled(gained, 1e9, IDS) / 1e9, saturated(gained)(IDS))


def test_c_1000_need_not_be_the_limit():
    """§4.1 takes c = 1000 for the limit. In this encoder a bias keeps the wrong key ahead until c is above 1000."""
    row = next(row for row in TABLE if row.component == "paper's encoder, biases")
    model, args = built(row, seed=2)
    limit = saturated(model)(*args)
    away = [(scaled(model, c, *args) / c - limit).norm() / limit.norm() for c in (1e3, 1e4)]
    assert away[0] > 0.3
    assert away[1] < 1e-4


def test_lemma_1_zero_has_no_degree():
    """Lemma 1: what is exactly 0 has every degree, so none is given; nor does it hide what it is added to."""
    limit = saturated(Fed(lambda x: x * 0.0, 1))
    limit()
    assert limit.degrees[""] is None
    limit = saturated(Fed(lambda x, y: x + y * 0.0, 1, 2))
    limit()
    assert limit.degrees[""] == 1


# 4.2 Saturated attention --------------------------------------------------------------------------------


class Projected(nn.Module):
    """softmax(HQ(HK)ᵀ)HV of given H."""

    def __init__(self, q, k, v):
        super().__init__()
        self.q, self.k, self.v = (nn.Parameter(w.double()) for w in (q, k, v))

    def forward(self, h):
        return functional.scaled_dot_product_attention(h @ self.q, h @ self.k, h @ self.v)


@few
@given(seeds, st.booleans())
def test_saturated_attention_is_the_limit_of_attention(seed, ties):
    """§4.2: s-attn(H; Q, K, V) = argmax(HQKᵀHᵀ)HV, uniform over ties."""
    torch.manual_seed(seed)
    q, k, v = torch.randn(3, 4, 4, dtype=torch.float64)
    h = torch.randn(2, 6, 4, dtype=torch.float64)
    if ties:  # small integers tie exactly
        q, k = torch.randint(-1, 2, (2, 4, 2)).double()
        h = torch.randint(-1, 2, (2, 6, 4)).double()
    wanted = saturated_attention(h @ q, h @ k, h @ v)
    model = Projected(q, k, v)
    limit = saturated(model)
    close(limit(h), wanted)
    assert limit.degrees[""] == 1
    close(scaled(model, 1e9, h) / 1e9, wanted, rtol=1e-6, atol=1e-6)


@few
@given(seeds)
def test_argmax_and_mean_heads(seed):
    """§4.2: V = I retrieves the h_j most like h_i under M = QKᵀ; a head without queries takes the mean."""
    torch.manual_seed(seed)
    h, m = torch.randn(5, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)
    identity = torch.eye(4)
    best = torch.stack([h[max(range(5), key=lambda j, i=i: float(h[i] @ m @ h[j]))] for i in range(5)])
    close(saturated(Projected(m, identity, identity))(h[None])[0], best)
    close(saturated(Projected(0 * m, identity, m))(h[None])[0], (h @ m).mean(0).expand(5, 4))


@pytest.mark.parametrize("build", [case_of_greatest, majority, counter, anbn, anbncn, dyck1])
def test_constructions_are_saturated_networks(build):
    """§4.2: the limit of each hand-built network is the network with saturated heads; its degree is what it says."""
    network = build(max_length=6)
    symbols = network.symbols[:-2]
    words = [[symbols[(i * 7 + j * j) % len(symbols)] for j in range(6)] for i in range(8)]
    tokens = network.encode(["".join(word) for word in words])
    limit = saturated(network)
    close(limit(tokens), network(tokens, saturated=True), rtol=1e-10, atol=1e-10)
    assert limit.degrees[""] == network.degree


# D. Transformers ----------------------------------------------------------------------------------------


@few
@given(seeds, st.integers(1, 3))
def test_proposition_4_a_head_adds_1(seed, k):
    """Prop. 4, corrected: of X of degree k, AV has degree k + 1: for ~1-homogeneous X it is 2."""
    torch.manual_seed(seed)
    model = Fed(Head(), k)
    limit = saturated(model)
    coefficients = limit()
    assert limit.degrees[""] == k + 1
    close(
        scaled(
            model,
            1e8,
        )
        / 1e8 ** (k + 1),
        coefficients,
    )


def test_proposition_4_as_printed_fails():
    """Prop. 4 as printed: divided by c, a head of ~1-homogeneous X grows with c (the proof forgets W^v)."""
    torch.manual_seed(0)
    assert slope(lambda c: scaled(Fed(Head(), 1), c) / c, 1e4, 1e6) > 0.5


@few
@given(seeds, st.sampled_from(["attention", "feedforward"]))
def test_propositions_5_and_6_sublayers_preserve_1(seed, branch):
    """Prop. 5 and 6: LN(f(X)) + X has the degree 1 of X; f itself has 3 (printed: 2 for attention)."""
    torch.manual_seed(seed)
    model = Fed(Sublayer(branch, eps=1e-12), 1)
    limit = saturated(model)
    coefficients = limit()
    assert (limit.degrees["part.f"], limit.degrees["part.norm"], limit.degrees[""]) == (3, 1, 1)
    assert not limit.sums
    close(scaled(model, 1e6) / 1e6, coefficients)


@few
@given(seeds, st.integers(1, 4))
def test_encoders_of_any_depth_have_degree_1(seed, layers):
    """§D, by induction: the paper's biasless pre-norm encoder is ~1-homogeneous, and drops nothing."""
    model = encoder(seed, layers=layers)
    limit = saturated(model)
    coefficients = limit(IDS)
    assert {limit.degrees[f"blocks.{i}"] for i in range(layers)} == {limit.degrees[""]} == {1}
    assert not limit.sums
    assert not limit.vanished
    close(scaled(model, 1e6, IDS) / 1e6, coefficients)


@few
@given(seeds, st.integers(1, 3))
def test_post_norm_has_a_degree_but_drops_its_stream(seed, layers):
    """§D, last remark: for post-norm the argument fails, since x (1) meets f(x) (3); the degree is 1 all the same."""
    limit = saturated(encoder(seed, layers=layers, kind="post_norm"))
    limit(IDS)
    assert limit.degrees[""] == 1
    assert [(s.kept, s.dropped) for s in limit.sums] == [(3, 1)] * (2 * layers)


@pytest.mark.parametrize("kind", ["paper_pre_norm", "usual_pre_norm", "post_norm"])
def test_biases_of_linear_maps_vanish(kind):
    """Footnote 12's puzzle: with biases the network has the same limit as without those of linear maps."""
    model = encoder(kind=kind, bias=True)
    limit = saturated(model)
    with_biases = limit(IDS)
    of_maps = {n for n, _ in model.named_parameters() if n.endswith("bias") and "norm" not in n}
    assert set(limit.vanished) == of_maps
    for name in of_maps:
        nn.init.zeros_(model.get_parameter(name))
    close(saturated(model)(IDS), with_biases)
