"""Tensors that grow, and what mpmath says of a function of them: evaluated at two huge c, element by element."""

from fractions import Fraction

import mpmath
import torch
from hypothesis import strategies as st

from normgrowth.limit import Series, Term
from normgrowth.limit.dispatch import LimitMode
from normgrowth.limit.pass_log import Context
from normgrowth.limit.power_series import constant_series

mpmath.mp.dps = (
    240  # terms of degree -9 beside ones of degree 9 at the larger c, and what cancels between them
)
NEAR, FAR = mpmath.mpf(2) ** 27, mpmath.mpf(2) ** 40  # powers of two, so that what cancels is exactly 0
COEFFICIENTS = [0.0, 0.0, 1.0, -1.0, 2.0, -0.5, 0.75, -3.0, 1.5, 2.5]

Powers = dict[int, torch.Tensor]  # degree -> coefficients


@st.composite
def powers(draw, shape, degrees=(-2, -1, 0, 1, 2, 3), most=3, coefficients=COEFFICIENTS):
    """A sum of powers of c, with exact zeros sprinkled in."""
    chosen = draw(st.lists(st.sampled_from(degrees), min_size=1, max_size=most, unique=True))
    size = int(torch.Size(shape).numel())
    values = st.lists(st.sampled_from(coefficients), min_size=size, max_size=size)
    return {d: torch.tensor(draw(values), dtype=torch.float64).reshape(shape) for d in chosen}


def limit(f, *inputs, orders=1, context=None):
    """f of inputs that grow (Powers) or do not (anything else), by the rules; a Series, or what f returns.

    As `Limit` does, once more with three orders if a leading term was cancelled.
    """
    context = context or Context(orders)
    mode = LimitMode(context, object())
    with torch.no_grad(), mode:
        result = f(*(hung(mode, x) if isinstance(x, dict) else x for x in inputs))
    if context.cancelled and orders < 3:
        return limit(f, *inputs, orders=3)
    if isinstance(result, tuple):
        return tuple(mode.lift(r) for r in result)
    return mode.lift(result)


def hung(mode, x):
    terms = tuple(Term(Fraction(d), x[d].clone(), 1) for d in sorted(x, reverse=True))
    return mode.attach(Series(terms))


def leading(found, place):
    """(degree, coefficient) of one element; (None, 0) of an exact zero."""
    found = found if isinstance(found, Series) else constant_series(found)
    for term in found.terms:
        if (value := float(term.value[place])) != 0:
            return (None, value) if found.zero else (term.degree, value)
    return None, 0.0


def at(x, c):
    """The elements of Powers, or of a plain tensor, as mpmath numbers in nested lists of the same shape."""
    if not isinstance(x, dict):
        return nested(x, lambda v: mpmath.mpf(float(v)))
    shape = next(iter(x.values())).shape
    flat = [mpmath.fsum(mpmath.mpf(float(x[d].flatten()[i])) * c**d for d in x) for i in range(shape.numel())]
    return reshaped(flat, shape)


def nested(tensor, f):
    return [nested(t, f) for t in tensor] if tensor.dim() else f(tensor)


def reshaped(flat, shape):
    if len(shape) == 0:
        return flat[0]
    step = len(flat) // shape[0] if shape[0] else 0
    return [reshaped(flat[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


def places(values, place=()):
    if not isinstance(values, list):
        yield place, values
    else:
        for i, value in enumerate(values):
            yield from places(value, (*place, i))


def power_of(near, far):
    """(degree, coefficient) of a function whose values at the two c these are; what vanishes faster is 0."""
    if abs(far) < FAR**-40:
        return None, 0.0
    if mpmath.isinf(far):
        return None, float(far)
    assert near != 0, "no power of c"
    slope = mpmath.log(abs(far / near)) / mpmath.log(FAR / NEAR)
    degree = Fraction(round(float(slope) * 12), 12)
    assert abs(slope - float(degree)) < 1e-6, f"no power of c: {slope}"
    return degree, float(far / FAR ** (mpmath.mpf(degree.numerator) / degree.denominator))


def expect(found, reference, *inputs, tolerance=1e-9, zero=0.0):
    """Leading coefficient and degree of every element of `found` are those of the reference, a function of lists.

    zero: what rounding may leave of an element that is exactly 0.
    """
    near, far = (reference(*(at(x, c) for x in inputs)) for c in (NEAR, FAR))
    others = dict(places(near))
    for place, value in places(far):
        degree, coefficient = power_of(others[place], value)
        got_degree, got = leading(found, place)
        said = f"at {place}: {got} c^{got_degree}, mpmath says {coefficient} c^{degree}; {found}"
        if degree is None and abs(got) <= zero:
            continue
        assert got_degree == degree or mpmath.isinf(coefficient), said
        assert got == coefficient or abs(got - coefficient) <= tolerance * abs(coefficient), said


def each(f):
    """A reference for elements: f of numbers, applied through nested lists."""

    def apply(*values):
        if isinstance(values[0], list):
            return [apply(*items) for items in zip(*values, strict=True)]
        return f(*values)

    return apply
