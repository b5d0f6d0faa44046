"""Sums, products and ratios of parts that are smaller than any power of c.

    sigmoid(x) = 1 - exp(-x) + ...        if x grows: weight -1, decay x

In a sum, the part with the slowest decay remains. If two parts have the same decay, their weights add.

A power of c in front of an exponential is a part of its decay: c^k exp(-d) = exp(-(d - k log c)). The logarithm grows
slower than every power, so its term has the degree LOG_C, which is smaller than the degree of any network.
"""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from normgrowth.limit.power_series import (
    ZERO,
    Exponential,
    Series,
    Term,
    combine,
    from_parts,
    highest,
    incomplete,
    nonzero,
    product,
    rest_below,
    with_all_orders,
)

LOG_C = Fraction(1, 1 << 40)  # the degree that stands for log c in a decay
ROUNDING = 64  # weights whose sum is at most this many units of rounding cancel


def nothing(like: Tensor) -> Exponential:
    return Exponential(torch.zeros_like(like), Series((Term(ZERO, torch.zeros_like(like), 0),), zero=True))


def broadcast(part: Exponential, shape: torch.Size) -> Exponential:
    return replace(
        part, weight=part.weight.expand(shape), decay=part.decay.move(lambda value: value.expand(shape))
    )


def weighted(part: Exponential, factor: Any) -> Exponential:
    weight = part.weight * factor
    return (
        broadcast(replace(part, weight=weight), weight.shape)
        if weight.shape != part.weight.shape
        else replace(part, weight=weight)
    )


def times_constant(x: Series, factor: Any) -> Series:
    """The series times a constant factor; exact zeros stay exact."""
    unfinished = None
    if x.unfinished is not None:
        if not isinstance(factor, Tensor) or factor.dim() == 0:
            unfinished = x.unfinished.times(float(factor))
        if unfinished is None:
            x = with_all_orders(x)
    found = x.map(lambda value: value * factor)
    found.unfinished = unfinished  # safe: `found` is new and not shared
    if x.exact_zeros and not isinstance(factor, Tensor):
        found = found.changed(exact_zeros=True)
    if (scales := x.scales) is not None and (not isinstance(factor, Tensor) or factor.numel() == 1):
        scales = {degree: scale * abs(float(factor)) for degree, scale in scales.items()}
        found = found.changed(scales=scales)
    if x.exponential is None:
        return found
    return found.changed(exponential=weighted(x.exponential, factor), lost=x.lost)


def _chosen(first: Tensor, a: Series, b: Series) -> Series:
    return combine(lambda x, y: torch.where(first, x, y), a, b)


def plus(a: Exponential | None, b: Exponential | None, shape: torch.Size) -> tuple[Exponential | None, bool]:
    """The part with the slower decay, element by element; of equal decays, the sum.

    Decays are equal if all growing terms are; a difference of degree 0 is a factor. Also returns whether the sum of
    some elements is not known: their parts cancel, so that a part with a faster decay would remain, or an omitted order
    decides which part is slower.
    """
    if a is None or b is None:
        kept = b if a is None else a
        return (None if kept is None else broadcast(kept, shape)), False
    a, b = broadcast(a, shape), broadcast(b, shape)
    difference = combine(lambda x, y: x - y, a.decay, b.decay)
    later, level = _growing(difference).sign(), difference.at(ZERO)
    level = torch.zeros_like(a.weight) if level is None else level
    first = (b.weight == 0) | ((a.weight != 0) & ((later < 0) | ((later == 0) & (level <= 0))))
    present = (a.weight != 0) & (b.weight != 0)
    both = present & (later == 0)
    mine, other = a.weight * torch.exp(-level.clamp(min=0)), b.weight * torch.exp(level.clamp(max=0))
    total = mine + other
    gone = total.abs() <= ROUNDING * torch.finfo(total.dtype).eps * torch.maximum(mine.abs(), other.abs())
    weight = torch.where(both, total.masked_fill(gone, 0.0), torch.where(first, a.weight, b.weight))
    if (unknown := _unknown_order(difference, a.decay, b.decay)) is not None:
        weight = weight.masked_fill(present & unknown, 0.0)
    decay = _chosen(first, a.decay, b.decay)
    lower = [t.degree for t in difference.terms if t.degree < 0 and nonzero(t.value.masked_fill(~both, 0.0))]
    if lower:
        decay = decay.changed(rest=highest(decay.rest, lower[0]))
    return Exponential(weight, decay), bool((present & (weight == 0)).any())


def _unknown_order(difference: Series, a: Series, b: Series) -> Tensor | None:
    """Elements of which an omitted order may decide the slower of two decays; None if there are none."""
    if difference.rest is None or difference.rest < 0:
        return None
    equal = _growing(difference).vanishes()
    return equal | incomplete(difference, a, b)


def _growing(decay: Series) -> Series:
    """The terms of a decay that grow, including log c."""
    terms = tuple(term for term in decay.terms if term.degree > 0)
    return (
        replace(decay, terms=terms) if terms else Series((Term(ZERO, torch.zeros_like(decay.top.value), 0),))
    )


def of_sum(found: Series, a: Series, b: Series) -> Series:
    """The sum `found` of a and b with its exponentially small part added."""
    lost = a.lost or b.lost
    if found.exponential is a.exponential is b.exponential is None:
        return found if found.lost == lost else found.changed(lost=lost)
    part, cancelled = plus(a.exponential, b.exponential, found.shape)
    return found.changed(exponential=part, lost=lost or cancelled)


def leading_values(x: Series) -> Tensor:
    """The leading coefficient of each element; 0 if it has none."""
    found = x.top.value
    for term in x.terms[1:]:
        found = torch.where(found == 0, term.value, found)
    return found


def leading_degrees(x: Series) -> Tensor:
    """The degree of each element; 0 if it has no term."""
    found = torch.zeros_like(x.top.value)
    for term in reversed(x.terms):
        found = torch.where(term.value != 0, float(term.degree), found)
    return found


def multiplied(part: Exponential, by: Series) -> Exponential:
    """The part times the leading order of a series. The next, 1 + w/c = exp(w/c), is an omitted order of the decay."""
    found = weighted(part, leading_values(by))
    degrees = [term.degree for term in by.terms]
    gaps = [low - high for high, low in pairwise(degrees)]
    gaps += [rest - degree for degree in degrees if (rest := rest_below(by, degree)) is not None]
    if gaps:
        found = replace(found, decay=found.decay.changed(rest=highest(found.decay.rest, *gaps)), origin=None)
    powers = leading_degrees(by)
    if not bool(powers.any()):
        return found
    log_c = Series((Term(LOG_C, -powers.expand(found.weight.shape), 0),))
    return replace(found, decay=combine(lambda x, y: x + y, found.decay, log_c), origin=None)


def element_product(orders: int, a: Series, b: Series) -> Series:
    """The product of each element, with its exponentially small part."""
    found = product(torch.mul, a, b, orders)
    if found.rest is not None and found.rest >= found.top.degree and nonzero(found.top.value):
        found.rest = rest_below(
            found, found.top.degree
        )  # no sum, so leading terms cannot cancel; in place is safe: nothing else refers to `found`
    return of_product(found, a, b)


def of_product(found: Series, a: Series, b: Series) -> Series:
    """The product with its exponentially small part: (A + α)(B + β) = AB + αB + Aβ + αβ."""
    if a.exponential is None and b.exponential is None:
        lost = a.lost or b.lost
        return found if found.lost == lost else found.changed(lost=lost)
    part, lost = None, a.lost or b.lost
    for x, y in ((a, b), (b, a)):
        if x.exponential is not None:
            part, cancelled = plus(part, multiplied(x.exponential, y), found.shape)
            lost = lost or cancelled
    if a.exponential is not None and b.exponential is not None:
        decay = combine(lambda x, y: x + y, a.exponential.decay, b.exponential.decay)
        both = Exponential(a.exponential.weight * b.exponential.weight, decay)
        part, cancelled = plus(part, both, found.shape)
        lost = lost or cancelled
    return found.changed(exponential=part, lost=lost)


def summed_over(part: Exponential, dims: list[int], keep: bool) -> tuple[Exponential, bool, Tensor]:
    """The sum over some dimensions: the parts with the slowest decay, added.

    Decays are equal if all growing terms are; differences of degree 0 are factors. Also returns whether several parts
    have the slowest decay although an order of it was left out, and the sums that cancel.
    """
    order = [d for d in range(part.weight.dim()) if d not in dims] + dims
    outer = [part.weight.shape[d] for d in order[: len(order) - len(dims)]]

    def rows(value: Tensor) -> Tensor:
        return value.permute(order).reshape(*outer, -1)

    weight, terms = rows(part.weight), [rows(term.value) for term in part.decay.terms]
    slowest, level = weight != 0, torch.zeros_like(weight)
    rest, open_ = part.decay.rest, False
    for term, value in zip(part.decay.terms, terms, strict=True):
        if rest is not None and rest >= max(term.degree, ZERO) and bool((slowest.sum(-1) > 1).any()):
            open_ = True
        if term.degree > 0:
            least = value.masked_fill(~slowest, float("inf")).amin(-1, keepdim=True)
            slowest = slowest & (value <= least)
        elif term.degree == 0:
            level = value
    level = level.masked_fill(~slowest, float("inf"))
    place = level.argmin(-1, keepdim=True)
    shape = [1 if d in dims else size for d, size in enumerate(part.weight.shape)] if keep else outer
    factors = torch.exp(level.gather(-1, place) - level).masked_fill(~slowest, 0.0)
    total = (weight * factors).sum(-1)
    size = (weight * factors).abs().amax(-1)
    total = total.masked_fill(total.abs() <= ROUNDING * torch.finfo(total.dtype).eps * size, 0.0)
    kept = tuple(
        replace(term, value=value.gather(-1, place).squeeze(-1).reshape(shape))
        for term, value in zip(part.decay.terms, terms, strict=True)
    )
    several = slowest.sum(-1) > 1
    cancelled = (slowest.any(-1) & (total == 0)).reshape(shape)
    if bool(several.any()):
        open_ = open_ or (rest is not None and rest >= 0)
        rest = highest(rest, *(term.degree for term in part.decay.terms if term.degree < 0))
    origin = None if open_ else part.origin
    return (
        Exponential(total.reshape(shape), replace(part.decay, terms=kept, rest=rest), origin),
        open_,
        cancelled,
    )


def ratio(a: Exponential, b: Exponential, shape: torch.Size) -> tuple[Series, Tensor, Tensor]:
    """α/β where both vanish; the elements where it is unbounded, and those that an omitted order may decide."""
    a, b = broadcast(a, shape), broadcast(b, shape)
    slower = combine(lambda x, y: x - y, a.decay, b.decay)
    weight = torch.where(b.weight != 0, a.weight / b.weight, torch.zeros_like(a.weight))
    sign, sources = torch.zeros_like(weight), 0  # the parameters of terms that decide some element
    for term in slower.terms:
        if term.degree >= 0 and bool(((sign == 0) & (term.value != 0)).any()):
            sources |= term.sources
        if term.degree > LOG_C:
            sign = torch.where(sign == 0, torch.sign(term.value), sign)
    level, log_c = slower.at(ZERO), slower.at(LOG_C)
    size = weight if level is None else weight * torch.exp(-level)
    value = torch.where(sign == 0, size, torch.zeros_like(size))
    parts = {ZERO: (value, sources)}
    if log_c is not None:
        powers = torch.where(value != 0, -log_c, torch.zeros_like(log_c))
        parts = {
            Fraction(power).limit_denominator(1 << 16): (
                value.masked_fill(powers != power, 0.0),
                sources,
            )
            for power in powers.unique().tolist()
        }
    part = Exponential(torch.where(sign > 0, weight, torch.zeros_like(weight)), slower)
    growing = (sign < 0) & (weight != 0)
    unknown = _unknown_order(slower, a.decay, b.decay)
    if unknown is not None and a.origin is not None and a.origin is b.origin:
        unknown &= ~slower.vanishes()
    unknown = torch.zeros_like(growing) if unknown is None else unknown & (weight != 0)
    below = highest(*(term.degree for term in slower.terms if term.degree < 0), slower.rest)
    rest = None if below is None or bool(unknown.any()) else max(parts) + below
    return from_parts(parts, rest).changed(exponential=part), growing, unknown
