"""Every rule against mpmath: leading coefficient and degree, element by element."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from limit.growing import each, expect, limit, powers
from mpmath import mp, mpf

few = settings(
    max_examples=settings.default.max_examples // 10, deadline=None, suppress_health_check=list(HealthCheck)
)
with_orders = pytest.mark.parametrize("orders", [1, 3])
SHAPE = (2, 3)


def sigmoid(x):
    return 1 / (1 + mp.exp(-x)) if x > 0 else mp.exp(x) / (1 + mp.exp(x))


def gelu(x):
    return x * mp.ncdf(x) if abs(x) < 100 else max(x, mpf(0))


def gelu_tanh(x):
    inner = mp.sqrt(2 / mp.pi) * (x + mpf("0.044715") * x**3)
    return x / 2 * (1 + mp.tanh(inner)) if abs(x) < 100 else max(x, mpf(0))


def softplus(x):
    return x if x > 1000 else mp.log1p(mp.exp(x)) if x > -1000 else mpf(0)


SELU = mpf("1.6732632423543772848")
ELEMENTWISE = {
    "relu": (F.relu, lambda x: max(x, mpf(0))),
    "relu squared": (lambda x: F.relu(x).square(), lambda x: max(x, mpf(0)) ** 2),
    "leaky relu": (lambda x: F.leaky_relu(x, 0.25), lambda x: x if x > 0 else x / 4),
    "abs": (torch.abs, abs),
    "gelu": (F.gelu, gelu),
    "gelu, by tanh": (lambda x: F.gelu(x, approximate="tanh"), gelu_tanh),
    "silu": (F.silu, lambda x: x * sigmoid(x)),
    "tanh": (torch.tanh, lambda x: mp.tanh(x) if abs(x) < 1000 else mp.sign(x)),
    "sigmoid": (torch.sigmoid, sigmoid),
    "softplus": (F.softplus, softplus),
    "log sigmoid": (F.logsigmoid, lambda x: -softplus(-x)),
    "elu": (F.elu, lambda x: x if x > 0 else mp.expm1(x)),
    "elu, scaled": (lambda x: F.elu(x, 0.5), lambda x: x if x > 0 else mp.expm1(x) / 2),
    "celu": (lambda x: F.celu(x, 0.5), lambda x: x if x > 0 else mp.expm1(2 * x) / 2),
    "selu": (F.selu, lambda x: mpf("1.0507009873554804934") * (x if x > 0 else SELU * mp.expm1(x))),
    "prelu": (
        lambda x: F.prelu(x, torch.tensor([0.25], dtype=torch.float64)),
        lambda x: x if x > 0 else x / 4,
    ),
    "hard shrink": (lambda x: F.hardshrink(x, 0.75), lambda x: x if abs(x) > 0.75 else mpf(0)),
    "soft shrink": (
        lambda x: F.softshrink(x, 0.75),
        lambda x: mp.sign(x) * (abs(x) - mpf(0.75)) if abs(x) > 0.75 else mpf(0),
    ),
    "erfc": (torch.erfc, lambda x: mp.erfc(x) if abs(x) < 100 else 1 - mp.sign(x)),
    "softplus by hand": (
        lambda x: torch.where(x > 20, x, torch.log(1 + torch.exp(x))),
        lambda x: x if x > 1000 else mp.log1p(mp.exp(x)) if x > -1000 else mpf(0),
    ),
    "sigmoid by hand": (lambda x: 1 / (1 + torch.exp(-x)), sigmoid),
    "silu by hand": (lambda x: x / (1 + torch.exp(-x)), lambda x: x * sigmoid(x)),
    "bounded exp": (
        lambda x: x.exp().clamp(max=100),
        lambda x: min(mp.exp(x), mpf(100)) if x < 1000 else mpf(100),
    ),
    "power of two, bounded": (
        lambda x: (2**x).clamp(max=100),
        lambda x: min(mpf(2) ** x, mpf(100)) if x < 1000 else mpf(100),
    ),
    "powers of one half": (
        lambda x: torch.pow(torch.tensor([0.5], dtype=torch.float64), x.abs()),
        lambda x: mpf(2) ** -abs(x),
    ),
    "soft cap": (
        lambda x: torch.tanh(x / 50) * 50,
        lambda x: 50 * (mp.tanh(x / 50) if abs(x) < 1e5 else mp.sign(x)),
    ),
    "clamp": (lambda x: x.clamp(-1.25, 0.5), lambda x: min(max(x, mpf(-1.25)), mpf(0.5))),
    "at least": (lambda x: x.clamp_min(1.0), lambda x: max(x, mpf(1))),
    "cube": (lambda x: x.pow(3), lambda x: x**3),
    "1 + w": (lambda x: 1 + x, lambda x: 1 + x),
    "negative": (lambda x: 2 - 3 * x, lambda x: 2 - 3 * x),
    "doubled in place": (lambda x: x.clone().mul_(2).add_(x), lambda x: 3 * x),
    "halved": (lambda x: x / 2, lambda x: x / 2),
    "minus itself": (lambda x: x - x.clone(), lambda x: x - x),
}


@with_orders
@pytest.mark.parametrize("name", ELEMENTWISE)
@few
@given(x=powers(SHAPE))
def test_functions_of_one_element(name, orders, x):
    f, reference = ELEMENTWISE[name]
    expect(limit(f, x, orders=orders), each(reference), x, tolerance=1e-6)


@with_orders
@few
@given(x=powers(SHAPE, degrees=(-2, -1, 0)))
def test_smooth_functions_have_tangents_at_zero(orders, x):
    for f, reference in (
        (torch.sin, mp.sin),
        (torch.cos, mp.cos),
        (torch.exp, mp.exp),
        (torch.expm1, mp.expm1),
        (lambda x: torch.exp2(x), lambda x: mpf(2) ** x),
        (lambda x: torch.acos(x / 8), lambda x: mp.acos(x / 8)),
        (lambda x: torch.asin(x / 8), lambda x: mp.asin(x / 8)),
        (lambda x: torch.atanh(x / 8), lambda x: mp.atanh(x / 8)),
        (lambda x: torch.log1p(x / 8), lambda x: mp.log1p(x / 8)),
        (lambda x: torch.log(1 + x / 8), lambda x: mp.log1p(x / 8)),
        (lambda x: torch.logit((1 + x / 16) / 2), lambda x: mp.log((1 + x / 16) / (1 - x / 16))),
    ):
        expect(limit(f, x, orders=orders), each(reference), x)


POSITIVE = [1.0, 2.0, 0.5, 3.0]


@with_orders
@few
@given(x=powers(SHAPE, coefficients=POSITIVE))
def test_powers(orders, x):
    for p in (0.5, -0.5, -1, -2, 1.5):
        expect(limit(lambda x, p=p: x.pow(p), x, orders=orders), each(lambda v, p=p: v ** mpf(p)), x)
    expect(limit(torch.rsqrt, x, orders=orders), each(lambda v: 1 / mp.sqrt(v)), x)


def log_of_sum(row):
    most = max(row)
    return most + mp.log(mp.fsum(mp.exp(v - most) if v - most > -1000 else mpf(0) for v in row))


BINARY = {
    "sum": (torch.add, lambda a, b: a + b),
    "difference": (torch.sub, lambda a, b: a - b),
    "weighted sum": (lambda a, b: torch.add(a, b, alpha=-2), lambda a, b: a - 2 * b),
    "product": (torch.mul, lambda a, b: a * b),
    "gate": (lambda a, b: F.silu(a) * b, lambda a, b: a * sigmoid(a) * b),
    "glu": (lambda a, b: F.glu(torch.cat([a, b], -1)), lambda a, b: a * sigmoid(b)),
    "gelu gate": (lambda a, b: F.gelu(a) * b, lambda a, b: gelu(a) * b),
    "prelu with a slope that grows": (
        lambda a, b: torch._prelu_kernel(a, b),
        lambda a, b: a if a > 0 else a * b,
    ),
    "log of a sum": (torch.logaddexp, lambda a, b: log_of_sum([a, b])),
    "binary log of a sum": (
        torch.logaddexp2,
        lambda a, b: log_of_sum([a * mp.log(2), b * mp.log(2)]) / mp.log(2),
    ),
    "maximum": (torch.maximum, max),
    "minimum": (torch.minimum, min),
    "sum of product": (lambda a, b: torch.addcmul(a, a, b), lambda a, b: a + a * b),
    "between": (lambda a, b: torch.lerp(a, b, 0.25), lambda a, b: a + (b - a) / 4),
    "compared": (
        lambda a, b: (a > b).double() + 2 * (a == b).double(),
        lambda a, b: mpf((a > b) + 2 * (a == b)),
    ),
    "at most": (lambda a, b: (a <= b).double(), lambda a, b: mpf(a <= b)),
    "chosen": (lambda a, b: torch.where(a > 0, a, b), lambda a, b: a if a > 0 else b),
}


@with_orders
@pytest.mark.parametrize("name", BINARY)
@few
@given(a=powers(SHAPE), b=powers(SHAPE))
def test_functions_of_two_elements(name, orders, a, b):
    f, reference = BINARY[name]
    expect(limit(f, a, b, orders=orders), each(reference), a, b, tolerance=1e-6)


@pytest.mark.parametrize("orders", [1, 3])
def test_a_binary_logarithm_that_cancels_takes_the_next_order(orders):
    """log2(2^-1 + 2^(-1 + 1/c)) is 0 to the leading order and 1/(2c) to the next."""
    f, reference = BINARY["binary log of a sum"]
    a, b = (
        {0: torch.full((1, 1), -1.0).double()},
        {0: torch.full((1, 1), -1.0).double(), -1: torch.ones(1, 1).double()},
    )
    expect(limit(f, a, b, orders=orders), each(reference), a, b, tolerance=1e-6)


@with_orders
@few
@given(a=powers(SHAPE), b=powers(SHAPE, coefficients=POSITIVE))
def test_division(orders, a, b):
    expect(limit(torch.div, a, b, orders=orders), each(lambda x, y: x / y), a, b)


# --- rows ----------------------------------------------------------------------------------------------------
def rows(f):
    return lambda x, *others: [f(row, *others) for row in x]


def soft(row):
    shift = max(row)
    if mp.isinf(shift):
        return [mpf(1) / len(row)] * len(row)
    parts = [mpf(0) if mp.isinf(v) else mp.exp(v - shift) for v in row]
    return [p / mp.fsum(parts) for p in parts]


@few
@given(x=powers((3, 4), most=4, coefficients=[0.0, 1.0, 1.0, -1.0, 0.5]))
def test_softmax_by_orders(x):
    """Few different coefficients: ties that a lower positive order decides, or degree 0 weighs, or nothing does."""
    expect(limit(lambda x: torch.softmax(x, -1), x, orders=3), rows(soft), x)
    expect(limit(lambda x: torch.softmax(x, -1), x, orders=1), rows(soft), x)


MASKS = [-torch.inf, torch.finfo(torch.float64).min, -1e30]


@pytest.mark.parametrize("fill", MASKS)
@few
@given(x=powers((2, 4), degrees=(0, 1, 2, 3), most=3), hidden=st.lists(st.booleans(), min_size=4, max_size=4))
def test_masked_softmax(fill, x, hidden):
    hidden = torch.tensor([*hidden[:3], False])
    ways = {
        "added": lambda x: torch.softmax(x + torch.zeros(4).double().masked_fill(hidden, fill), -1),
        "filled": lambda x: torch.softmax(x.masked_fill(hidden, fill), -1),
        "chosen": lambda x: torch.softmax(
            torch.where(hidden, torch.full((), fill, dtype=torch.float64), x), -1
        ),
    }
    if fill == -1e30:
        ways["subtracted, as in XLNet"] = lambda x: torch.softmax(x - 1e30 * hidden.double(), -1)

    def reference(x):
        return [soft([-mp.inf if h else v for v, h in zip(row, hidden, strict=True)]) for row in x]

    for f in ways.values():
        expect(limit(f, x), reference, x)


@with_orders
@few
@given(x=powers((2, 3), coefficients=[0.0, 1.0, 2.0, -1.0, 0.25]), fill=st.sampled_from([0.5, -torch.inf]))
def test_a_mask_leaves_what_it_does_not_hide(orders, x, fill):
    """A branch with a mask in one place and a number in another."""
    other = torch.tensor([fill, 0.25, -2.0], dtype=torch.float64)
    keep = torch.tensor([False, False, True])
    found = limit(lambda x: torch.where(keep, x, other), x, orders=orders)
    expect(found, lambda x: [[mpf(fill), mpf(0.25), row[2]] for row in x], x)


def layer_norm(eps):
    def f(row):
        mean = mp.fsum(row) / len(row)
        return [
            (v - mean) / mp.sqrt(mp.fsum((u - mean) ** 2 for u in row) / len(row) + mpf(eps)) for v in row
        ]

    return f


def rms_norm(eps):
    return lambda row: [v / mp.sqrt(mp.fsum(u * u for u in row) / len(row) + mpf(eps)) for v in row]


def by_hand(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


@few
@given(x=powers((3, 4), most=3))
@example(x={1: torch.tensor([[1.0, -0.5, -0.5, 0.0], [0, 0, 0, 1], [0, 0, 0, 1]], dtype=torch.float64)})
def test_norms(x):
    """Rows of unlike degree, zero rows, rows whose leading coefficients are all equal."""
    expect(
        limit(lambda x: F.layer_norm(x, (4,), eps=1e-5), x, orders=3),
        rows(layer_norm(1e-5)),
        x,
        tolerance=1e-6,
        zero=8 * torch.finfo(torch.float64).eps,  # the kernel's own mean of 1, -0.5, -0.5, 0 is 1e-17
    )
    for f in (lambda x: F.rms_norm(x, (4,), eps=1e-5), by_hand):
        expect(limit(f, x, orders=3), rows(rms_norm(1e-5)), x)


@few
@given(x=powers((2, 3)), y=powers((3, 2)), b=powers((2,)))
def test_matrix_products(x, y, b):
    def product(x, y, *bias):
        found = [[mp.fsum(u * v[j] for u, v in zip(row, y, strict=True)) for j in range(2)] for row in x]
        return [[v + w for v, w in zip(row, bias[0], strict=True)] for row in found] if bias else found

    for orders in (1, 3):
        for f in (
            torch.matmul,
            lambda x, y: torch.einsum("ij,jk->ik", x, y),
            lambda x, y: torch.bmm(x[None], y[None])[0],
        ):
            expect(limit(f, x, y, orders=orders), product, x, y)
        expect(limit(lambda x, y, b: F.linear(x, y.t(), b), x, y, b, orders=orders), product, x, y, b)
        convolved = limit(
            lambda x, y, b: F.conv1d(x[..., None], y.t()[..., None], b)[..., 0], x, y, b, orders=orders
        )
        expect(convolved, product, x, y, b)


@few
@given(
    a=powers((2, 3)),
    b=powers((2, 2)),
    weight=powers((2, 3, 2), degrees=(0, 1)),
    bias=powers((2,), degrees=(0, 1)),
)
def test_bilinear_maps(a, b, weight, bias):
    def reference(a, b, weight, bias):
        return [
            [
                mp.fsum(x[i] * m[i][j] * y[j] for i in range(3) for j in range(2)) + shift
                for m, shift in zip(weight, bias, strict=True)
            ]
            for x, y in zip(a, b, strict=True)
        ]

    for orders in (1, 3):
        expect(limit(F.bilinear, a, b, weight, bias, orders=orders), reference, a, b, weight, bias)


@few
@given(a=powers((2, 3)), b=powers((2, 3)))
def test_joined_and_written_in_place(a, b):
    expect(limit(lambda a, b: torch.cat([a, b]), a, b), lambda a, b: a + b, a, b)
    expect(limit(lambda a, b: torch.stack([a, b]), a, b), lambda a, b: [a, b], a, b)

    def slice_of_zeros(a, b):
        base = torch.zeros(4, 3, dtype=torch.float64)
        view = base[1:3]
        base[:2] = a
        view.copy_(b)  # over the second row of a
        base[3].fill_(2.5)
        return base

    expect(limit(slice_of_zeros, a, b), lambda a, b: [a[0], *b, [mpf(2.5)] * 3], a, b)

    def through_views(a, b):
        base = a.clone()
        other = base.t()
        other[1] += b[:, 0]
        base.transpose_(0, 1)
        return base.mul_(2)

    def expected(a, b):
        columns = [list(col) for col in zip(*a, strict=True)]
        columns[1] = [u + v[0] for u, v in zip(columns[1], b, strict=True)]
        return [[2 * v for v in col] for col in columns]

    expect(limit(through_views, a, b), expected, a, b)
    index = torch.tensor([[2, 0, 1], [1, 2, 0]])

    def scattered(a, b):
        return [[b[i][index[i].tolist().index(j)] for j in range(3)] for i in range(2)]

    expect(limit(lambda a, b: a.scatter(1, index, b), a, b), scattered, a, b)
    put = limit(lambda a, b: a.clone().index_put_((torch.tensor([1]),), b[0]), a, b)
    expect(put, lambda a, b: [a[0], b[0]], a, b)
    picked = limit(lambda a: a[torch.tensor([[True, False, True], [False, True, True]])], a)
    expect(picked, lambda a: [a[0][0], a[0][2], a[1][1], a[1][2]], a)


@few
@given(x=powers((2, 4), coefficients=[0.0, 1.0, -1.0, 2.0, -0.5]))
def test_order(x):
    expect(limit(lambda x: x.amax(-1), x), rows(max), x)
    expect(limit(lambda x: x.min(), x), lambda x: min(min(row) for row in x), x)
    expect(limit(lambda x: x.max(0).values, x), lambda x: [max(col) for col in zip(*x, strict=True)], x)
    expect(limit(lambda x: x.topk(2).values, x), rows(lambda row: sorted(row, reverse=True)[:2]), x)
    expect(limit(lambda x: x.sort(-1).values, x), rows(sorted), x)
    expect(limit(lambda x: x.gather(-1, x.argmax(-1, keepdim=True)), x), rows(lambda row: [max(row)]), x)


@few
@given(x=powers((2, 4)))
def test_sums_along_rows(x):
    expect(limit(lambda x: x.sum(-1), x), rows(mp.fsum), x)
    expect(limit(lambda x: x.mean(0), x), lambda x: [mp.fsum(col) / 2 for col in zip(*x, strict=True)], x)
    expect(limit(lambda x: x.cumsum(-1), x), rows(lambda row: [mp.fsum(row[: i + 1]) for i in range(4)]), x)
    expect(
        limit(lambda x: x.norm(dim=-1), x, orders=3),
        rows(lambda row: mp.sqrt(mp.fsum(v * v for v in row))),
        x,
    )
    spread = rows(lambda row: mp.fsum((v - mp.fsum(row) / 4) ** 2 for v in row) / 3)
    expect(limit(lambda x: x.var(-1), x, orders=3), spread, x, tolerance=1e-6)
    expect(limit(lambda x: F.pad(x, (1, 1), value=1.5), x), rows(lambda row: [mpf(1.5), *row, mpf(1.5)]), x)


def test_numbers_in_the_place_of_infinities():
    hidden = torch.tensor([[True, False, False]])
    x = {1: torch.tensor([[5.0, -2.0, 0.0]]).double(), 0: torch.tensor([[1.0, 1.0, 3.0]]).double()}

    def f(x):
        return x.masked_fill(hidden, -torch.inf).nan_to_num(neginf=7.0)

    found = limit(f, x)
    assert [t.degree for t in found.terms] == [1, 0]
    assert [t.value.tolist() for t in found.terms] == [[[0.0, -2.0, 0.0]], [[7.0, 1.0, 3.0]]]
    still_hidden = limit(lambda x: x.masked_fill(hidden, -torch.inf).nan_to_num().softmax(-1), x)
    assert still_hidden.top.value.tolist() == [[0.0, 0.0, 1.0]]
    assert limit(torch.nan_to_num, x).top.value.tolist() == x[1].tolist()


def test_empty_tensors_are_joined_to_others():
    """Caches begin with a tensor of one dimension and no elements."""
    x, empty = {1: torch.ones(2, 3).double()}, torch.empty(0)
    found = limit(lambda x: torch.cat([empty.double(), x], -1), x)
    assert (found.top.degree, found.top.value.tolist()) == (1, x[1].tolist())
    assert limit(lambda x: torch.cat([empty.double(), x]), {1: empty.double()}).shape == (0,)
    narrow = limit(lambda x: torch.cat([empty.double(), x], -1), {1: torch.ones(2, 3)})
    assert narrow.top.value.dtype == torch.float64
