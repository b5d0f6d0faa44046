"""Rules for powers, roots and division."""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import torch
from torch import Tensor

from normgrowth.limit.dispatch import Operation, rule
from normgrowth.limit.exponentials import element_product, multiplied, nothing, ratio, times_constant
from normgrowth.limit.power_series import (
    Exponential,
    Series,
    Term,
    all_nonzero,
    by_element,
    combine,
    constant_series,
    highest,
    product,
    with_all_orders,
)
from normgrowth.limit.rules.arithmetic import add, as_series, shortened_series


def power(operation: Operation, x: Series, exponent: float | Fraction) -> Series:
    """(c^k v)^p = c^(kp) v^p, with lower orders from the binomial series."""
    p = _rational(exponent)
    if p == 0:
        return as_series(torch.ones_like(x.top.value))
    if p < 0 and x.zero and not x.lost and x.exponential is None:
        raise operation.refuse("division by an exact zero")
    count_cancelled(operation, x, p < 0)

    def f(degree: Fraction, value: Tensor) -> dict[Fraction, Tensor]:
        return {degree * p: torch.pow(value, float(p))}

    found = by_element(x, f)
    found = expanded(operation, x, found, lambda n: _binomial(p, n) * torch.pow(x.top.value, float(p) - n))
    found.known_zeros = x.known_zeros  # in place: nothing else refers to `found` yet
    if x.exponential is None:
        return found.changed(lost=True) if x.lost else found
    return found.changed(exponential=_small_part(x, x.exponential, p), lost=x.lost)


def _small_part(x: Series, part: Exponential, p: Fraction) -> Exponential:
    """The small part of x^p: (w exp(-d))^p where x has no power of c, else p x^(p-1) w exp(-d)."""
    gone = x.vanishes()
    decay = part.decay.map(lambda value: torch.where(gone, value * float(p), value))
    ones = constant_series(torch.ones_like(x.top.value))
    safe = combine(lambda a, b: torch.where(gone, a, b), ones, replace(x, exponential=None))
    slope = by_element(safe, lambda degree, value: {degree * (p - 1): torch.pow(value, float(p - 1))})
    found = multiplied(Exponential(float(p) * part.weight, decay), slope)
    return replace(found, weight=torch.where(gone, torch.pow(part.weight, float(p)), found.weight))


@cache
def _rational(exponent: float | Fraction) -> Fraction:
    return Fraction(exponent).limit_denominator(1 << 16)


def _binomial(p: Fraction, n: int) -> float:
    return float(math.prod((p - i for i in range(n)), start=Fraction(1)) / math.factorial(n))


def expanded(operation: Operation, x: Series, found: Series, derivative: Callable[[int], Tensor]) -> Series:
    """Add the Taylor series in the lower terms w, f(v + w) = f(v) + f'(v) w + ..., if all elements have one degree.

    derivative(n) is the n-th derivative at v divided by n!.
    """
    if operation.orders == 1 or len(x.terms) == 1 or len(found.terms) > 1 or bool((x.top.value == 0).any()):
        return found
    w = Series(x.terms[1:], x.rest)
    first = w.top.degree - x.top.degree
    total, powers = Series(found.terms), w
    for n in range(1, operation.orders):
        powers = powers if n == 1 else product(torch.mul, powers, w, operation.orders)
        slope = Series((Term(found.top.degree - n * x.top.degree, derivative(n), x.top.sources),))
        total = add(total, product(torch.mul, slope, powers, operation.orders))
    rest = highest(total.rest, found.top.degree + operation.orders * first)
    return shortened_series(Series(total.terms, rest), operation.orders)


def count_cancelled(operation: Operation, x: Series, matters: bool) -> None:
    """Count leading terms that are 0 although a lower term was omitted: the limit is then unknown."""
    if matters and x.rest is not None and not all_nonzero(x.top.value):
        nothing = torch.ones_like(x.top.value, dtype=torch.bool)
        for term in x.terms:
            nothing &= term.value == 0
        if count := int(nothing.sum()):
            operation.context.cancelled[operation.context.module] += count


@rule("square")
def square(operation: Operation, x: Series) -> Series:
    return element_product(operation.orders, x, x)


@rule("sqrt")
def square_root(operation: Operation, x: Series) -> Series:
    return power(operation, x, Fraction(1, 2))


@rule("rsqrt")
def inverse_square_root(operation: Operation, x: Series) -> Series:
    return power(operation, x, Fraction(-1, 2))


@rule("reciprocal")
def reciprocal(operation: Operation, x: Series) -> Series:
    return power(operation, x, -1)


@rule("div", "true_divide", unfinished=True)
def division(operation: Operation, a: Any, b: Any, *, rounding_mode: str | None = None) -> Series:
    if rounding_mode is not None:
        raise operation.refuse("no rule for division with rounding")
    if not isinstance(b, Series):
        return times_constant(a, 1 / b)
    a, b = with_all_orders(as_series(a, b)), with_all_orders(b)
    gone = b.vanishes() if b.lost or b.exponential is not None else None
    if gone is not None and bool(gone.any()):
        return _divided_by_vanishing(operation, a, b, gone)
    return element_product(operation.orders, a, power(operation, b, -1))


def _divided_by_vanishing(operation: Operation, a: Series, b: Series, gone: Tensor) -> Series:
    """The ratio where divisor and dividend are both smaller than any power of c."""
    one = torch.ones_like(b.top.value)
    safe = combine(lambda x, y: torch.where(gone, y, x), b, constant_series(one), moves=True)
    found = element_product(operation.orders, a, power(operation, safe, -1))
    if b.exponential is None:
        operation.context.unranked += int(gone.sum())
        return found.map(lambda value: value.masked_fill(gone, float("nan")))
    if any(x.lost and not x.lost_beside for x in (a, b)):
        if b.exponential.decay.rest is None:
            operation.context.unranked += int(gone.sum())
        else:
            operation.context.doubtful += int(gone.sum())
    shape = found.shape
    wide = gone.expand(shape)
    numerator = a.exponential or nothing(a.top.value)
    inside, growing, unknown = ratio(numerator, b.exponential, shape)
    operation.context.doubtful += int((wide & unknown).sum())
    if bool((wide & (growing | ~a.vanishes().expand(shape))).any()):
        raise operation.refuse("division by a value that vanishes faster than any power of c")
    return combine(lambda x, y: torch.where(wide, x, y), inside, found, moves=True)
