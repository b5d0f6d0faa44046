"""Sums of powers of c: their algebra against plain arithmetic at one c."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from limit.growing import powers

from normgrowth.limit import Series, Term
from normgrowth.limit.dispatch import LimitMode
from normgrowth.limit.pass_log import Context
from normgrowth.limit.power_series import combine, constant_series, decided, from_parts, nonzero, product
from normgrowth.limit.rules.arithmetic import add, shortened_series

quick = settings(max_examples=settings.default.max_examples * 2 // 5, deadline=None)
EVERYTHING = 100  # orders


def series(x):
    return from_parts({Fraction(d): (v, 1) for d, v in x.items()})


def value(x, c=3.0):
    return sum(term.value * c ** float(term.degree) for term in x.terms)


@quick
@given(a=powers((2, 3)), b=powers((2, 3)))
def test_sums_and_products_lose_nothing(a, b):
    """With all orders kept, the series at c is the function at c."""
    a, b = series(a), series(b)
    torch.testing.assert_close(value(add(a, b)), value(a) + value(b))
    torch.testing.assert_close(value(add(a, b, -2)), value(a) - 2 * value(b))
    torch.testing.assert_close(value(product(torch.mul, a, b, EVERYTHING)), value(a) * value(b))
    joined = combine(lambda x, y: torch.cat([x, y]), a, b)
    torch.testing.assert_close(value(joined), torch.cat([value(a), value(b)]))


@quick
@given(a=powers((2, 3)), b=powers((2, 3)))
def test_what_is_left_out_is_below_what_is_kept(a, b):
    whole = product(torch.mul, series(a), series(b), EVERYTHING)
    short = product(torch.mul, series(a), series(b), 1)
    assert short.terms == () or len(short.terms) <= len(whole.terms)
    for kept, full in zip(short.terms, whole.terms, strict=False):
        assert kept.degree == full.degree
        torch.testing.assert_close(kept.value, full.value)
    if len(short.terms) < len(whole.terms):
        assert short.rest == whole.terms[len(short.terms)].degree


@quick
@given(a=powers((2, 3)))
def test_terms_fall_and_none_is_empty(a):
    a = series(a)
    degrees = [term.degree for term in a.terms]
    assert degrees == sorted(set(degrees), reverse=True)
    assert a.zero or all(term.value.any() for term in a.terms)


@quick
@given(a=powers((2, 3)))
def test_the_sign_is_that_at_a_large_c(a):
    assert torch.equal(series(a).sign(), torch.sign(value(series(a), 1e3)))


def test_shortened_keeps_a_term_that_some_element_leads_with():
    terms = (Term(Fraction(3), torch.tensor([1.0, 0.0]), 1), Term(Fraction(1), torch.tensor([1.0, 2.0]), 2))
    assert len(shortened_series(Series(terms), 1).terms) == 2
    full = (Term(Fraction(3), torch.tensor([1.0, 4.0]), 1), terms[1])
    assert shortened_series(Series(full), 1).rest == 1


def test_an_exact_zero_has_no_degree():
    nothing = constant_series(torch.zeros(2))
    grown = Series((Term(Fraction(5), torch.zeros(2), 1),), zero=True)
    assert nothing.zero
    assert add(nothing, grown).zero
    found = add(grown, constant_series(torch.ones(2)))
    assert found.top.degree == 0
    assert product(torch.mul, grown, constant_series(torch.ones(2)), 1).zero


def test_looks_at_all_elements():
    late = torch.zeros(1000)
    late[-1] = 1
    assert nonzero(late)
    assert not nonzero(torch.zeros(1000))
    assert decided([torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0])])
    assert not decided([torch.tensor([1.0, 0.0]), torch.tensor([5.0, 0.0])])


@pytest.mark.parametrize(
    "largest", [lambda x: x.amax(-1, keepdim=True), lambda x: x.max(-1, keepdim=True).values]
)
def test_what_is_left_of_the_largest_beside_itself_is_known(largest):
    """x - max(x) is 0 at the largest, whatever orders were left out; elsewhere a 0 may hide a lower order."""
    context = Context(1)
    mode = LimitMode(context, object())
    terms = (Term(Fraction(2), torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 4.5]]), 1),)
    with torch.no_grad(), mode:
        x = mode.attach(Series(terms, rest=Fraction(1)))
        found = x - largest(x)
        assert found.tolist() == [[-2, 0, -1], [0, -1, -0.5]]
        assert not context.cancelled
        x - x.flip(0).flip(0)
    assert sum(context.cancelled.values()) == 6


def test_a_sum_whose_leading_terms_do_not_cancel_is_known():
    """Rows of unequal degree: what was left out of one row may be above all that another row has."""
    context = Context(1)
    mode = LimitMode(context, object())
    high = Series((Term(Fraction(2), torch.tensor([1.0, 3.0, 0.0]), 1),), rest=Fraction(9))
    low = Series((Term(Fraction(2), torch.tensor([1.0, 2.0, 5.0]), 1),), rest=Fraction(1))
    with torch.no_grad(), mode:
        found = mode.lift(mode.attach(high) - mode.attach(low))
    assert found.top.value.tolist() == [0, 1, -5]
    assert sum(context.cancelled.values()) == 1  # the first: 1 - 1
