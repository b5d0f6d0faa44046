"""Rules for sums and products."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

from normgrowth.limit.dispatch import Operation, rule
from normgrowth.limit.exponentials import element_product, of_sum, times_constant
from normgrowth.limit.limit_findings import FINITE_MASK, PassFinding, finite_mask
from normgrowth.limit.pass_log import Sum
from normgrowth.limit.power_series import (
    ZERO,
    Series,
    Term,
    all_nonzero,
    broadcast_shape,
    constant_series,
    decided,
    hides,
    highest,
    infinite,
    masked,
    nonzero,
    product,
    with_all_orders,
    without_zeros,
)

Entering = Sequence[tuple[Fraction, Callable[[], Tensor]]]


def as_series(value: Any, like: Series | None = None) -> Series:
    """Any value as a series; a number gets the dtype and the device of `like`."""
    if isinstance(value, Series):
        return value
    if not isinstance(value, Tensor):
        top = None if like is None else like.top.value
        floating = top is not None and (top.is_floating_point() or top.is_complex())
        dtype = top.dtype if top is not None and floating else None
        zero = value == 0
        value = torch.full((), value, dtype=dtype, device=None if top is None else top.device)
        return Series((Term(ZERO, value, 0),), zero=zero)
    return constant_series(value)


def infinite_part(x: Series) -> Tensor | None:
    """A tensor with the infinite elements of a constant, including masks, and 0 elsewhere; None if all are finite."""
    return infinite(x.top.value) if x.is_constant and not x.top.sources else None


# --- sums ----------------------------------------------------------------------------------------------------
def add(a: Series, b: Series, alpha: Any = 1, masks: bool = True) -> Series:
    """The sum: terms of equal degree are added, others are kept as separate terms. Infinite elements stay infinite.

    masks: False if neither argument has a mask or another infinite element.
    """
    if alpha != 1:
        b = times_constant(b, alpha)
    shape = broadcast_shape(a.shape, b.shape)
    dtype = torch.result_type(a.top.value, b.top.value)
    for x, y in ((a, b), (b, a)) if masks else ():
        if (edge := infinite_part(y)) is not None:
            hidden = edge != 0
            open_ = add(x, constant_series(y.top.value.masked_fill(hidden, 0.0)))
            top = open_.top.value + edge
            lower = [replace(t, value=t.value.masked_fill(hidden, 0.0)) for t in open_.terms[1:]]
            return replace(open_, terms=(replace(open_.top, value=top), *lower), zero=False)
    if a.zero or b.zero:
        return of_sum(_fitted(b if a.zero else a, shape, dtype), a, b)
    found = _fitted(without_zeros(_side_by_side(a.terms, b.terms), highest(a.rest, b.rest)), shape, dtype)
    scales = b.scales if a.scales is None else a.scales
    if a.doubt or b.doubt or scales is not None:
        found = found.changed(doubt=a.doubt or b.doubt, scales=scales)
    return of_sum(found, a, b)


def _side_by_side(a: tuple[Term, ...], b: tuple[Term, ...]) -> list[Term]:
    """The terms of both in descending degree; terms of equal degree are added."""
    found: list[Term] = []
    place = 0
    for term in a:
        while place < len(b) and b[place].degree > term.degree:
            found.append(b[place])
            place += 1
        if place < len(b) and b[place].degree == term.degree:
            other = b[place]
            term = Term(term.degree, term.value + other.value, term.sources | other.sources)
            place += 1
        found.append(term)
    return [*found, *b[place:]]


def _fitted(x: Series, shape: torch.Size, dtype: torch.dtype) -> Series:
    for term in x.terms:
        if term.value.shape != shape or term.value.dtype != dtype:
            return x.move(lambda value: value.to(dtype).expand(shape))
    return x


def sum_of_series(operation: Operation, a: Series, b: Series, alpha: Any = 1) -> Series:
    """A sum in the network; records sums of unequal degrees."""
    masks = may_mask(a) or may_mask(b)
    log_unequal_sum(operation, a, b, masks)
    if masks:
        find_finite_mask(operation, a, b if alpha == 1 else times_constant(b, alpha))
    found = add(a, b, alpha, masks or alpha != 1)
    if found.rest is not None:
        _count_cancelled(operation, a, b, found)
    return shortened_series(found, operation.orders + 2)


def may_mask(x: Series) -> bool:
    """Whether a constant has values that may be a mask, exact or finite, or infinite; one scan for all checks."""
    if x.top.sources or x.zero or not x.is_constant:
        return False
    value = x.top.value
    if not value.is_floating_point() or not value.numel():
        return False
    least, most = torch.aminmax(value)
    return float(least) <= FINITE_MASK or float(most) >= -FINITE_MASK


def find_finite_mask(operation: Operation, a: Series, b: Series) -> None:
    """Record a constant that looks like a mask but is finite, and is added to a growing value."""
    for x, y in ((a, b), (b, a)):
        if x.top.degree > 0 and not x.zero and y.is_constant and not y.top.sources and not y.zero:
            hidden = masked(y.top.value)
            value = y.top.value if hidden is None else y.top.value.masked_fill(hidden, 0.0)
            if (found := finite_mask(value)) is not None:
                finding = PassFinding("finite_mask", operation.context.module, x.top.degree, value=found)
                operation.context.find(finding)


def _count_cancelled(operation: Operation, a: Series, b: Series, found: Series) -> None:
    """Count leading terms that cancel to 0 although the next order may have been left out: more orders are needed.

    If leading terms do not cancel, their sum is the leading term, because omitted orders are lower.
    """
    degrees = sorted({term.degree for x in (a, b) if not x.zero for term in x.terms}, reverse=True)

    def entered(degree: Fraction) -> Tensor:
        values = [value != 0 for x in (a, b) if (value := x.at(degree)) is not None]
        return reduce(torch.logical_or, values).expand(found.shape)

    lost = cancelled_sums(found, [(degree, partial(entered, degree)) for degree in degrees])
    if lost is not None and (count := open_ties(lost, a, b)):
        operation.context.cancelled[operation.context.module] += count


def count_cancelled_sums(operation: Operation, found: Series, entering: Entering) -> None:
    """Count elements of a sum whose leading terms cancel to 0 although an omitted order may remain."""
    lost = cancelled_sums(found, entering)
    if lost is not None and (count := int(lost.sum())):
        operation.context.cancelled[operation.context.module] += count


def cancelled_sums(found: Series, entering: Entering) -> Tensor | None:
    """Elements of a sum whose leading terms cancel to 0 although an omitted order may remain; None if there are none.

    entering: degrees in descending order, each with a function that returns the elements of the sum that nonzero terms
    of this degree are added to.
    """
    rest = found.rest
    if rest is None or not entering or (found.top.degree == entering[0][0] and all_nonzero(found.top.value)):
        return None
    open_ = torch.ones_like(found.top.value, dtype=torch.bool)
    for term in found.terms:
        if term.degree > rest:
            open_ &= term.value == 0
    cancelled = torch.zeros_like(open_)
    for degree, entered in entering:
        if not bool(open_.any()):
            break
        here = open_ & (entered() != 0)
        value = found.at(degree)
        cancelled |= here if value is None else here & (value == 0)
        open_ &= ~here
    return cancelled


def indicators(x: Series) -> dict[Fraction, Tensor]:
    """1 for elements with a term of a degree, else 0."""
    return {} if x.zero else {term.degree: (term.value != 0).to(torch.float32) for term in x.terms}


def open_ties(equal: Tensor, a: Any, b: Any) -> int:
    """The number of equal values; for values minus their own maximum (keepdim), one per group is no tie.

    An argument with fewer dimensions, such as a bias, is not the maximum of a group.
    """
    count = int(equal.sum())
    if not count:
        return 0
    for x in (a, b):
        if isinstance(x, Series):
            missing = equal.dim() - len(x.shape)
            dims = [
                d + missing for d, size in enumerate(x.shape) if size == 1 and equal.shape[d + missing] > 1
            ]
            if dims:
                return count - int(equal.any(dims[0]).sum() if len(dims) == 1 else equal.amax(dims).sum())
    return count


def log_unequal_sum(operation: Operation, a: Series, b: Series, masks: bool = True) -> None:
    """Record a sum of unequal degrees. masks: False if neither argument has a mask."""
    if a.top.degree == b.top.degree or a.zero or b.zero:
        return
    high, low = (a.top, b.top) if a.top.degree > b.top.degree else (b.top, a.top)
    value = low.value
    if low.sources or (bool(((value != 0) & ~hides(value)).any()) if masks else nonzero(value)):
        context = operation.context
        run = max(context.entered[context.module] - 1, 0)
        context.sums.append(Sum(context.module, high.degree, low.degree, high.sources, low.sources, run))


def shortened_series(x: Series, most: int) -> Series:
    """The first `most` terms, or more if some elements have no term among them."""
    while len(x.terms) > most and decided([term.value for term in x.terms[:-1]]):
        x = x.changed(terms=x.terms[:-1], rest=highest(x.rest, x.terms[-1].degree))
    return x


@rule("add", unfinished=True)
def addition(operation: Operation, a: Any, b: Any, *, alpha: Any = 1) -> Series:
    a, b = both(a, b)
    x, y = (b, a) if a.unfinished is None else (a, b)
    if alpha == 1 and x.unfinished is not None:
        found = x.unfinished.plus(x, with_all_orders(y))
        if found is not None:
            return found
    return sum_of_series(operation, with_all_orders(a), with_all_orders(b), alpha)


@rule("sub")
def subtraction(operation: Operation, a: Any, b: Any, *, alpha: Any = 1) -> Series:
    a, b = both(a, b)
    return sum_of_series(operation, a, b, -alpha)


@rule("rsub")
def reversed_subtraction(operation: Operation, a: Any, b: Any, alpha: Any = 1) -> Series:
    a, b = both(a, b)
    return sum_of_series(operation, b, a, -alpha)


def both(a: Any, b: Any) -> tuple[Series, Series]:
    if isinstance(a, Series):
        return a, as_series(b, a)
    return as_series(a, b), b


# --- products ------------------------------------------------------------------------------------------------
@rule("mul", unfinished=True)
def multiplication(operation: Operation, a: Any, b: Any) -> Series:
    for x, y in ((a, b), (b, a)):
        if not isinstance(y, Series):
            return scaled_series(x, y)
    a, b = with_all_orders(a), with_all_orders(b)
    found = element_product(operation.orders, a, b)
    exact = (a.exact_zeros and bool(b.top.value.all())) or (b.exact_zeros and bool(a.top.value.all()))
    if exact or a.doubt or b.doubt:
        return found.changed(doubt=a.doubt or b.doubt, exact_zeros=exact)
    return found


def scaled_series(x: Series, factor: Any) -> Series:
    """The series times a constant factor; terms keep their degrees, and terms that become 0 are dropped."""
    found = times_constant(x, factor)
    if nonzero(factor) if isinstance(factor, Tensor) else factor:
        return found
    return Series(found.terms[:1], None, zero=True)


@rule("addcmul")
def add_product(operation: Operation, x: Any, a: Any, b: Any, *, value: Any = 1) -> Series:
    a, b = as_series(a), as_series(b)
    whole = len(a.terms) * len(b.terms)  # all orders, because the sum may cancel leading terms
    return sum_of_series(operation, as_series(x), product(torch.mul, a, b, whole), value)


@rule("lerp")
def interpolation(operation: Operation, start: Any, end: Any, weight: Any) -> Series:
    start, end = as_series(start), as_series(end)
    if not isinstance(weight, Series):  # linear in start and end, so no order is left out
        return sum_of_series(operation, scaled_series(start, 1 - weight), scaled_series(end, weight))
    difference = sum_of_series(operation, end, start, -1)
    step = product(torch.mul, difference, as_series(weight, difference), operation.orders)
    return sum_of_series(operation, start, step)
