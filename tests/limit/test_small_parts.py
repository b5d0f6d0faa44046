"""Exponentially small parts: of every function that saturates, through other functions, in ratios and logarithms."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from limit.test_ranking import limit
from torch import Tensor, nn

from normgrowth.limit.saturated import saturated

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_numbers")
VALUES = torch.tensor([-3.0, -0.5, -2.5, -1.0, -1.5, -2.0], dtype=torch.float64)

RISING = {
    "log sigmoid": F.logsigmoid,
    "elu": F.elu,
    "a sigmoid of tanh": lambda x: torch.sigmoid(torch.tanh(x)),
    "an exponential of tanh": lambda x: torch.exp(torch.tanh(x)),
    "expm1 of tanh": lambda x: torch.expm1(torch.tanh(x)),
    "softplus of sigmoid": lambda x: F.softplus(torch.sigmoid(x)),
    "square of a sigmoid": lambda x: torch.sigmoid(x) ** 2,
}


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", RISING)
def test_functions_keep_the_order_of_their_arguments(name, sign):
    values = VALUES * sign
    assert limit(lambda x: torch.sort(1 / (1 + torch.exp(-x.abs()))).indices, {1: values})[0].tolist() == (
        values.abs().argsort().tolist()
    )
    found, context, _ = limit(lambda x: torch.sort(RISING[name](x)).indices, {1: values})
    assert found.tolist() == values.argsort().tolist()
    assert not context.unranked


def test_silu_of_negative_values_rises_towards_zero():
    found, context, _ = limit(lambda x: torch.sort(F.silu(x)).indices, {1: VALUES})
    assert found.tolist() == VALUES.argsort(descending=True).tolist()
    assert not context.unranked


OPEN = {
    "gelu": F.gelu,
    "mish": F.mish,
    "erf": torch.erf,
    "logaddexp": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "softplus of another slope": lambda x: F.softplus(x, beta=2),
    "a softmax of tanh": lambda x: torch.softmax(torch.tanh(x), -1),
    "a mean": lambda x: torch.sigmoid(x).view(3, 2).mean(-1),
    "one over one plus what grows": lambda x: 1 / (1 + torch.exp(-x)),
    "rectified": lambda x: torch.relu(F.gelu(x)),
}


@pytest.mark.parametrize("name", OPEN)
def test_a_tie_of_which_the_small_parts_are_unknown_is_counted(name):
    sign = 1 if name == "erf" else -1
    found, context, _ = limit(lambda x: torch.topk(OPEN[name](x), 2).indices, {1: VALUES.abs() * sign})
    assert len(found) == 2
    assert context.unranked > 0


class Apply(nn.Module):
    """A function of three linear maps."""

    def __init__(self, function):
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(6, 6, bias=False, dtype=torch.float64) for _ in range(3))
        self.function = function

    def forward(self, x):
        return self.function(*(f(x) for f in self.maps))


def normalized(weights):
    return weights / weights.sum(-1, keepdim=True)


SEEN = torch.tensor([True, False, True, True, False, True])
EQUAL = {  # functions that are equal for every c; the second has no value that vanishes
    "log sigmoids": (
        lambda x, *_: normalized(F.logsigmoid(x.abs())),
        lambda x, *_: torch.softmax(-x.abs(), -1),
    ),
    "elu": (lambda x, *_: normalized(F.elu(-x.abs()) + 1), lambda x, *_: torch.softmax(-x.abs(), -1)),
    "one minus tanh": (
        lambda x, *_: normalized(1 - x.abs().tanh()),
        lambda x, *_: torch.softmax(-x.abs(), -1),
    ),
    "exponentials": (
        lambda x, *_: normalized(torch.exp(-x.abs())),
        lambda x, *_: torch.softmax(-x.abs(), -1),
    ),
    "a masked softmax": (
        lambda x, *_: normalized(torch.softmax(x, -1) * SEEN),
        lambda x, *_: torch.softmax(x.masked_fill(~SEEN, -math.inf), -1),
    ),
    "its root": (
        lambda x, *_: normalized(torch.softmax(x, -1).sqrt() * SEEN),
        lambda x, *_: torch.softmax(x.masked_fill(~SEEN, -math.inf), -1),
    ),
    "silu over sigmoid": (lambda x, *_: F.silu(-x.abs()) / torch.sigmoid(-x.abs()), lambda x, *_: -x.abs()),
    "values over gates": (
        lambda x, y, _: (torch.sigmoid(-x.abs()) * y).sum(-1) / torch.sigmoid(-x.abs()).sum(-1),
        lambda x, y, _: y.gather(-1, x.abs().argmin(-1, keepdim=True)).squeeze(-1),
    ),
    "products over gates": (
        lambda x, y, z: (torch.sigmoid(-x.abs()) * y * z).sum(-1) / torch.sigmoid(-x.abs()).sum(-1),
        lambda x, y, z: (y * z).gather(-1, x.abs().argmin(-1, keepdim=True)).squeeze(-1),
    ),
    "log odds": (lambda x, *_: torch.logit(torch.sigmoid(x)), lambda x, *_: x),
    "log of the rest": (lambda x, *_: torch.log1p(-torch.sigmoid(x.abs())), lambda x, *_: -x.abs()),
    "log of a sum": (lambda x, *_: torch.sigmoid(-x.abs()).sum(-1).log(), lambda x, *_: -x.abs().amin(-1)),
    "log of a gated value": (
        lambda x, y, _: (y.abs() * torch.sigmoid(-x.abs())).log(),
        lambda x, *_: -x.abs(),
    ),
}


@pytest.mark.parametrize("name", EQUAL)
def test_ratios_and_logarithms_of_values_that_all_vanish(name):
    first, second = EQUAL[name]
    model, x = Apply(first), torch.randn(4, 6, dtype=torch.float64)
    limit_ = saturated(model)
    found = limit_(x)
    model.function = second
    other = saturated(model)
    assert torch.allclose(found, other(x), rtol=1e-9, atol=1e-12)
    assert limit_.output_degrees == other.output_degrees
    assert not limit_.doubtful


def test_a_gated_sum_whose_gates_tie_in_the_leading_order():
    """Gates of equal leading terms: an order that was left out decides, so more orders are computed."""

    class Gates(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = (nn.Linear(4, 4, dtype=torch.float64) for _ in range(2))
            with torch.no_grad():
                self.outer.weight[1:] = self.outer.weight[0]
                self.outer.bias.copy_(torch.tensor([0.3, 1.0, -0.2, 0.5]))

        def forward(self, x):
            scores = self.outer(self.inner(x))
            return normalized(torch.sigmoid(-scores.abs()))

    model, x = Gates(), torch.randn(3, 4, dtype=torch.float64)
    limit_ = saturated(model)
    found = limit_(x)
    sign = torch.sign(model.inner(x) @ model.outer.weight[0]).detach()
    first = (-sign[:, None] * model.outer.bias).argmax(-1)
    assert limit_.doubtful or found.argmax(-1).tolist() == first.tolist()


def test_division_by_what_may_not_be_zero_is_counted():
    """The weights of keys that gelu cuts off: their sum vanishes, and nothing is known of their ratio."""
    limit_ = saturated(Apply(lambda x, *_: normalized(F.gelu(-x.abs()))))
    limit_(torch.randn(4, 6, dtype=torch.float64))
    assert limit_.doubtful


def test_rows_of_fused_attention_may_differ_by_a_small_part():
    """Queries that attend to the same key have equal outputs in the limit, not for finite c."""

    def largest(q, k, v):
        return (
            F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None]).squeeze(1).topk(1, -2).indices
        )

    model = Apply(largest)
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    x[:, 2] = x[:, 1] * 2  # the same direction: the same key
    limit_ = saturated(model)
    limit_(x)
    assert limit_.doubtful


def test_functions_without_a_limit_at_an_edge_are_refused():
    from normgrowth.errors import UnsupportedOperation

    for function in (torch.atanh, torch.erfinv):
        with pytest.raises(UnsupportedOperation):
            saturated(Apply(lambda x, *_, f=function: f(torch.tanh(x))))(
                torch.ones(1, 6, dtype=torch.float64)
            )


SUMS = {
    "sum": lambda pair: pair.sum(0),
    "mean": lambda pair: pair.mean(0),
    "running sum": lambda pair: pair.cumsum(0)[1],
    "pool": lambda pair: F.avg_pool1d(pair.permute(1, 2, 0), 2).squeeze(-1),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_whose_leading_terms_cancel_takes_the_next_order(name):
    """W x + a and -W x + b: the biases remain."""

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (nn.Linear(3, 3, dtype=torch.float64) for _ in range(2))

        def forward(self, x):
            weight = self.second.weight @ self.first.weight
            return SUMS[name](
                torch.stack([F.linear(x, weight, self.first.bias), F.linear(-x, weight, self.second.bias)])
            )

    model, x = Pair(), torch.randn(2, 3, dtype=torch.float64)
    limit_ = saturated(model)
    found = limit_(x)
    expected = (model.first.bias + model.second.bias).detach().expand(2, 3) * (
        0.5 if name in ("mean", "pool") else 1
    )
    assert limit_.output_degrees == 1
    assert torch.allclose(found, expected)


def test_instance_norm_in_evaluation_mode():
    model = (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.Conv2d(4, 2, 3))
        .double()
        .eval()
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
        x = torch.randn(2, 3, 7, 7, dtype=torch.float64)
        found = saturated(model)(x)
        for parameter in model.parameters():
            parameter.mul_(1e6)
        assert torch.allclose(found, model(x) / 1e12, rtol=1e-4, atol=1e-4)


def test_rows_of_equal_values_have_no_spread():
    limit_ = saturated(Apply(lambda x, *_: x[:, :1].expand(-1, 7).std(-1)))
    assert not limit_(torch.randn(4, 6, dtype=torch.float64)).any()


@pytest.mark.parametrize("norm", ["layer_norm", "std"])
def test_rows_that_are_all_constant_at_the_leading_order_take_the_next(norm):
    """Every row of W x is constant at the leading order, and the bias below it is left out at first."""

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.shift = nn.Parameter(torch.tensor([1.0, -2.0, 3.0, 0.0], dtype=torch.float64))
            self.linear = nn.Linear(4, 4, dtype=torch.float64)
            with torch.no_grad():
                self.linear.weight.copy_(torch.ones(4, 4))

        def forward(self, x):
            x = x * self.shift
            x = self.linear(x) + x
            return F.layer_norm(x, (4,)) if norm == "layer_norm" else x.std(-1)

    model, x = Network(), torch.randint(-3, 4, (3, 4)).double()
    limit_ = saturated(model)
    found = limit_(x)
    with torch.no_grad():
        below = x * model.shift + model.linear.bias
        wanted = F.layer_norm(below, (4,), eps=0) if norm == "layer_norm" else below.std(-1)
    assert (limit_.used_orders, limit_.doubtful) == (3, 0)
    assert limit_.output_degrees == (0 if norm == "layer_norm" else 1)
    assert torch.allclose(found, wanted)


LEVELS = torch.tensor([0.0, -0.5, -1.0]).double()  # differences that do not grow
WEIGHTS = torch.tensor([1.0, 3.0, 0.1]).double()


def leveled(a: Tensor) -> Tensor:
    """Scores of equal growth, and of different constants; all go to minus infinity."""
    return -a[:, :1].abs() + LEVELS


def shared(values: Tensor) -> Tensor:
    return values / values.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (lambda a: shared(torch.sigmoid(leveled(a))), torch.softmax(LEVELS, -1)),
        (lambda a: shared(torch.exp(leveled(a))), torch.softmax(LEVELS, -1)),
        (lambda a: shared(torch.exp(leveled(a)) + torch.exp(leveled(a).flip(-1))), None),
        (lambda a: torch.sigmoid(leveled(a)).sum(-1).log() + a[:, 0].abs(), torch.logsumexp(LEVELS, -1)),
        (lambda a: (WEIGHTS * torch.sigmoid(leveled(a))).argmax(-1) * a.abs().amax(-1), None),
    ],
    ids=["sigmoids", "exponentials", "sums of two", "logarithm of a sum", "ranking"],
)
def test_vanishing_values_of_equal_growth_and_different_constants(f, expected):
    torch.manual_seed(0)
    model = Growing(f)
    x = torch.randn(3, 4).double()
    limit = saturated(model)
    found = limit(x)
    assert limit.doubtful == 0
    errors = []
    for c in (30.0, 100.0, 300.0, 1000.0):
        scaled = copy.deepcopy(model)
        with torch.no_grad():
            scaled.layer.weight.mul_(c)
            errors.append(float((scaled(x) / c ** float(limit.output_degrees) - found).norm()))
    assert any(error < 1e-6 for error in errors), errors
    assert expected is None or torch.allclose(found, expected.expand_as(found))


@pytest.mark.parametrize(
    "f",
    [
        lambda a: torch.exp(-a.abs()) + torch.sigmoid(a.abs()),
        lambda a: (
            2 * torch.sigmoid(a.abs()) * (1 - torch.sigmoid(a.abs())) - 2 * (1 - torch.sigmoid(a.abs()))
        ),
    ],
    ids=["sum", "product"],
)
def test_the_order_of_values_whose_small_parts_cancel_is_undecided(f):
    limit = saturated(Growing(lambda a: f(a).argmax(-1) * a.abs().amax(-1)))
    limit(torch.randn(3, 4).double())
    assert limit.doubtful > 0


@pytest.mark.parametrize(
    "f",
    [
        lambda a: (
            (torch.softmax(a, -1) * SEEN[:3]).sum(),
            torch.sigmoid(4 * a[0]),
        ),  # 1 - exp(-2c), 1 - exp(-4c)
        lambda a: (1 - torch.exp(-a[0]), torch.sigmoid(a[0])),  # differ by exp(-2c)
        lambda a: (2 - torch.exp(-a[0]) - torch.sigmoid(a[0]), torch.sigmoid(a[0])),
    ],
    ids=["a sum beside 1", "equal parts", "opposite parts"],
)
def test_values_whose_known_small_parts_are_equal_or_cancel_are_undecided(f):
    """The second value is the larger one, by a part that decays faster than those that are known."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = nn.Parameter(torch.tensor([1.0, -1.0, 0.0]).double())

        def forward(self, _: Tensor) -> Tensor:
            return torch.stack(f(self.scores)).argmax() * self.scores

    limit = saturated(Model())
    found = limit(torch.ones(1))
    assert limit.doubtful or torch.equal(found, torch.tensor([1.0, -1.0, 0.0]).double())


class Function(nn.Module):
    def __init__(self, f, values: Tensor) -> None:
        super().__init__()
        self.values, self.f = nn.Parameter(values), f

    def forward(self) -> Tensor:
        return self.f(self.values)


def vanishing(a: Tensor) -> Tensor:
    return torch.exp(-a)


SAME = torch.ones(3).double()
AFTER_A_POWER = {  # (x + w)^p - x^p = p x^(p-1) w: the power of c in it decides
    "root": lambda a: (a + vanishing(a)).sqrt() - a.sqrt() < 0.3 * vanishing(a),
    "inverse root": lambda a: (a + vanishing(a)).rsqrt() - a.rsqrt() > -0.1 * vanishing(a),
    "cube": lambda a: (a + vanishing(a)).pow(3) - a.pow(3) > 10 * vanishing(a),
    "ratio": lambda a: vanishing(a) / a < 0.5 * vanishing(a),
    "ratio of a sum": lambda a: (1 + vanishing(a)) / a < 1 / a + 0.5 * vanishing(a),
}


@pytest.mark.parametrize("name", AFTER_A_POWER)
def test_small_parts_are_multiplied_by_the_power_of_c_beside_them(name):
    model = Function(lambda a: AFTER_A_POWER[name](a).double(), SAME.clone())
    limit = saturated(model)
    assert limit().all()
    assert limit.doubtful == 0
    with torch.no_grad():
        model.values.fill_(20.0)  # large, and exp(-20) is far above rounding
        assert model().all()


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_the_small_part_of_a_divisor_decides_the_order(share):
    def order(a: Tensor) -> Tensor:
        return ((2 + share * vanishing(a)) / (1 + WEIGHTS * vanishing(a))).sort().indices * a.abs()

    model = Function(order, SAME.clone())
    limit = saturated(model)
    found = limit()
    assert (limit.doubtful, found.tolist()) == (0, WEIGHTS.argsort(descending=True).tolist())
    with torch.no_grad():
        model.values.fill_(10.0)
        assert torch.equal(model() / 10, found)


def test_a_ratio_of_vanishing_values_of_which_a_lower_order_decides_is_undecided():
    """(w (c + v)) / (w c) = 1 + v / c."""
    model = Function(lambda a: (vanishing(a) * (a + WEIGHTS) / (vanishing(a) * a)).sort().indices, SAME * 2)
    limit = saturated(model)
    found = limit()
    assert limit.doubtful or torch.equal(found, WEIGHTS.argsort())


def test_log_softmax_adds_small_parts_to_those_of_its_scores():
    """The second logarithm is exp(-c) - 2c - exp(-c/2) + ..., so it is below -2c."""

    def above(a: Tensor) -> Tensor:
        return ((-F.logsigmoid(-a)).log_softmax(-1)[1] > -a[0]).double()

    model = Function(above, torch.tensor([2.0, -1.0, 1.5]).double())
    limit = saturated(model)
    found = limit()
    assert limit.doubtful or not bool(found)
    with torch.no_grad():
        model.values.mul_(8)
        assert not bool(model())


class Growing(nn.Module):
    def __init__(self, f) -> None:
        super().__init__()
        self.layer, self.f = nn.Linear(4, 4, bias=False).double(), f

    def forward(self, x: Tensor) -> Tensor:
        return self.f(self.layer(x))


def test_more_orders_do_not_hide_that_a_parameter_vanishes():
    """The bias is a lower term of the scores, of which the leading term decides the ratio of what vanishes."""

    def ratio(layers: nn.Sequential, x: Tensor) -> Tensor:
        return shared(torch.sigmoid(-layers(x).abs())) * x

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4)).double()

        def forward(self, x: Tensor) -> Tensor:
            return ratio(self.layers, x)

    model, x = Model(), torch.randn(3, 4).double()
    for orders in (None, 1, 3):
        limit = saturated(model, orders=orders)
        limit(x)
        assert limit.vanished == ["layers.1.bias"]
