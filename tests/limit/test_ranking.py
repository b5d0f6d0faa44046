"""How values rank that are equal in the limit; ratios and logarithms of values that vanish."""

from fractions import Fraction

import mpmath
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from limit.census import examine
from limit.growing import hung
from limit.text_models import Setting
from torch import nn

from normgrowth.limit import Series, Term
from normgrowth.limit.dispatch import LimitMode
from normgrowth.limit.pass_log import Context
from normgrowth.limit.saturated import saturated

pytestmark = pytest.mark.usefixtures("one_thread")
ROUTERS = [
    "axk2",
    "beam",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v4",
    "dots1",
    "exaone_moe",
    "flint",
    "glm4_moe",
    "glm4_moe_lite",
    "glm4v_moe_text",
    "glm_moe_dsa",
    "hy_v3",
    "hy_v4",
    "laguna",
    "mimo_v2_flash",
    "minimax_m2",
    "mistral_large4_text",
    "muse_spark_text",
    "phimoe",
    "solar_open",
    "step3p5",
]
VALUES = [-3.0, -2.5, -1.0, -0.5, 0.5, 0.75, 1.5, 2.0, 2.5, 3.0]


def limit(f, *inputs):
    """f in the limit with exponentially small parts, and the context; inputs are {degree: tensor} or plain."""
    context = Context(1, exponentials=True)
    mode = LimitMode(context, object())
    with torch.no_grad(), mode:
        result = f(*(hung(mode, x) if isinstance(x, dict) else x for x in inputs))
    return result, context, mode


def distinct(count):
    return st.permutations(VALUES).map(lambda v: torch.tensor(v[:count], dtype=torch.float64))


SQUASHED = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softmax": lambda x: torch.softmax(x, -1),
    "softplus": F.softplus,
    "root of softplus": lambda x: F.softplus(x).sqrt(),
}


@pytest.mark.parametrize("squash", SQUASHED.values(), ids=SQUASHED)
@settings(deadline=None)
@given(values=distinct(8), k=st.integers(1, 7))
def test_a_ranking_is_that_of_the_arguments(squash, values, k):
    x = {2: values}
    order = values.argsort(descending=True)
    indices, context, _ = limit(lambda x: torch.topk(squash(x), k).indices, x)
    assert indices.tolist() == order[:k].tolist()
    assert limit(lambda x: squash(x).argmax(), x)[0].item() == order[0]
    assert limit(lambda x: squash(x).argmin(), x)[0].item() == order[-1]
    assert limit(lambda x: torch.sort(squash(x)).indices, x)[0].tolist() == order.flip(0).tolist()
    assert limit(lambda x: torch.kthvalue(squash(x), k).indices, x)[0].item() == order[-k]
    largest = limit(lambda x: squash(x) >= squash(x).amax(-1, keepdim=True), x)[0]
    assert largest.nonzero().flatten().tolist() == [order[0]]
    assert limit(lambda x: (-squash(x)).argmin(), x)[0].item() == order[0]
    assert limit(lambda x: (1 - 3 * squash(x)[..., :]).argmin(), x)[0].item() == order[0]
    assert not context.doubtful
    assert not context.unranked


def test_equal_leading_orders_are_ranked_by_the_next():
    x = {2: torch.tensor([1.0, 1.0, 2.0]), 1: torch.tensor([0.5, -0.5, 0.0])}
    assert limit(lambda x: torch.sort(torch.sigmoid(x)).indices, x)[0].tolist() == [1, 0, 2]


def test_an_offset_is_compared_before_what_is_exponentially_small():
    """1 - exp(-c) and 0 + 1 + exp(-c): equal in the limit, the second is larger."""
    offset = torch.tensor([0.0, 1.0], dtype=torch.float64)
    x = {1: torch.tensor([3.0, -3.0], dtype=torch.float64)}
    assert limit(lambda x: (torch.sigmoid(x) + offset).argmax(), x)[0].item() == 1


def sigmoid(x):
    return 1 / (1 + mpmath.exp(-x))


@given(values=distinct(8))
def test_sums_of_sigmoids_rank_as_they_do(values):
    """The score of a group of experts is the sum of its two best: the one nearer to its threshold decides."""
    groups = values.reshape(4, 2)
    found = limit(lambda x: torch.sort(torch.sigmoid(x).sum(-1)).indices, {1: groups})[0]
    with mpmath.workdps(200):
        sums = [sum(sigmoid(mpmath.mpf(float(v)) * 64) for v in group) for group in groups]
    assert [sums[i] for i in found] == sorted(sums)


@given(values=st.permutations([-3.0, -2.5, -2.0, -1.0, -0.5]), share=st.booleans())
def test_weights_normalized_by_a_vanishing_sum(values, share):
    """All sigmoids fall to 0; their ratios have a limit."""
    values = torch.tensor(values, dtype=torch.float64)
    if share:
        values[1] = values[0]
    x = {1: values}
    found, context, mode = limit(lambda x: torch.sigmoid(x) / torch.sigmoid(x).sum(-1, keepdim=True), x)
    with mpmath.workdps(200):
        scores = [sigmoid(mpmath.mpf(float(v)) * 200) for v in values]
        expected = [float(s / sum(scores)) for s in scores]
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), atol=1e-12)
    assert not context.unranked
    assert mode.lift(found).top.degree == 0


def test_exact_ties_fall_as_in_torch():
    x = {1: torch.tensor([[-1.0, -2.0, -0.5, -3.0, -4.0, -1.0, -6.0, -2.0]])}
    zeros = torch.zeros(1, 8)
    for ask in (
        lambda v: v.argmax(-1),
        lambda v: v.max(-1).indices,
        lambda v: torch.topk(v, 3).indices,
        lambda v: torch.argsort(v, descending=True),
        lambda v: v.argmin(-1),
        lambda v: torch.sort(v, stable=True, descending=True).indices,
    ):
        found, context, _ = limit(lambda x, ask=ask: ask(torch.relu(x)), x)
        assert torch.equal(found, ask(zeros))
        assert not context.doubtful


@pytest.mark.parametrize(
    "write",
    [
        lambda x, i: x.scatter(-1, i, float("-inf")),
        lambda x, i: x.scatter_(-1, i, float("-inf")),
        lambda x, i: x.index_put((torch.arange(2), i[:, 0]), torch.tensor(float("-inf"), dtype=x.dtype)),
        lambda x, i: torch.cat(
            [x[:1].index_fill(-1, i[0], -torch.inf), x[1:].index_fill(-1, i[1], -torch.inf)]
        ),
        lambda x, i: x.masked_fill(torch.nn.functional.one_hot(i[:, 0], 4).bool(), float("-inf")),
    ],
)
def test_minus_infinity_masks_however_it_is_written(write):
    x = {1: torch.tensor([[1.0, 5.0, 2.0, 3.0], [7.0, 5.0, 2.0, 3.0]], dtype=torch.float64)}
    index = torch.tensor([[1], [0]])
    found = limit(lambda x: torch.softmax(write(x.clone(), index), -1), x)[0]
    assert found.argmax(-1).tolist() == [3, 1]
    assert limit(lambda x: write(x.clone(), index).argmax(-1), x)[0].tolist() == [3, 1]


def test_a_slice_set_to_minus_infinity_masks():
    def first_masked(x):
        x = x.clone()
        x[..., :2] = float("-inf")
        return torch.softmax(x, -1)

    x = {1: torch.tensor([9.0, 8.0, 2.0, 3.0], dtype=torch.float64)}
    assert limit(first_masked, x)[0].tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("scores", [[3.0, -2.0, 1.0], [-1.0, -2.0, -4.0]])
def test_logarithms_of_saturated_values(scores):
    """log sigmoid(c x) is 0 or c x; log softmax is the distance from the largest."""
    x = torch.tensor(scores, dtype=torch.float64)
    for f in (lambda x: torch.log(torch.sigmoid(x)), nn.functional.logsigmoid):
        found, context, mode = limit(f, {1: x})
        series = mode.lift(found)
        part = series.at(Fraction(1))
        assert torch.allclose(torch.zeros_like(x) if part is None else part, x.clamp(max=0))
        assert not context.unranked
    for f in (lambda x: torch.log(torch.softmax(x, -1)), lambda x: torch.log_softmax(x, -1)):
        found, context, mode = limit(f, {1: x})
        assert torch.allclose(mode.lift(found).at(Fraction(1)), x - x.max())


def test_log_softmax_of_very_unequal_scores_that_do_not_grow():
    x = {0: torch.tensor([0.0, 2000.0], dtype=torch.float64), -1: torch.ones(2, dtype=torch.float64)}
    assert limit(lambda x: torch.log_softmax(x, -1), x)[0].tolist() == [-2000, 0]


class Head(nn.Module):
    def __init__(self, manual):
        super().__init__()
        self.linear = nn.Linear(4, 3, bias=False, dtype=torch.float64)
        self.manual = manual

    def forward(self, x, target):
        if self.manual:
            return -torch.log(torch.softmax(self.linear(x), -1)).gather(-1, target[:, None]).squeeze(-1)
        return -torch.log_softmax(self.linear(x), -1).gather(-1, target[:, None]).squeeze(-1)


@pytest.mark.parametrize("manual", [False, True])
def test_cross_entropy_of_a_saturated_network(manual, own_random_numbers):
    """It grows by the margin that the right class lacks, and is 0 where it wins."""
    model = Head(manual)
    x, target = torch.randn(16, 4, dtype=torch.float64), torch.arange(16) % 3
    model_limit = saturated(model)
    found = model_limit(x, target)
    scores = model.linear(x)
    expected = scores.amax(-1) - scores.gather(-1, target[:, None]).squeeze(-1)
    assert model_limit.degrees[""] == 1
    assert torch.allclose(found, expected.detach())


class Counting(nn.Module):
    """A cache that each call extends, and a buffer that it writes to; ties that ask for more orders."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(4, 4, dtype=torch.float64)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(()))
        self.count, self.seen, self.written = 0, [], torch.zeros(2)

    def forward(self, x, cache):
        self.calls += 1
        self.replaced = self.replaced + 1
        self.count += 1
        self.seen.append(x)
        self.written[0] += 1
        self.made = getattr(self, "made", 0) + 1
        if not hasattr(self, "hooked"):  # as transformers installs its own at the first call
            self.hooked = self.query.register_forward_hook(lambda *_: cache["hooks"].append(1))
        cache["keys"].append(self.query(x))
        cache["sum"] += 1
        keys = torch.cat(cache["keys"])
        return (
            torch.topk(torch.sigmoid(keys @ keys.T), 2).values.sum() + torch.softmax(keys @ keys.T, -1) @ keys
        )


def test_a_second_pass_does_not_see_what_the_first_changed(own_random_numbers):
    model = Counting()
    cache = {"keys": [torch.randn(3, 4, dtype=torch.float64)], "sum": torch.zeros(2), "hooks": []}
    limit_ = saturated(model)
    limit_(torch.randn(2, 4, dtype=torch.float64), cache)
    assert limit_._needed != (1, False), "a second pass was needed"
    assert len(cache["keys"]) == 2
    assert cache["sum"].tolist() == [1, 1]
    assert cache["hooks"] == [1]
    assert float(model.calls) == float(model.replaced) == 1
    assert (model.count, len(model.seen), model.made, model.written.tolist()) == (1, 1, 1, [1, 0])


@pytest.mark.filterwarnings("ignore")  # those of transformers
@pytest.mark.parametrize("name", ROUTERS)
def test_routers_of_values_that_are_equal_in_the_limit(name):
    """As initialized: correction biases that are not 0 would decide."""
    found = examine(name, Setting(2, False, 8))
    assert found["outcome"] == "right", found


@pytest.mark.parametrize(
    ("weights", "open_"),
    [([1.0, 2.0], 0), ([1.0, -0.5], 1)],  # the second cancels at the first key
)
def test_a_sum_of_what_relu_cut_off_is_exactly_zero(weights, open_):
    """Keys that no head of an indexer scores tie exactly; a sum whose parts cancel may have a lower order."""
    scores = torch.tensor([[1.0, -1.0, -2.0, -1.0], [2.0, -1.0, -1.0, -3.0]]).double()
    context = Context(1)
    mode = LimitMode(context, object())
    with torch.no_grad(), mode:
        grown = mode.attach(Series((Term(Fraction(2), scores, 1),), Fraction(1), lost=True))
        heads = mode.attach(Series((Term(Fraction(1), torch.tensor([weights]).double(), 2),)))
        hidden = torch.tensor([[False, False, False, True]])
        (heads @ torch.relu(grown)).masked_fill(hidden, -torch.inf).topk(2)
    assert (context.doubtful, context.unranked) == (open_, 0)


def test_a_router_of_zeros_has_no_exponentially_small_part(own_random_numbers):
    class Routed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.gate = nn.Linear(4, 4), nn.Linear(4, 3, bias=False)
            nn.init.zeros_(self.gate.weight)

        def forward(self, x):
            return torch.sigmoid(self.gate(torch.tanh(self.inner(x)))).topk(1).values

    routed = saturated(Routed())
    assert routed(torch.randn(5, 4)).unique().tolist() == [0.5]
    assert routed.doubtful == 0


def test_a_term_that_may_be_incomplete_decides_no_comparison():
    """Equal leading terms, and a term below the highest one that was left out: it may be incomplete."""
    a = [torch.tensor(v).double() for v in ([4.0, 5.0, 0.0], [1.0, 1.0, 1.0])]
    x = Series((Term(Fraction(1), a[0], 1), Term(Fraction(-1), a[1], 1)), Fraction(0))
    y = Series((Term(Fraction(1), torch.tensor([4.0, 4.0, 0.0]).double(), 2),))
    context = Context(1)
    mode = LimitMode(context, object())
    with torch.no_grad(), mode:
        x, y = mode.attach(x), mode.attach(y)
        assert (x > y).tolist() == [True, True, True]
        assert context.doubtful == 1, "only the first; the leading term of the last one is exact"
        torch.stack([x, y], -1).argmax(-1)
    assert context.doubtful == 2


@pytest.mark.parametrize(("rest", "open_"), [(None, 0), (Fraction(1), 1)])
def test_log_softmax_of_an_undecided_tie(rest, open_):
    context = Context(1)
    mode = LimitMode(context, object())
    with torch.no_grad(), mode:
        scores = mode.attach(
            Series((Term(Fraction(2), torch.tensor([[3.0, 3, 1], [2, 1, 0]]).double(), 1),), rest)
        )
        torch.log_softmax(scores, -1)
    assert context.doubtful == open_


@pytest.mark.parametrize("bias", [False, True])
def test_a_matrix_product_that_cancels_where_an_order_was_left_out(bias):
    """2 · 1 - 1 · 2 = 0 at the leading order; the term below the highest one left out may be incomplete."""
    rows = [torch.tensor(v).double() for v in ([[2.0, 1.0], [1.0, 1.0], [0.0, 0.0]], [[1.0, 0.0]] * 3)]
    x = Series((Term(Fraction(1), rows[0], 1), Term(Fraction(-1), rows[1], 1)), Fraction(0))
    weight = Series((Term(Fraction(1), torch.tensor([[1.0], [-2.0]]).double(), 2),))
    context = Context(1)
    mode = LimitMode(context, object())
    with torch.no_grad(), mode:
        x, weight = mode.attach(x), mode.attach(weight)
        _ = F.linear(x, weight.T, torch.zeros(1).double()) if bias else x @ weight
    assert context.cancelled == {"": 1}, "not the last row, whose leading term is exact"


def test_hardshrink_of_a_value_at_its_bound():
    context = Context(1)
    mode = LimitMode(context, object())
    with torch.no_grad(), mode:
        x = mode.attach(
            Series((Term(Fraction(0), torch.tensor([0.5, -0.5, 0.75]).double(), 1),), Fraction(-1))
        )
        F.hardshrink(x)
    assert context.doubtful == 2
