"""Ties: what decides them, at moderate c where float64 can still tell; and how near is near."""

import copy
from fractions import Fraction
from typing import NamedTuple

import pytest
import torch
from limit.architectures import Double
from limit.census import default_dtype
from limit.growing import limit
from torch import nn

from normgrowth.limit import Series, Term
from normgrowth.limit.dispatch import LimitMode
from normgrowth.limit.pass_log import Context
from normgrowth.limit.saturated import saturated

transformers = pytest.importorskip("transformers")
IDS = torch.tensor([[5, 7, 5, 5, 9, 7, 3, 5]])  # tokens that come again


def t5():
    config = transformers.T5Config(num_layers=1, d_model=16, d_kv=4, num_heads=2, d_ff=32, vocab_size=20)
    return transformers.T5EncoderModel(config)


def bloom():
    return transformers.BloomModel(
        transformers.BloomConfig(n_layer=1, hidden_size=16, n_head=2, vocab_size=20)
    )


class Attentions(NamedTuple):
    attentions: tuple


class Fixed(nn.Module):
    """Sinusoidal positions that no parameter scales: among equal tokens an order below the leading one decides."""

    def __init__(self):
        super().__init__()
        self.tokens, self.q, self.k = nn.Embedding(20, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        angles = torch.arange(8.0)[:, None] / 100 ** (torch.arange(8) / 8)
        self.register_buffer("positions", torch.cat([angles.sin(), angles.cos()], -1))

    def set_attn_implementation(self, _):
        pass

    def forward(self, ids, output_attentions=True):
        x = self.tokens(ids) + self.positions
        return Attentions((torch.softmax(self.q(x) @ self.k(x).transpose(-1, -2), -1),))


def built(make):
    torch.manual_seed(0)
    model = make().eval().double()
    model.set_attn_implementation("eager")
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) / parameter.shape[-1] ** 0.5
    return model


@pytest.mark.parametrize("make", [t5, bloom, Fixed])
def test_attention_patterns_of_equal_tokens(make):
    """T5: the relative bias decides. BLOOM: ALiBi, of degree 0, weighs. Fixed positions: an order below."""
    model = built(make)
    run = saturated(model)
    hard = run(IDS, output_attentions=True).attentions
    assert sum(tie.tied for tie in run.ties)
    assert run.undecided == 0, "the orders carried are enough"
    distances = []
    for c in (3.0, 10.0, 30.0, 100.0):
        scaled = copy.deepcopy(model)
        for parameter in scaled.parameters():
            parameter.data *= c
        with torch.no_grad():
            soft = scaled(IDS, output_attentions=True).attentions
        distances.append(max(float((h - s).abs().max()) for h, s in zip(hard, soft, strict=True)))
    assert min(distances) < 1e-3, distances


def test_the_orders_that_a_network_needed_are_remembered():
    """The first call takes a pass with one order and one with three, the second call begins with three."""
    model = built(Fixed)
    run, passes = saturated(model), []
    model.register_forward_pre_hook(lambda *_: passes.append(run))
    first = run(IDS).attentions[0]
    assert (len(passes), run.used_orders) == (2, 3)
    assert torch.equal(run(IDS).attentions[0], first)
    assert len(passes) == 3


def shares(x, **options):
    context = Context(**options)
    return limit(lambda x: torch.softmax(x, -1), x, context=context).top.value, context.ties


def test_near_ties_are_counted():
    """Scores of float32 that differ by rounding tie if their keys do so in every row; else the larger wins."""
    eps = torch.finfo(torch.float32).eps
    close = [[1.0, 1.0 - 4 * eps, 0.5], [2.0, 2.0 - 100 * eps, 0.5], [3.0, 3.0, 0]]
    found, ties = shares({2: torch.tensor(close)})
    assert found.tolist() == [[0.5, 0.5, 0]] * 3
    assert (ties[0].rows, ties[0].tied, ties[0].near, ties[0].uniform) == (3, 3, 2, 3)
    found, ties = shares({2: torch.tensor([*close, [1.0, 0.9, 0.5]])})
    assert found.tolist() == [[1, 0, 0], [1, 0, 0], [0.5, 0.5, 0], [1, 0, 0]], "these keys are not equal"
    assert (ties[0].rows, ties[0].tied, ties[0].near, ties[0].uniform) == (4, 1, 2, 1)
    alone = torch.tensor([[1.0, 1.0 - 4 * eps, 0.5]]), torch.tensor([[1.0, 1.0 - 100 * eps, 0.5]])
    assert [shares({2: x})[0].tolist() for x in alone] == [[[0.5, 0.5, 0]], [[1, 0, 0]]], (
        "no other row to ask"
    )
    found, ties = shares({2: torch.tensor([[1.0, 1.0 - 4 * eps]])}, tolerance=0)
    assert found.tolist() == [[1, 0]]
    assert not ties


def test_in_sixteen_bits_a_tie_is_equality():
    """One unit of bfloat16 is nearly a hundredth: a tolerance of some would tie keys that differ."""
    near = torch.tensor([[1.0, 1.0 - 2**-8, 0.5]], dtype=torch.bfloat16)
    assert shares({2: near})[0].tolist() == [[1, 0, 0]]
    assert shares({2: near.new_tensor([[1.0, 1.0, 0.5]])})[0].tolist() == [[0.5, 0.5, 0]]


def test_identical_keys_tie_at_real_size_and_others_do_not():
    """Head dimension 64, some 500 keys of 40 kinds, float32."""
    torch.manual_seed(0)
    kinds = torch.randint(0, 40, (507,))
    q, k = torch.randn(300, 64), torch.randn(40, 64)[kinds]
    found, _ = shares({2: q @ k.T})
    winners = (q.double() @ k.double().T).argmax(-1)
    expected = (kinds == kinds[winners][:, None]).float()
    assert torch.allclose(found, expected / expected.sum(-1, keepdim=True))


def test_a_tie_that_an_order_left_out_might_decide_is_in_doubt():
    from fractions import Fraction

    from normgrowth.limit import Series, Term
    from normgrowth.limit.dispatch import Operation
    from normgrowth.limit.rules.attention.softmax import distribution

    def run(rest):
        context = Context()
        x = Series((Term(Fraction(3), torch.tensor([[1.0, 1.0]]), 0),), rest)
        return distribution(Operation(torch.ops.aten._softmax.default, context), x, -1).doubt

    assert run(Fraction(2))
    assert run(Fraction(0))
    assert not run(Fraction(-1))  # nothing of negative degree moves a softmax
    assert not run(None)


def test_the_norm_of_a_zero_vector_is_zero():
    x = {3: torch.tensor([[1.0, -1.0, 2.0], [0.0, 0.0, 0.0]])}
    for f in (torch.nn.functional.layer_norm, torch.nn.functional.rms_norm):
        found = limit(lambda x, f=f: f(x, (3,), eps=1e-6), x)
        assert found.terms[0].degree == 0
        assert found.terms[0].value[1].tolist() == [0, 0, 0]
        assert found.terms[0].value.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_keys_whose_scores_are_small_by_accident(dtype, own_random_numbers):
    """Queries orthogonal to the keys, all but 1e-6: rounding of the products parts scores that are equal."""
    key = torch.randn(64, dtype=dtype)
    keys = (key * (1 + 4 * torch.finfo(dtype).eps * torch.randn(6, 64, dtype=dtype)))[None]
    query = torch.randn(64, dtype=dtype)
    query = query - (1 - 1e-6) * key * (query @ key) / (key @ key)
    queries = query.expand(1, 6, 64).clone()
    levels = torch.linspace(0, 2.5, 6, dtype=dtype)
    for scores in (
        lambda q, k: torch.bmm(q, k.mT) * 0.125 + levels,
        lambda q, k: torch.baddbmm(levels.expand(1, 6, 6), q, k.mT, alpha=0.125),
        lambda q, k: (torch.matmul(q[:, None], k[:, None].mT) / 8 + levels)[:, 0],
    ):
        found = limit(lambda q, k, f=scores: torch.softmax(f(q, k), -1), {1: queries}, {1: keys})
        assert torch.allclose(found.top.value, torch.softmax(levels, -1).expand(1, 6, 6), atol=1e-6)


def test_bloom_with_one_token_repeated(own_random_numbers):
    """Its keys are equal, and ALiBi weighs them; with every c the scaled network in float64 does so."""
    config = transformers.BloomConfig(hidden_size=128, n_layer=2, n_head=8, vocab_size=99)
    torch.manual_seed(4)
    model = transformers.BloomModel._from_config(config, attn_implementation="eager").eval()
    token = int(torch.randint(3, 99, (1, 6))[0, 0])
    given = dict(input_ids=torch.full((1, 6), token), output_attentions=True, use_cache=False)
    limit_ = saturated(model)
    found = limit_(**given).attentions
    scaled = copy.deepcopy(model).double()
    with torch.no_grad(), Double():
        for parameter in scaled.parameters():
            parameter.mul_(300)
        expected = scaled(**given).attentions
    for shares, reference in zip(found, expected, strict=True):
        assert torch.allclose(shares.double(), reference, atol=1e-5)
    assert not limit_.doubtful


@pytest.mark.parametrize(("second", "undecided"), [(-3.0, 0), (-2.0, 1)])
def test_scores_that_are_masked_by_a_product_have_no_lower_orders(second, undecided):
    """w · b + m · (1 - b), as GPT has it: where all that is seen is negative, what is hidden ties at exactly 0."""
    scores = torch.tensor([[-1.0, 5.0, 5.0], [-2.0, second, 5.0], [4.0, 1.0, 2.0]]).double()
    b = torch.ones(3, 3).double().tril()
    if undecided:  # two equal scores that are seen, and larger than what is hidden
        scores[1] = torch.tensor([2.0, 2.0, 5.0])
    context = Context(1)
    mode = LimitMode(context, object())
    with torch.no_grad(), mode:
        w = mode.attach(Series((Term(Fraction(2), scores, 1),), Fraction(1)))
        shares = torch.softmax(w * b - 1e4 * (1 - b), -1)
    first = [0.0, 0.5, 0.5]
    assert mode.lift(shares).top.value.tolist() == [
        first,
        [0.5, 0.5, 0.0] if undecided else [0.0, 0.0, 1.0],
        [1.0, 0.0, 0.0],
    ]
    assert sum(tie.tied for tie in context.ties) == 1 + undecided
    assert sum(tie.undecided for tie in context.ties) == undecided


class Undecided(nn.Module):
    """Attention from which an order is left out that breaks the tie, above a bias that breaks it otherwise."""

    def __init__(self, use):
        super().__init__()
        self.token = nn.Parameter(torch.randn(4))
        self.positions = nn.Parameter(torch.tensor([[0.0, 0, 0, 0], [1, 2, -1, 0.5], [-2, 1, 1, 1]]))
        self.w, self.q, self.k = (nn.Linear(4, 4, bias=False) for _ in range(3))
        self.out = nn.Linear(3, 4)
        self.bias = nn.Parameter(torch.tensor([0.0, -3.0, -1.0]))
        self.use = use

    def forward(self, x):
        states = self.w(self.token * x[:, :1]) + self.positions  # equal up to the positions, which are lower
        weights = torch.softmax(self.q(x) @ self.k(states).T + self.bias, -1)
        return self.use(self, weights)


USES = {
    "argmax": lambda model, p: torch.tensor([1.0, 2.0, 4.0])[p.argmax(-1)] * model.token[0],
    "comparison": lambda model, p: (p > 0.5) * model.token[0],
    "square": lambda model, p: p**2,
    "root": lambda model, p: p.sqrt(),
    "quotient": lambda model, p: p / p.sum(-1, keepdim=True),
    "gelu": lambda model, p: torch.nn.functional.gelu(p),
    "logarithm": lambda model, p: (p + 1).log(),
    "softmax": lambda model, p: p.softmax(-1),
    "norm": lambda model, p: torch.nn.functional.layer_norm(p, (3,)),
    "convolution": lambda model, p: torch.nn.functional.conv1d(p[:, None], torch.full((1, 1, 1), 2.0)),
    "top two": lambda model, p: (torch.tensor([1.0, 2.0, 4.0])[p.topk(2).indices] * p.topk(2).values).sum(-1),
    "product with a parameter": lambda model, p: p @ model.out.weight.T,
    "linear layer": lambda model, p: model.out(p),
    "sum of products": lambda model, p: (p[:, :, None] * model.out.weight.T).sum(1),
    "interpolation": lambda model, p: torch.lerp(model.token[:3].expand(3, 3), model.out.weight[:3], p),
    "copied words": lambda model, p: torch.log(
        torch.zeros(3, 5).scatter_add(1, torch.tensor([[4, 1, 2]] * 3), p) + 1
    ),
}


@pytest.mark.parametrize("use", USES)
def test_what_is_computed_from_a_tie_that_an_omitted_order_breaks(use):
    torch.manual_seed(0)
    with default_dtype(torch.float64):
        model = Undecided(USES[use])
        x = torch.randn(3, 4)
        x[:, 0] = 1.0
        run = saturated(model)
        found = run(x)
        once = saturated(model, orders=1)
        once(x)
        distances = []
        for c in (10.0, 30.0, 100.0, 1000.0):
            scaled = copy.deepcopy(model)
            for parameter in scaled.parameters():
                parameter.data *= c
            with torch.no_grad():
                there = scaled(x) / c ** float(run.output_degrees)
            distances.append(float((there - found).norm() / found.norm()))
    assert once.doubtful
    assert not run.doubtful
    assert min(distances) < 1e-3, distances


def test_sums_of_the_same_numbers_in_another_order_tie_although_the_keys_differ():
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.queries = nn.Parameter(torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]).double())

        def forward(self, keys: torch.Tensor) -> torch.Tensor:
            return (self.queries @ keys.T).softmax(-1)

    keys = torch.tensor([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]], dtype=torch.float64)
    assert float(keys[0].sum()) != float(keys[1].sum())  # by rounding only
    limit = saturated(Head())
    assert limit(keys).tolist() == [[0.5, 0.5], [0.0, 1.0]]
    assert limit.ties[0].tied == 1
