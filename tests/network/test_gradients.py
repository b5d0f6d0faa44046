"""Euler's theorem (§5.2): of f of degree k, the gradient has degree k − 1, and θ·∇f = k·f.

The f here are one number each: a fixed random combination of a network's outputs. The fused backward of
attention is wrong at large c (see `encoders.Attention`), so all gradients are taken with the plain one.
"""

import math

import mpmath
import pytest
import torch
import transformers
from homogeneity import slope
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from normgrowth.limit.saturated import saturated
from normgrowth.network.models.encoders import Encoder, EncoderConfig, LanguageModel
from normgrowth.network.scaled_weights import scaled_weights
from normgrowth.paper.stages.table1_networks import EXACT, EXPONENTIAL, IDS, TABLE, built, spread_norms

pytestmark = pytest.mark.usefixtures("one_thread")


def number(out):
    """A fixed random combination of outputs."""
    out = getattr(out, "logits", out)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(5), dtype=out.dtype)
    return (weights * out).sum()


def gradients(model, c, *args, of=number, **kwargs):
    """f, ∇f and θ·∇f at cθ; the gradient by parameter."""
    with scaled_weights(model, c), sdpa_kernel(SDPBackend.MATH):
        f = of(model(*args, **kwargs))
        named = dict(model.named_parameters())
        found = torch.autograd.grad(f, list(named.values()), allow_unused=True, materialize_grads=True)
        inner = sum((p * g).sum().item() for p, g in zip(named.values(), found, strict=True))
    return f.item(), dict(zip(named, found, strict=True)), inner


def flat(grads):
    return torch.cat([g.flatten() for g in grads.values()])


def turn(a, b):
    return 1 - torch.cosine_similarity(a, b, dim=0).item()


def has_gradient(row):
    """Not those without parameters, nor those whose limit is a step: their gradient falls faster than any power."""
    model, _ = built(row)
    return any(True for _ in model.parameters()) and (row.degree, row.rest) != (0, EXPONENTIAL)


SMOOTH = [row for row in TABLE if has_gradient(row)]


@pytest.mark.parametrize("row", SMOOTH, ids=lambda row: row.component)
def test_gradients_have_one_degree_less(row):
    model, args = built(row)
    measured = slope(lambda c: flat(gradients(model, c, *args)[1]), 1e4, 1e6)
    tolerance = 1e-8 if row.rest in (EXACT, EXPONENTIAL) else 2e-3
    assert measured == pytest.approx(row.degree - 1, abs=tolerance)
    low, high = (flat(gradients(model, c, *args)[1]) for c in (1e4, 1e6))
    assert turn(low, high) < tolerance


@pytest.mark.parametrize("row", SMOOTH, ids=lambda row: row.component)
def test_eulers_theorem(row):
    model, args = built(row)
    c, tolerance = {EXACT: (1, 1e-10), EXPONENTIAL: (1e4, 1e-9)}.get(row.rest, (1e6, 1e-4))
    f, grads, inner = gradients(model, c, *args)
    if row.degree == 0:
        assert abs(inner) < tolerance * c * flat(grads).norm()
    else:
        assert inner == pytest.approx(row.degree * f, rel=tolerance)


def test_euler_only_holds_in_the_limit_where_there_are_biases():
    """At θ itself the paper's encoder is far from homogeneous; at cθ it is within 1/c."""
    row = next(row for row in TABLE if row.component == "paper's encoder, biases")
    model, args = built(row)
    off = {c: gradients(model, c, *args) for c in (1, 1e3, 1e4)}
    off = {c: abs(inner / f - 1) for c, (f, _, inner) in off.items()}
    assert off[1] > 0.05
    assert math.log10(off[1e3] / off[1e4]) == pytest.approx(1, abs=0.1)


# Networks of others ------------------------------------------------------------------------------------


def rms_in_float64(self, x):
    """Theirs compute in float32, which overflows at c⁵."""
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


TINY = dict(vocab_size=11, hidden_size=12, intermediate_size=20, num_hidden_layers=3, num_attention_heads=3)
DECODER = TINY | dict(
    num_key_value_heads=3, attn_implementation="eager", pad_token_id=0, bos_token_id=1, eos_token_id=2
)
OTHERS = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER)),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(**DECODER, head_dim=4, tie_word_embeddings=True)
    ),
    "t5": lambda: transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=11, d_model=12, d_kv=4, d_ff=20, num_layers=2, num_heads=3)
    ),
}


@pytest.fixture(params=OTHERS)
def other(request):
    """A model without biases, its arguments."""
    torch.manual_seed(1)
    model = OTHERS[request.param]().double().eval()
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.forward = rms_in_float64.__get__(module)
    for name, parameter in model.named_parameters():
        assert not name.endswith(".bias")
        torch.nn.init.normal_(parameter, float(parameter.ndim == 1), 0.3)
    return model, dict(input_ids=IDS) | (dict(decoder_input_ids=IDS[:, :4]) if request.param == "t5" else {})


def test_other_networks(other):
    """Logits have degree 2, computed and measured; their gradients degree 1; and Euler's theorem."""
    model, inputs = other
    limit = saturated(model)
    limit(**inputs)
    assert limit.degrees[""] == 2
    (f, low, _), (g, high, inner) = (gradients(model, c, **inputs) for c in (1e3, 1e5))
    assert math.log(abs(g / f)) / math.log(100) == pytest.approx(2, abs=1e-5)
    assert slope(lambda c: flat({1: low, 2: high}[c]), 1, 2) * math.log(2) / math.log(100) == pytest.approx(
        1, abs=1e-5
    )
    assert turn(flat(low), flat(high)) < 1e-5
    assert inner == pytest.approx(2 * g, rel=1e-5)


# What follows for training -----------------------------------------------------------------------------


def language_model():
    torch.manual_seed(0)
    config = EncoderConfig(
        vocabulary=11, max_length=9, width=12, layers=2, heads=3, feedforward=24, bias=False
    )
    return spread_norms(LanguageModel(config).double())


def loss(labels):
    return lambda logits: cross_entropy(logits.flatten(0, 1), labels.flatten())


def test_assumption_1_holds_for_logits_and_for_losses_of_wrong_answers_only():
    """Assumption 1: the gradient of a degree-2 logit goes as ‖θ‖; that of the loss only if something is wrong."""
    model = language_model()
    best = saturated(model)(IDS).argmax(-1)
    wrong = (best + 1) % 11
    for of in (number, loss(wrong)):
        assert slope(lambda c, of=of: flat(gradients(model, c, IDS, of=of)[1]), 1e3, 1e5) == pytest.approx(
            1, abs=1e-4
        )
    assert flat(gradients(model, 1, IDS, of=loss(best))[1]).norm() > 1e-3
    assert flat(gradients(model, 1e3, IDS, of=loss(best))[1]).norm() == 0


def test_what_only_chooses_gets_no_gradient():
    """Queries and keys decide which position wins, not what it says: their gradients vanish in the limit."""
    model = language_model()
    for c, vanished in ((1, False), (1e3, True)):
        _, grads, _ = gradients(model, c, IDS)
        for name, gradient in grads.items():
            chooses = "query" in name or "key" in name
            assert (gradient.norm() < 1e-30 * flat(grads).norm()) == (chooses and vanished), name


def test_the_gradient_of_an_approximately_homogeneous_function_need_not_be_one():
    """§5.2 as printed: Euler's theorem is about homogeneous functions. θ + e^(−θ)·sin(e^(2θ)) is approximately
    1-homogeneous (corrected Definition 3), its derivative swings as far as 2e^θ."""
    with mpmath.workdps(60):
        f = lambda r: r + mpmath.exp(-r) * mpmath.sin(mpmath.exp(2 * r))  # noqa: E731
        for n in (10**3, 10**9):
            r = mpmath.log(2 * mpmath.pi * n) / 2
            assert max(abs(f(c * r) / c - f(r)) for c in (1.5, 2, 3)) < 2 * mpmath.exp(-r)
            assert mpmath.diff(f, r) > mpmath.exp(r)


def test_the_fused_backward_is_not_used_unnoticed():
    """Why the plain one: if this fails, PyTorch's fused backward has become right at large c."""
    torch.manual_seed(0)
    config = EncoderConfig(
        vocabulary=11, max_length=9, width=12, layers=2, heads=3, feedforward=24, bias=False
    )
    model = spread_norms(Encoder(config).double())
    with scaled_weights(model, 1e6):
        number(model(IDS)).backward()
    fused = flat({name: p.grad for name, p in model.named_parameters()})
    assert turn(fused, flat(gradients(model, 1e6, IDS)[1])) > 1e-3
