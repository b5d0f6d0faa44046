"""Rules that make one value of many, against mpmath: products, norms, pools, distances, logarithms of sums."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from limit.growing import expect, leading, limit, powers
from limit.test_rules import few, log_of_sum, rows, with_orders
from mpmath import mp, mpf

from normgrowth.errors import UnsupportedOperation

POSITIVE = [1.0, 2.0, 0.5, 3.0]
GROWING = (0, 1, 2, 3)


def columns(x):
    return [list(column) for column in zip(*x, strict=True)]


@with_orders
@few
@given(x=powers((2, 5), most=3))
def test_products(orders, x):
    expect(limit(lambda x: x.prod(-1), x, orders=orders), rows(mp.fprod), x)
    expect(
        limit(lambda x: x.prod(0, keepdim=True), x, orders=orders),
        lambda x: [list(map(mp.fprod, columns(x)))],
        x,
    )
    expect(limit(torch.prod, x, orders=orders), lambda x: mp.fprod(v for row in x for v in row), x)


@with_orders
@few
@given(x=powers((2, 5), most=2))
def test_running_products(orders, x):
    expect(
        limit(lambda x: x.cumprod(-1), x, orders=orders),
        rows(lambda row: [mp.fprod(row[: i + 1]) for i in range(5)]),
        x,
    )


@pytest.mark.parametrize("orders", [1, 3])
@few
@given(x=powers((3, 4), coefficients=[0.0, 1.0, 1.0, -1.0, 0.5]))
def test_logarithms_of_sums(orders, x):
    """Few different coefficients: ties count how many share the largest."""
    expect(limit(lambda x: x.logsumexp(-1), x, orders=orders), rows(log_of_sum), x, tolerance=1e-6)
    whole = limit(lambda x: x.logsumexp((0, 1), keepdim=True), x, orders=orders)
    expect(whole, lambda x: [[log_of_sum([v for row in x for v in row])]], x, tolerance=1e-6)


@pytest.mark.parametrize("orders", [1, 3])
@few
@given(x=powers((3, 4), coefficients=[0.0, 1.0, 1.0, -1.0, 0.5]))
def test_running_logarithms_of_sums(orders, x):
    def running(row):
        return [log_of_sum(row[: i + 1]) for i in range(len(row))]

    expect(limit(lambda x: x.logcumsumexp(-1), x, orders=orders), rows(running), x, tolerance=1e-6)
    expect(
        limit(lambda x: x.logcumsumexp(0), x, orders=orders),
        lambda x: columns([running(column) for column in columns(x)]),
        x,
        tolerance=1e-6,
    )


def test_the_logarithm_of_a_sum_of_which_all_is_masked():
    hidden = torch.tensor([[True, True], [False, True]])
    found = limit(lambda x: x.masked_fill(hidden, -torch.inf).logsumexp(-1), {1: torch.ones(2, 2).double()})
    assert found.top.value.tolist() == [-torch.inf, 1]


def test_reductions_of_a_single_number():
    """Along dimension 0, as torch allows it."""
    one = {2: torch.tensor(3.0).double()}
    for f in (torch.logsumexp, torch.prod, torch.cumprod, torch.amax):
        found = limit(lambda x, f=f: f(x, 0), one)
        assert (found.top.degree, found.top.value.item()) == (2, 3), f
    largest, place = limit(lambda x: x.max(0), one)
    assert (largest.top.value.item(), place.item()) == (3, 0)
    assert limit(lambda x: x.argmin(), one).item() == 0


@with_orders
@few
@given(x=powers((2, 4)))
def test_norms_of_every_order(orders, x):
    expect(limit(lambda x: x.norm(1, -1), x, orders=orders), rows(lambda row: mp.fsum(map(abs, row))), x)
    expect(limit(lambda x: x.norm(torch.inf, -1), x, orders=orders), rows(lambda row: max(map(abs, row))), x)
    expect(limit(lambda x: x.norm(-torch.inf, -1), x, orders=orders), rows(lambda row: min(map(abs, row))), x)
    cubes = rows(lambda row: mp.cbrt(mp.fsum(abs(v) ** 3 for v in row)))
    expect(limit(lambda x: x.norm(3, -1), x, orders=orders), cubes, x)
    count = rows(lambda row: mpf(sum(v != 0 for v in row)))
    expect(limit(lambda x: x.norm(0, -1), x, orders=orders), count, x)


@few
@given(x=powers((2, 4)))
def test_spread_and_mean_together(x):
    def variance(row):
        return mp.fsum((v - mp.fsum(row) / 4) ** 2 for v in row) / 3

    mean = rows(lambda row: mp.fsum(row) / 4)
    for f, reference in (
        (torch.var_mean, variance),
        (torch.std_mean, lambda row: mp.sqrt(variance(row))),
    ):
        spread, middle = limit(lambda x, f=f: f(x, -1), x, orders=3)
        expect(spread, rows(reference), x, tolerance=1e-6)
        expect(middle, mean, x)


@few
@given(x=powers((2, 4), coefficients=[0.0, 1.0, -1.0, 2.0, -0.5]))
def test_extremes(x):
    expect(limit(lambda x: x.amax((0, 1)), x), lambda x: max(max(row) for row in x), x)
    least, most = limit(lambda x: torch.aminmax(x, dim=-1), x)
    expect(least, rows(min), x)
    expect(most, rows(max), x)


@few
@given(x=powers((2, 6), coefficients=[0.0, 1.0, -1.0, 2.0, -0.5]))
def test_pools(x):
    def windows(row):
        return [max(row[max(0, i - 1) : i + 2]) for i in range(0, 6, 2)]

    expect(limit(lambda x: F.max_pool1d(x, 3, 2, 1), x), rows(windows), x)
    expect(limit(lambda x: F.max_pool1d(x, 3, 2, 1, return_indices=True)[0], x), rows(windows), x)
    square = limit(lambda x: F.max_pool2d(x.view(1, 1, 2, 6), 2)[0, 0], x)
    expect(square, lambda x: [[max(x[i][j] for i in (0, 1) for j in (k, k + 1)) for k in (0, 2, 4)]], x)
    halves = limit(lambda x: F.adaptive_max_pool1d(x, 2), x)
    expect(halves, rows(lambda row: [max(row[:3]), max(row[3:])]), x)


def test_the_places_of_a_pool_are_those_of_the_network():
    """Also where values tie."""
    x = torch.tensor([[1.0, 1.0, -2.0, 3.0, 3.0, 0.0]]).double()
    _, places = limit(lambda x: F.max_pool1d(x, 2, return_indices=True), {2: x})
    assert torch.equal(places, F.max_pool1d(x, 2, return_indices=True)[1])


def apart(p):
    def reference(a, b):
        return [
            [mp.root(mp.fsum(abs(u - v) ** p for u, v in zip(x, y, strict=True)), p) for y in b] for x in a
        ]

    return reference


@few
@given(a=powers((2, 3)), b=powers((2, 3)))
def test_distances(a, b):
    for p in (1, 2, 3):
        found = limit(lambda a, b, p=p: torch.cdist(a, b, p=float(p)), a, b, orders=3)
        expect(found, apart(p), a, b, tolerance=1e-6)


def test_distances_of_many_rows_by_a_matrix_product():
    """Beyond 25 rows torch takes another kernel."""
    torch.manual_seed(0)
    a, b = torch.randn(30, 3).double(), torch.randn(40, 3).double()
    found = limit(lambda a, b: torch.cdist(a, b), {2: a}, {2: b})
    assert found.top.degree == 2
    torch.testing.assert_close(found.top.value, torch.cdist(a, b), rtol=1e-9, atol=1e-9)


@few
@given(v=powers((2, 3), degrees=GROWING, coefficients=POSITIVE), g=powers((2, 1), degrees=GROWING))
def test_weights_of_a_given_length(v, g):
    def reference(v, g):
        sizes = [mp.sqrt(mp.fsum(x * x for x in row)) for row in v]
        return [[x * h[0] / size for x in row] for row, h, size in zip(v, g, sizes, strict=True)]

    for orders in (1, 3):
        expect(limit(lambda v, g: torch._weight_norm(v, g, 0), v, g, orders=orders), reference, v, g)


def test_fourier_transforms_are_linear():
    torch.manual_seed(0)
    x = torch.randn(3, 8).double()
    grown = {3: x, 1: torch.randn(3, 8).double()}
    for f in (
        lambda x: torch.fft.fft2(x).real,
        lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2),
        lambda x: torch.fft.ifft(torch.fft.fft(x)).imag,
    ):
        found = limit(f, grown, orders=3)
        assert found.top.degree == 3
        torch.testing.assert_close(found.top.value, f(x))
    size = limit(lambda x: torch.fft.rfft(x).abs(), grown)
    assert size.top.degree == 3
    torch.testing.assert_close(size.top.value, torch.fft.rfft(x).abs())


@few
@given(a=powers((2, 3)), b=powers((4,)))
def test_masked_scatter(a, b):
    mask = torch.tensor([[True, False, True], [False, True, True]])
    found = limit(lambda a, b: a.masked_scatter(mask, b), a, b)
    expect(found, lambda a, b: [[b[0], a[0][1], b[1]], [a[1][0], b[2], b[3]]], a, b)


@few
@given(a=powers((3, 3)), b=powers((3, 2), most=2))
def test_triangular_systems(a, b):
    """With ones on the diagonal; below it anything."""

    def reference(a, b):
        found = []
        for i in range(3):
            found.append([b[i][k] - mp.fsum(a[i][j] * found[j][k] for j in range(i)) for k in range(2)])
        return found

    for orders in (1, 3):
        solved = limit(
            lambda a, b: torch.linalg.solve_triangular(a, b, upper=False, unitriangular=True),
            a,
            b,
            orders=orders,
        )
        expect(solved, reference, a, b, tolerance=1e-6)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_triangular_systems_of_every_kind(upper, left):
    torch.manual_seed(0)
    a, b = torch.randn(2, 4, 4).double() + 3 * torch.eye(4), torch.randn(2, 4, 4).double()
    a = a.triu() if upper else a.tril()
    found = limit(lambda a, b: torch.linalg.solve_triangular(a, b, upper=upper, left=left), {2: a}, {3: b})
    assert found.top.degree == 1
    expected = torch.linalg.solve_triangular(a, b, upper=upper, left=left)
    torch.testing.assert_close(found.top.value, expected)


def scattered(reduce, include_self):
    """scatter_reduce along rows of nested lists: values to the places 2, 0, 0, 2 of three."""

    def of_row(own, values):
        found = list(own)
        for place in (0, 2):
            group = [v for v, at in zip(values, (2, 0, 0, 2), strict=True) if at == place]
            group += [own[place]] if include_self else []
            total = {"amax": max, "amin": min}.get(reduce, mp.fsum)(group)
            found[place] = total / len(group) if reduce == "mean" else total
        return found

    return lambda a, b: [of_row(own, row[:4]) for own, row in zip(a, b, strict=True)]


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
@few
@given(a=powers((2, 3)), b=powers((2, 5)))
def test_scatter_reduce(reduce, include_self, a, b):
    """The index is shorter than the source, whose last column is left out."""
    index = torch.tensor([[2, 0, 0, 2]] * 2)

    def by_rows(a, b):
        return a.scatter_reduce(-1, index, b, reduce, include_self=include_self)

    def by_columns(a, b):
        return a.T.scatter_reduce(0, index.T, b.T, reduce, include_self=include_self).T

    for f in (by_rows, by_columns):
        expect(limit(f, a, b), scattered(reduce, include_self), a, b)


def test_scatter_reduce_by_products_is_refused():
    index = torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(UnsupportedOperation, match="prod"):
        limit(lambda x: x.scatter_reduce(0, index, x, "prod"), {1: torch.ones(2, 3).double()})


def double(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def test_a_logarithm_of_a_sum_whose_leading_terms_cancel():
    """log2(2^(c^-2 - 1) + 2^-1) is c^-2 / 2 - ...; elsewhere in the tensor something grows."""
    a = {1: double(0.0, 0.0), 0: double(-1.0, 0.0), -2: double(1.0, 0.0)}
    b = {1: double(0.0, 1.0), 0: double(-1.0, 0.0), -2: double(0.0, 0.0)}
    found = limit(torch.logaddexp2, a, b, orders=3)
    assert leading(found, (0,)) == (-2, pytest.approx(0.5))
    assert leading(found, (1,)) == (1, 1.0)


def test_a_triangular_system_whose_leading_terms_cancel():
    a = {0: double([0.0, 0.0, 0.0], [-3.0, 0.0, 0.0], [2.0, -0.5, 0.0])}
    b = {-1: double([1.5], [2.5], [-0.5]), -2: double([0.0], [1.0], [0.0])}
    solved = limit(
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=False, unitriangular=True), a, b, orders=1
    )
    assert leading(solved, (2, 0)) == (-2, pytest.approx(0.5))


def test_a_bias_that_cancels_a_product_needs_more_orders():
    """One element of a column comes to 0: the next order leads there, and one order does not carry it."""
    x = {3: double([1.5, 2.5], [0.0, 1.0]), 1: double([0.0, 1.0], [0.0, 0.0])}
    y = {-1: double([-3.0, 0.0], [2.0, 1.0])}
    b = {2: double(-0.5, 0.0), 0: double(1.0, 0.0)}
    found = limit(lambda x, y, b: F.linear(x, y.t(), b), x, y, b, orders=1)
    assert leading(found, (0, 0)) == (0, 3.0)
