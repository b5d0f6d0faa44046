"""Rules for functions of single elements: powers and activations."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from normgrowth.network.asymptotics.arithmetic import add, series, shortened
from normgrowth.network.asymptotics.exponentials import nothing, of_product, ratio, times
from normgrowth.network.asymptotics.mode import Operation, rule
from normgrowth.network.asymptotics.series import (
    ZERO,
    Exponential,
    Series,
    Term,
    by_element,
    combine,
    constant,
    highest,
    product,
)


# --- powers --------------------------------------------------------------------------------------------------
def power(operation: Operation, x: Series, exponent: float | Fraction) -> Series:
    """(c^k v)^p = c^(kp) v^p; lower orders by the binomial series."""
    p = Fraction(exponent).limit_denominator(1 << 16)
    if p == 0:
        return series(torch.ones_like(x.top.value))
    if p < 0 and x.zero:
        raise operation.refuse("divides by an exact zero")
    _cancelled(operation, x, p < 0)

    def f(degree: Fraction, value: Tensor) -> dict[Fraction, Tensor]:
        return {degree * p: torch.pow(value, float(p))}

    found = by_element(x, f)
    return expanded(operation, x, found, lambda n: _binomial(p, n) * torch.pow(x.top.value, float(p) - n))


def _binomial(p: Fraction, n: int) -> float:
    return float(math.prod((p - i for i in range(n)), start=Fraction(1)) / math.factorial(n))


def expanded(operation: Operation, x: Series, found: Series, derivative: Callable[[int], Tensor]) -> Series:
    """Taylor's series in the lower terms w: f(v + w) = f(v) + f'(v) w + ..., where one leading term holds everywhere.

    derivative(n) is the n-th derivative at v, over n!.
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
    return shortened(Series(total.terms, rest), operation.orders)


def _cancelled(operation: Operation, x: Series, matters: bool) -> None:
    """A leading term that came to 0 where a lower one was left out: the limit there is not known."""
    if matters and x.rest is not None:
        nothing = torch.ones_like(x.top.value, dtype=torch.bool)
        for term in x.terms:
            nothing &= term.value == 0
        if count := int(nothing.sum()):
            operation.context.cancelled[operation.context.module] += count


@rule("pow")
def raised(operation: Operation, x: Any, exponent: Any) -> Series:
    if isinstance(exponent, Tensor) and exponent.numel() == 1:
        exponent = float(exponent)
    if not isinstance(x, Series) or isinstance(exponent, Tensor | Series):
        raise operation.refuse("an exponent that grows, or that differs from element to element")
    if exponent == 2:
        return product(torch.mul, x, x, operation.orders)
    return power(operation, x, exponent)


@rule("square")
def square(operation: Operation, x: Series) -> Series:
    return product(torch.mul, x, x, operation.orders)


@rule("sqrt")
def square_root(operation: Operation, x: Series) -> Series:
    return power(operation, x, Fraction(1, 2))


@rule("rsqrt")
def inverse_square_root(operation: Operation, x: Series) -> Series:
    return power(operation, x, Fraction(-1, 2))


@rule("reciprocal")
def reciprocal(operation: Operation, x: Series) -> Series:
    return power(operation, x, -1)


@rule("div", "true_divide")
def division(operation: Operation, a: Any, b: Any, *, rounding_mode: str | None = None) -> Series:
    if rounding_mode is not None:
        raise operation.refuse("rounding has no limit")
    if not isinstance(b, Series):
        return times(a, 1 / b)
    a = series(a, b)
    gone = b.vanishes() if b.lost or b.exponential is not None else None
    if gone is not None and bool(gone.any()):
        return _divided_by_vanishing(operation, a, b, gone)
    found = product(torch.mul, a, power(operation, b, -1), operation.orders)
    return of_product(found, a, replace(b, terms=(replace(b.top, value=1 / b.top.value),), exponential=None))


def _divided_by_vanishing(operation: Operation, a: Series, b: Series, gone: Tensor) -> Series:
    """Where a divisor is smaller than any power of c, so is what it divides, and the ratio has a limit."""
    one = torch.ones_like(b.top.value)
    safe = combine(lambda x, y: torch.where(gone, y, x), replace(b, exponential=None), constant(one))
    found = product(torch.mul, a, power(operation, safe, -1), operation.orders)
    if b.exponential is None:
        operation.context.unranked += int(gone.sum())
        return found.map(lambda value: value.masked_fill(gone, float("nan")))
    shape = found.shape
    wide = gone.expand(shape)
    numerator = a.exponential or nothing(a.top.value)
    inside, growing = ratio(numerator, b.exponential, shape)
    if bool((wide & (growing | ~a.vanishes().expand(shape))).any()):
        raise operation.refuse("divides by a value that falls faster than any power of c")
    left = of_product(found, a, safe) if a.exponential is not None else found
    return replace(
        combine(lambda x, y: torch.where(wide, x, y), inside, left, moves=True), lost=a.lost or b.lost
    )


# --- activations ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Asymptotes:
    """The straight lines that f comes to, faster than any power: slope and level far to the left and right."""

    left: tuple[float, float]
    right: tuple[float, float]


LIKE_RELU = Asymptotes((0, 0), (1, 0))
LIKE_SIGN = Asymptotes((0, -1), (0, 1))
LIKE_STEP = Asymptotes((0, 0), (0, 1))
ACTIVATIONS: dict[str, Asymptotes] = {
    "gelu": LIKE_RELU,
    "silu": LIKE_RELU,
    "mish": LIKE_RELU,
    "hardswish": LIKE_RELU,
    "softplus": LIKE_RELU,
    "log_sigmoid_forward": Asymptotes((1, 0), (0, 0)),
    "tanh": LIKE_SIGN,
    "erf": LIKE_SIGN,
    "sigmoid": LIKE_STEP,
    "hardsigmoid": LIKE_STEP,
}


@rule(*ACTIVATIONS)
def activation(operation: Operation, x: Series, *args: Any, **kwargs: Any) -> Any:
    name = operation.name

    def f(value: Tensor) -> Tensor:
        found = operation(value, *args, **kwargs)
        return found[0] if isinstance(found, tuple) else found

    found = towards(operation, x, f, ACTIVATIONS[name])
    if operation.context.exponentials and name in TAILS:
        found = replace(found, exponential=_tail(x, *TAILS[name]), lost=x.lost)
    return (found, found) if name == "log_sigmoid_forward" else found


# How a function comes to its limits: f(x) = limit ∓ weight · exp(-rate |x|) on the right and the left.
TAILS = {"sigmoid": (1.0, 1.0), "tanh": (2.0, 2.0)}


def _tail(x: Series, weight: float, rate: float) -> Exponential:
    """Of elements that grow; others have none."""
    growing = _leads_above_zero(x)
    sign = x.sign() if growing is None else torch.where(growing, x.sign(), x.top.value.new_zeros(()))
    if growing is None:
        return nothing(x.top.value)
    return Exponential(-weight * sign, replace(x.map(lambda value: value * sign * rate), lost=False))


@rule("glu")
def gated(operation: Operation, x: Series, dim: int = -1) -> Series:
    half = x.shape[dim] // 2
    value, gate = (x.map(lambda v, start=start: v.narrow(dim, start, half)) for start in (0, half))
    return product(torch.mul, value, towards(operation, gate, torch.sigmoid, LIKE_STEP), operation.orders)


@rule("elu")
def elu(operation: Operation, x: Series, alpha: float = 1, scale: float = 1, inner: float = 1) -> Series:
    """Either side by itself: unless alpha is 1 they meet at 0 in a kink, where there is no one tangent."""
    sign = x.sign()
    above = x.only(sign > 0).map(lambda value: value * scale)
    below = x.only(sign < 0).map(lambda value: value * inner)
    curve = towards(operation, below, torch.expm1, Asymptotes((0, -1), (0, 0)))
    return shortened(add(above, curve.map(lambda value: value * (alpha * scale))), operation.orders + 1)


def towards(operation: Operation, x: Series, f: Callable[[Tensor], Tensor], lines: Asymptotes) -> Series:
    """f(c^k v): on its asymptotes for k > 0, itself for k = 0, its tangent at 0 for k < 0."""
    if x.top.degree > 0 and len(x.terms) == 1 and lines is LIKE_RELU and f(x.top.value.new_zeros(())) == 0:
        return x.map(torch.relu)
    levels = [lines.left[1], float(f(x.top.value.new_zeros(()))), lines.right[1]]
    growing = _leads_above_zero(x)
    sign = x.sign()
    if lines is LIKE_SIGN or lines is LIKE_STEP:
        _cancelled(operation, x, x.top.degree > 0)

    def level(degree: Fraction, value: Tensor) -> dict[Fraction, Tensor]:
        if degree > 0:
            return {ZERO: _by_sign(torch.sign(value), *levels)}
        return {ZERO: f(value)} if degree == 0 else _tangent(f, degree, value)

    # What is carried of the argument below degree 0 is left out of a level, but not of a slope.
    found = by_element(x, level, relative=x.terms[-1].degree <= 0 or x.rest is not None, curved=True)
    if x.top.degree == 0:
        found = expanded(operation, x, found, lambda n: _derivative(f, x.top.value, n))
    if growing is None or not (lines.left[0] or lines.right[0]):
        return found
    slope = torch.where(growing, _by_sign(sign, lines.left[0], 0.0, lines.right[0]), sign.new_zeros(()))
    return shortened(add(x.map(lambda value: value * slope), found), operation.orders + 1)


def _by_sign(sign: Tensor, below: float, at: float, above: float) -> Tensor:
    choices = torch.tensor([below, at, above], dtype=sign.dtype, device=sign.device)
    return choices[sign.to(torch.int8).long() + 1]


def _leads_above_zero(x: Series) -> Tensor | None:
    """Elements that grow; None if there are none."""
    found = None
    for term in x.terms:
        if term.degree > 0:
            here = term.value != 0
            found = here if found is None else found | here
    return found


def _tangent(f: Callable[[Tensor], Tensor], degree: Fraction, value: Tensor) -> dict[Fraction, Tensor]:
    """f(c^k v) for k < 0: f(0) + f'(0) c^k v."""
    origin = value.new_zeros(())
    at, slope = float(f(origin)), float(_derivative(f, origin, 1))
    parts = {ZERO: torch.full_like(value, at)} if at else {}
    return parts | ({degree: slope * value} if slope else {})


def _derivative(f: Callable[[Tensor], Tensor], at: Tensor, n: int) -> Tensor:
    """The n-th derivative, over n!."""
    with _autograd(), torch.enable_grad():
        at = at.detach().clone().requires_grad_()
        value = f(at)
        for _ in range(n):
            (value,) = torch.autograd.grad(value.sum(), at, create_graph=True)
        return value.detach() / math.factorial(n)


def _autograd() -> Any:
    """Inside a dispatch mode autograd is off, keys and all; here it is on."""
    off = torch._C._dispatch_tls_local_exclude_set()
    for name in dir(torch._C.DispatchKey):
        key = getattr(torch._C.DispatchKey, name)
        if name.startswith(("Autograd", "ADInplaceOrView")) and off.has(key):
            off = off.remove(key)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), off)


@rule("relu", "abs", "leaky_relu")
def piecewise_linear(operation: Operation, x: Series, *args: Any) -> Series:
    """Homogeneous of degree 1: the sign of the leading term decides for all."""
    sign = x.sign()
    factor = operation(sign, *args) * sign  # 1, -1, the slope or 0
    found = times(x, factor) if len(x.terms) > 1 else x.map(lambda v: operation(v, *args))
    if x.exponential is not None:
        found = replace(times(x, factor), terms=found.terms)
    return replace(found, exact_zeros=operation.name == "relu")


@rule("threshold")
def threshold(operation: Operation, x: Series, at: Any, value: Any) -> Series:
    if at != 0 or value != 0:
        raise operation.refuse("a threshold other than 0 has no rule")
    return piecewise_linear(Operation(torch.ops.aten.relu.default, operation.context), x)


@rule("exp", "expm1", "exp2")
def exponential(operation: Operation, x: Series) -> Series:
    """Where the argument goes to minus infinity nothing is left, or -1; where to infinity there is no limit."""
    growing = _leads_above_zero(x)
    if growing is not None and bool((growing & (x.sign() > 0)).any()):
        raise operation.refuse("grows faster than any power of c")
    far = float(operation(torch.full((), -torch.inf)))
    found = towards(operation, x, operation, Asymptotes((0, far), (0, 0)))
    if not operation.context.exponentials:
        return found
    rate = math.log(2) if operation.name == "exp2" else 1.0
    part = nothing(x.top.value) if growing is None else _tail(x, 1.0, rate)
    return replace(found, exponential=replace(part, weight=part.weight.abs()), lost=x.lost)


@rule("sin", "cos", "log1p", "sinh", "cosh", "erfinv", "tan", "atan", "asin")
def smooth(operation: Operation, x: Series) -> Series:
    if x.top.degree > 0 and not x.zero:
        raise operation.refuse(f"has no limit, or no power of c for a size, at degree {x.top.degree}")
    return towards(operation, x, operation, LIKE_STEP)


@rule("log", "log2", "log10")
def logarithm(operation: Operation, x: Series) -> Series:
    """Of a constant, a constant; of what is exponentially small, minus its decay."""
    gone = (
        x.vanishes()
        if x.lost or x.exponential is not None
        else torch.zeros_like(x.top.value, dtype=torch.bool)
    )
    leading = x.terms if x.zero else tuple(t for t in x.terms if bool(((t.value != 0) & ~gone).any()))
    if any(term.degree != 0 for term in leading):
        degree = next(term.degree for term in leading if term.degree != 0)
        raise operation.refuse(f"of a value of degree {degree} grows like log c, which is no power of c")
    level = x.at(ZERO)
    level = torch.zeros_like(x.top.value) if level is None else level
    found = Series((Term(ZERO, operation(level), x.sources),), x.rest)
    if not bool(gone.any()):
        return found
    if x.exponential is None:
        operation.context.unranked += int(gone.sum())
        return found
    unit = float(operation(torch.tensor(math.e, dtype=torch.float64)))
    inside = add(times(x.exponential.decay, -unit), Series((Term(ZERO, operation(x.exponential.weight), 0),)))
    outside = Series(
        (Term(ZERO, torch.where(gone, torch.zeros_like(level), found.top.value), x.sources),), x.rest
    )
    return combine(lambda a, b: torch.where(gone, a, b), inside.only(gone), outside, moves=True)


@rule("sign", "sgn")
def sign(_: Operation, x: Series) -> Tensor:
    return x.sign()
