"""The encoders against the obvious code, their degrees against their slopes, and what no token may see."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from normgrowth.checkpoints.checkpoint import Tensor
from normgrowth.checkpoints.parameters.parameter_names import read_names
from normgrowth.errors import InputError
from normgrowth.network.models.encoders import (
    BLOCKS,
    Classifier,
    Encoder,
    EncoderConfig,
    LanguageModel,
    PostNormBlock,
)
from normgrowth.network.scaled_weights import scaled_weights

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = EncoderConfig(vocabulary=11, max_length=9, width=12, layers=3, heads=3, feedforward=10)
KINDS = [
    dict(kind="paper_pre_norm"),
    dict(kind="paper_pre_norm", final_norm=True),
    dict(kind="usual_pre_norm"),
    dict(kind="usual_pre_norm", final_norm=True),
    dict(kind="post_norm"),
]
IDS = torch.tensor([[1, 5, 3, 3, 8, 0, 2], [7, 7, 2, 9, 10, 4, 1]])
every_kind = pytest.mark.parametrize("options", KINDS, ids=lambda o: "+".join(map(str, o.values())))
with_and_without_biases = pytest.mark.parametrize("bias", [False, True], ids=["no biases", "biases"])


def seeded(make, seed=0, spread=True):
    """In float64; norms with gains and biases of their own, so that nothing is tested at 1 and 0 only."""
    torch.manual_seed(seed)
    module = make().double()
    for name, parameter in module.named_parameters():
        if spread and "norm" in name:
            nn.init.normal_(parameter, float(name.endswith("weight")), 0.3)
    return module


def encoder(seed=0, **options):
    return seeded(lambda: Encoder(replace(SMALL, **options)), seed)


# The obvious way -------------------------------------------------------------------------------------


def norm_by_hand(x, module):
    x = (x - x.mean()) / math.sqrt(((x - x.mean()) ** 2).mean() + module.eps)
    if module.weight is not None:
        x = x * module.weight.detach().numpy()
    return x if module.bias is None else x + module.bias.detach().numpy()


def linear_by_hand(x, module):
    y = module.weight.detach().numpy() @ x
    return y if module.bias is None else y + module.bias.detach().numpy()


def attention_by_hand(stream, module, config):
    d = config.width // config.heads
    q, k, v = ([linear_by_hand(x, m) for x in stream] for m in (module.query, module.key, module.value))
    outputs = []
    for t in range(len(stream)):
        seen = range(t + 1 if config.causal else len(stream))
        heads = []
        for head in range(config.heads):
            part = slice(head * d, (head + 1) * d)
            scores = [float(q[t][part] @ k[s][part]) / math.sqrt(d) for s in seen]
            weights = [math.exp(score - max(scores)) for score in scores]
            heads.append(sum(w / sum(weights) * v[s][part] for w, s in zip(weights, seen, strict=True)))
        outputs.append(linear_by_hand(np.concatenate(heads), module.output))
    return outputs


def feedforward_by_hand(stream, module):
    return [linear_by_hand(np.maximum(linear_by_hand(x, module.inner), 0), module.output) for x in stream]


def encode_by_hand(model, ids):
    config = model.config
    tokens, positions = (e.weight.detach().numpy() for e in (model.token_embedding, model.position_embedding))
    stream = [tokens[i] + positions[t] for t, i in enumerate(ids)]
    states = [stream]
    for block in model.blocks:
        for norm, f in (
            (block.attention_norm, lambda xs, b=block: attention_by_hand(xs, b.attention, config)),
            (block.feedforward_norm, lambda xs, b=block: feedforward_by_hand(xs, b.feedforward)),
        ):
            if config.kind == "paper_pre_norm":
                stream = [x + norm_by_hand(y, norm) for x, y in zip(stream, f(stream), strict=True)]
            elif config.kind == "usual_pre_norm":
                branch = f([norm_by_hand(x, norm) for x in stream])
                stream = [x + y for x, y in zip(stream, branch, strict=True)]
            else:
                stream = [norm_by_hand(x + y, norm) for x, y in zip(stream, f(stream), strict=True)]
        states.append(stream)
    if config.final_norm:
        states[-1] = [norm_by_hand(x, model.final_norm) for x in stream]
    return torch.tensor(np.array(states))


@every_kind
@with_and_without_biases
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("norm_gain", [True, False])
def test_equals_the_obvious_code(options, bias, causal, norm_gain):
    model = encoder(bias=bias, causal=causal, norm_gain=norm_gain, **options)
    states = model(IDS, return_states=True)
    assert len(states) == SMALL.layers + 1
    assert states[-1].equal(model(IDS))
    for row, ids in enumerate(IDS):
        wanted = encode_by_hand(model, ids.tolist())
        torch.testing.assert_close(torch.stack([s[row] for s in states]), wanted, rtol=1e-11, atol=1e-11)


# What a token sees -----------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("masked", [True, False])
def test_the_future_changes_nothing(options, masked):
    model = encoder(**options)
    mask = torch.ones_like(IDS) if masked else None
    before = model(IDS, mask)
    for t in range(IDS.shape[1]):
        other = IDS.clone()
        other[:, t:] = (other[:, t:] + 3) % 11
        after = model(other, mask)
        torch.testing.assert_close(after[:, :t], before[:, :t], rtol=0, atol=1e-13)
        assert not torch.isclose(after[:, t], before[:, t]).all(-1).any()
    ids = IDS.clone()
    ids[:, -1] = 6
    assert not torch.allclose(
        encoder(causal=False, **options)(ids)[:, 0], encoder(causal=False, **options)(IDS)[:, 0]
    )


@every_kind
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("left", [0, 1, 4])
def test_padding_changes_nothing_at_real_tokens(options, causal, left):
    model = encoder(causal=causal, **options)
    short = IDS[:, :4]
    wanted = model(short)
    mask = torch.zeros(2, 9, dtype=torch.bool)
    mask[:, left : left + 4] = True
    for filler in (0, 10):
        ids = torch.full((2, 9), filler)
        ids[mask] = short.flatten()
        got = model(ids, mask)
        assert got.isfinite().all()
        torch.testing.assert_close(got[mask].view_as(wanted), wanted, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(model(ids, mask.long()), got, rtol=0, atol=0)
    if causal and left == 0:
        torch.testing.assert_close(model(ids)[:, :4], wanted, rtol=1e-12, atol=1e-12)


def test_a_sequence_of_padding_only_spoils_no_gradient():
    model = encoder()
    mask = torch.ones_like(IDS)
    mask[1] = 0
    model(IDS, mask)[0].sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


# Degrees ---------------------------------------------------------------------------------------------


def slope(function, low, high):
    """Of log‖f(cθ)‖ against log c; and how much the direction turns on the way."""
    one, other = function(low), function(high)
    turn = 1 - torch.cosine_similarity(one.flatten(), other.flatten(), dim=0).item()
    return math.log(other.norm() / one.norm()) / math.log(high / low), turn


def outputs(model, c, **options):
    with scaled_weights(model, c), torch.no_grad():
        return model(IDS, **options)


EXPECTED = {
    # kind, final norm: degree of the encoder with gains, and with norms without parameters
    ("paper_pre_norm", False): (1, 1),
    ("paper_pre_norm", True): (1, 0),
    ("usual_pre_norm", False): (3, 2),
    ("usual_pre_norm", True): (1, 0),
    ("post_norm", False): (1, 0),
}


@every_kind
@with_and_without_biases
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("norm_gain", [True, False])
def test_degrees_are_the_slopes(options, bias, causal, norm_gain):
    config = replace(SMALL, bias=bias, causal=causal, norm_gain=norm_gain, **options)
    degree = EXPECTED[config.kind, config.final_norm][not norm_gain]
    assert config.degree == degree
    # A bias is a term of one degree less: it vanishes like 1/c, all else like 1/c² at the slowest.
    low, high, tolerance = (1e5, 1e7, 1e-4) if bias or not norm_gain else (1e4, 1e6, 1e-7)
    model = seeded(lambda: Encoder(config))
    measured, turn = slope(lambda c: outputs(model, c), low, high)
    assert measured == pytest.approx(degree, abs=tolerance)
    assert turn < tolerance

    for make in (
        lambda: Classifier(config, 5),
        lambda: LanguageModel(config),
        lambda: LanguageModel(config, tied=True, bias=False),
    ):
        whole = seeded(make)
        assert whole.degree == degree + 1
        measured, turn = slope(lambda c, m=whole: outputs(m, c), low, high)
        assert measured == pytest.approx(degree + 1, abs=tolerance)
        assert turn < tolerance


@every_kind
def test_degrees_of_the_states(options):
    model = encoder(bias=False, **options)
    final = model.config.degree
    stream = 3 if options["kind"] == "usual_pre_norm" else 1
    low, high = (outputs(model, c, return_states=True) for c in (1e4, 1e6))
    slopes = [math.log(b.norm() / a.norm()) / math.log(100) for a, b in zip(low, high, strict=True)]
    assert slopes == pytest.approx([1, *[stream] * (SMALL.layers - 1), final], abs=1e-7)


@every_kind
@with_and_without_biases
def test_euler(options, bias):
    """θ·∇s = 2k·s for s = ‖f(cθ)‖², which has degree 2k. (The fused backward cannot do it: see Attention.)"""
    model = encoder(bias=bias, **options)
    with scaled_weights(model, 1e6), sdpa_kernel(SDPBackend.MATH):
        size = model(IDS).square().sum()
        size.backward()
        inner = sum((p * p.grad).sum() for p in model.parameters())
    assert (inner / size).item() == pytest.approx(2 * model.config.degree, rel=1e-4)


def test_the_stream_of_post_norm_vanishes():
    class WithoutStream(PostNormBlock):
        def forward(self, x, visible):
            x = self.attention_norm(self.attention(x, visible))
            return self.feedforward_norm(self.feedforward(x))

    model = encoder(kind="post_norm")
    wanted = {c: outputs(model, c) for c in (1, 1e4)}
    for block in model.blocks:
        block.__class__ = WithoutStream
    assert torch.cosine_similarity(outputs(model, 1), wanted[1], -1).min() < 0.9
    assert torch.cosine_similarity(outputs(model, 1e4), wanted[1e4], -1).min() > 1 - 1e-7


def test_without_norm_parameters_the_papers_branches_vanish():
    model = encoder(norm_gain=False, kind="paper_pre_norm")
    first, *_, last = outputs(model, 1e6, return_states=True)
    assert torch.cosine_similarity(first, last, -1).min() > 1 - 1e-9


@every_kind
def test_biases_of_linear_maps_vanish_and_those_of_norms_stay(options):
    model = encoder(**options)
    wanted = outputs(model, 1e7)
    for name, parameter in model.named_parameters():
        if name.endswith("bias") and "norm" not in name:
            nn.init.zeros_(parameter)
    assert torch.cosine_similarity(outputs(model, 1e7), wanted, -1).min() > 1 - 1e-9
    for name, parameter in model.named_parameters():
        if name.endswith("norm.bias"):
            nn.init.zeros_(parameter)
    assert torch.cosine_similarity(outputs(model, 1e7), wanted, -1).min() < 1 - 1e-3


# Parameters ------------------------------------------------------------------------------------------


def test_the_papers_size():
    """§3: 38M parameters, which are those of the blocks."""
    for bias, wanted in (
        (False, 12 * (4 * 768**2 + 2 * 768 * 512 + 2 * 768)),
        (True, 12 * (4 * 768 * 769 + 769 * 512 + 513 * 768 + 4 * 768)),
    ):
        with torch.device("meta"):
            model = LanguageModel(EncoderConfig(vocabulary=10_000, max_length=83, bias=bias))
        assert sum(p.numel() for p in model.encoder.blocks.parameters()) == wanted
        assert round(wanted / 1e6) == 38
        outside = 10_000 * 768 * 2 + 83 * 768 + 10_000 * bias
        assert sum(p.numel() for p in model.parameters()) == wanted + outside


@every_kind
@with_and_without_biases
@pytest.mark.parametrize("tied", [True, False])
def test_gradients_reach_every_parameter(options, bias, tied):
    model = seeded(lambda: LanguageModel(replace(SMALL, bias=bias, **options), tied=tied))
    logits = model(IDS)
    nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten()).backward()
    for name, parameter in model.named_parameters():
        # A key's bias adds the same to all scores of a query: softmax does not see it.
        assert (parameter.grad.norm() > 1e-6) != name.endswith("key.bias"), name
        assert bias or "bias" not in name


def test_initialization_is_pytorchs_and_seeded():
    def make(seed):
        torch.manual_seed(seed)
        return LanguageModel(EncoderConfig(vocabulary=500, max_length=50, width=256, layers=2, heads=4))

    model, again, other = make(0), make(0), make(1)
    for name, parameter in model.named_parameters():
        assert parameter.equal(again.get_parameter(name))
        if "norm" in name:
            assert (parameter == float(name.endswith("weight"))).all()
            continue
        assert not parameter.equal(other.get_parameter(name))
        if "embedding" in name:
            assert parameter.std().item() == pytest.approx(1, rel=0.02)
        else:
            bound = 1 / math.sqrt(model.get_submodule(name.rpartition(".")[0]).in_features)
            assert 0.95 * bound < parameter.abs().max() <= bound
            assert parameter.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)


def test_roles_can_be_read_from_the_names():
    model = LanguageModel(replace(SMALL, kind="usual_pre_norm", final_norm=True))
    index = {name: Tensor("F32", tuple(p.shape)) for name, p in model.named_parameters()}
    roles = {name: (r.layer, r.role) for name, r in read_names(index).items()}
    assert roles["encoder.token_embedding.weight"] == (None, "embedding")
    assert roles["encoder.position_embedding.weight"] == (None, "position")
    assert roles["encoder.final_norm.weight"] == (None, "norm")
    assert roles["head.weight"] == (None, "head")
    for part in ("query", "key", "value", "output"):
        assert roles[f"encoder.blocks.2.attention.{part}.weight"] == (2, f"attention.{part}")
    assert roles["encoder.blocks.0.feedforward.inner.weight"] == (0, "feedforward")
    assert roles["encoder.blocks.0.feedforward.output.bias"] == (0, "feedforward")
    assert roles["encoder.blocks.1.attention_norm.weight"] == (1, "norm")
    assert roles["encoder.blocks.1.feedforward_norm.bias"] == (1, "norm")


def test_heads():
    tied = LanguageModel(SMALL, tied=True)
    assert tied.head.weight is tied.encoder.token_embedding.weight
    logits, states = tied(IDS, return_states=True)
    assert logits.shape == (2, 7, 11)
    torch.testing.assert_close(logits, tied.head(states[-1]))
    assert Classifier(SMALL, 2)(IDS).shape == (2, 7, 2)
    assert Classifier(replace(SMALL, bias=False), 2).head.bias is None
    assert Classifier(SMALL, 2, bias=False).head.bias is None


def test_every_kind_has_its_block():
    assert set(BLOCKS) == {options["kind"] for options in KINDS}
    assert len(set(BLOCKS.values())) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(kind="pre_norm"), "kind must be one of paper_pre_norm, usual_pre_norm, post"),
        (dict(heads=5), "width 12 is not divisible by 5 heads"),
        (dict(layers=0), "layers must be at least 1"),
        (dict(kind="post_norm", final_norm=True), "post_norm ends with a norm"),
        (dict(eps=-1.0), "eps"),
    ],
)
def test_configurations_that_make_no_sense(options, message):
    with pytest.raises(InputError, match=message):
        replace(SMALL, **options)


def test_inputs_that_make_no_sense():
    with pytest.raises(InputError, match="input has 10 tokens, but max_length is 9"):
        Encoder(SMALL)(torch.zeros(1, 10, dtype=torch.long))
    with pytest.raises(InputError, match=r"mask has shape \(2, 3\)"):
        Encoder(SMALL)(IDS, torch.ones(2, 3))


# The mask of the authors' code -----------------------------------------------------------------------


@every_kind
def test_a_true_mask_hides_the_future_and_the_leaking_one_does_not(options):
    changed = IDS.clone()
    changed[:, 4] = (changed[:, 4] + 1) % SMALL.vocabulary
    true, leaking = encoder(**options), encoder(**options, leaking=True)
    assert torch.equal(true(IDS)[:, :4], true(changed)[:, :4])
    assert not torch.equal(true(IDS)[:, 4], true(changed)[:, 4])
    apart = (leaking(IDS)[:, :4] - leaking(changed)[:, :4]).norm(dim=-1)
    assert bool((apart > 1e-6).all())


def test_the_leaking_mask_by_hand():
    config = replace(SMALL, leaking=True)
    attention = encoder(leaking=True).blocks[0].attention
    x = torch.randn(5, config.width, dtype=torch.float64)
    d, stream = config.width // config.heads, list(x.numpy())
    q, k, v = (
        [linear_by_hand(y, m) for y in stream] for m in (attention.query, attention.key, attention.value)
    )
    rows = []
    for t in range(5):
        heads = []
        for head in range(config.heads):
            part = slice(head * d, (head + 1) * d)
            scores = [float(q[t][part] @ k[s][part]) / math.sqrt(d) if s <= t else 0.0 for s in range(5)]
            weights = np.exp(scores) / np.exp(scores).sum()
            heads.append(sum(w * v[s][part] for s, w in enumerate(weights)))
        rows.append(linear_by_hand(np.concatenate(heads), attention.output))
    np.testing.assert_allclose(attention(x[None], None)[0].detach().numpy(), rows, atol=1e-12)


def test_padding_is_hidden_from_the_leaking_mask():
    model = encoder(leaking=True)
    mask = torch.tensor([[True] * 7, [True] * 5 + [False] * 2])
    alone = model(IDS[1:, :5])
    torch.testing.assert_close(model(IDS, mask)[1:, :5], alone, rtol=0, atol=1e-12)


def test_a_leaking_mask_must_be_causal():
    with pytest.raises(InputError, match="leaking=True is a variant of the causal mask"):
        replace(SMALL, causal=False, leaking=True)
