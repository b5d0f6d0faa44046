"""Rules for functions of single elements: activations."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from normgrowth.limit.dispatch import Operation, rule
from normgrowth.limit.exponentials import nothing, of_product, plus, times_constant, weighted
from normgrowth.limit.power_series import (
    ZERO,
    Exponential,
    Series,
    Term,
    all_nonzero,
    by_element,
    combine,
    constant_series,
    decided,
    highest,
    product,
)
from normgrowth.limit.rules.arithmetic import add, as_series, shortened_series
from normgrowth.limit.rules.comparisons import comparison
from normgrowth.limit.rules.data_movement import choose
from normgrowth.limit.rules.elementwise.powers import count_cancelled, expanded
from normgrowth.limit.rules.reductions.lengths import modulus

aten = torch.ops.aten


@dataclass(frozen=True)
class Asymptotes:
    """The asymptotes of f on the left and right, as (slope, level); f approaches them faster than any power."""

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
    "erfc": Asymptotes((0, 2), (0, 0)),
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
    if name == "softplus" and x.top.degree > 0 and all_nonzero(x.top.value):
        found = found.changed(known_zeros=True)
    if operation.context.exponentials:
        found = _with_tail(operation, name, x, found, f, args, kwargs)
    return (found, found) if name == "log_sigmoid_forward" else found


# How functions approach their asymptotes: f(x) = asymptote + weight · exp(-rate |x|), as (weight on the left, weight on
# the right, rate). softplus with beta = 1.
TAILS = {
    "sigmoid": (1.0, -1.0, 1.0),
    "tanh": (2.0, -2.0, 2.0),
    "softplus": (1.0, 1.0, 1.0),
    "log_sigmoid_forward": (-1.0, -1.0, 1.0),
}


def _with_tail(
    operation: Operation,
    name: str,
    x: Series,
    found: Series,
    f: Callable[[Tensor], Tensor],
    args: Any,
    kwargs: Any,
) -> Series:
    """The result with its exponentially small part: how f approaches its asymptotes, and f'(x) times that of x."""
    if name == "silu":  # x sigmoid(x)
        gate = Operation(aten.sigmoid.default, operation.context)
        known = replace(x, exponential=None, lost=False)
        lost = (x.lost or x.exponential is not None) and not all_level(x, LIKE_RELU)
        return of_product(found, known, activation(gate, known)).changed(lost=lost)
    if name not in TAILS or (name == "softplus" and operation.named(args, kwargs).get("beta", 1) != 1):
        return found
    part: Exponential | None = tail(x, *TAILS[name])
    cancelled = False
    if x.exponential is not None:
        level = x.at(ZERO)
        slope = _derivative(f, torch.zeros_like(x.top.value) if level is None else level, 1)
        if (growing := growing_elements(x)) is not None:
            lines = ACTIVATIONS[name]
            slope = torch.where(growing, _by_sign(x.sign(), lines.left[0], 0.0, lines.right[0]), slope)
        part, cancelled = plus(part, weighted(x.exponential, slope), found.shape)
    return replace(
        found, exponential=part, lost=cancelled or (x.lost and not all_level(x, ACTIVATIONS[name]))
    )


def tail(x: Series, left: float, right: float, rate: float) -> Exponential:
    """The exponentially small part of f(x) for elements that grow; 0 for others."""
    if (growing := growing_elements(x)) is None:
        return nothing(x.top.value)
    sign = torch.where(growing, x.sign(), x.top.value.new_zeros(()))
    decay = replace(x.map(lambda value: value * sign * rate), lost=False)
    return Exponential(_by_sign(sign, left, 0.0, right), decay, object())


@rule("glu")
def gated(operation: Operation, x: Series, dim: int = -1) -> Series:
    half = x.shape[dim] // 2
    value, gate = (x.map(lambda v, start=start: v.narrow(dim, start, half)) for start in (0, half))
    return product(torch.mul, value, towards(operation, gate, torch.sigmoid, LIKE_STEP), operation.orders)


@rule("elu")
def elu(operation: Operation, x: Series, alpha: float = 1, scale: float = 1, inner: float = 1) -> Series:
    """elu, computed separately for positive and negative values: unless alpha is 1, it has a kink at 0."""
    sign = x.sign()
    above = x.only(sign > 0).map(lambda value: value * scale)
    below = x.only(sign < 0).map(lambda value: value * inner)
    curve = towards(operation, below, torch.expm1, Asymptotes((0, -1), (0, 0)))
    found = shortened_series(
        add(above, curve.map(lambda value: value * (alpha * scale))), operation.orders + 1
    )
    if operation.context.exponentials and x.exponential is None:
        part = tail(x, float(alpha * scale), 0.0, float(inner))
        found = replace(found, exponential=part, lost=x.lost and not all_level(x, LIKE_RELU))
    return found


@rule("celu")
def celu(operation: Operation, x: Series, alpha: float = 1) -> Series:
    return elu(operation, x, alpha, 1, 1 / alpha)


def towards(operation: Operation, x: Series, f: Callable[[Tensor], Tensor], lines: Asymptotes) -> Series:
    """f(c^k v): the asymptotes for k > 0, f itself for k = 0, the tangent at 0 for k < 0."""
    if x.top.degree > 0 and lines is LIKE_RELU and f(x.top.value.new_zeros(())) == 0:
        if len(x.terms) == 1:
            return x.map(torch.relu)
        if all_nonzero(x.top.value):
            return shortened_series(x.only(x.top.value > 0), operation.orders + 1)
    levels = [lines.left[1], float(f(x.top.value.new_zeros(()))), lines.right[1]]
    growing = growing_elements(x)
    sign = x.sign()
    if lines is LIKE_SIGN or lines is LIKE_STEP:
        count_cancelled(operation, x, x.top.degree > 0)

    def level(degree: Fraction, value: Tensor) -> dict[Fraction, Tensor]:
        if degree > 0:
            return {ZERO: _by_sign(torch.sign(value), *levels)}
        return {ZERO: f(value)} if degree == 0 else _tangent(f, degree, value)

    # Terms of the argument below degree 0 are left out of a level, but not of a slope.
    found = by_element(x, level, relative=x.terms[-1].degree <= 0 or x.rest is not None, curved=True)
    if x.top.degree == 0:
        found = expanded(operation, x, found, lambda n: _derivative(f, x.top.value, n))
    if growing is None or not (lines.left[0] or lines.right[0]):
        return found
    slope = torch.where(growing, _by_sign(sign, lines.left[0], 0.0, lines.right[0]), sign.new_zeros(()))
    line = x.map(lambda value: torch.where(slope == 0, slope, value * slope))  # -inf times 0 is 0
    return shortened_series(add(line, found), operation.orders + 1)


def _by_sign(sign: Tensor, below: float, at: float, above: float) -> Tensor:
    if below + above == 2 * at:
        return sign * ((above - below) / 2) + at
    choices = torch.tensor([below, at, above], dtype=sign.dtype, device=sign.device)
    return choices[sign.to(torch.int8).long() + 1]


def growing_elements(x: Series) -> Tensor | None:
    """Elements that grow; None if there are none."""
    found = None
    for term in x.terms:
        if term.degree > 0:
            here = term.value != 0
            found = here if found is None else found | here
    return found


def all_level(x: Series, lines: Asymptotes) -> bool:
    """Whether all elements grow toward a level: their exponentially small parts then have no effect on a function."""
    growing = growing_elements(x)
    if growing is None or not bool(growing.all()):
        return False
    return not (lines.left[0] or lines.right[0]) or not bool(
        _by_sign(x.sign(), lines.left[0], 0.0, lines.right[0]).any()
    )


def _tangent(f: Callable[[Tensor], Tensor], degree: Fraction, value: Tensor) -> dict[Fraction, Tensor]:
    """f(c^k v) for k < 0: f(0) + f'(0) c^k v."""
    origin = value.new_zeros(())
    at, slope = float(f(origin)), float(_derivative(f, origin, 1))
    parts = {ZERO: torch.full_like(value, at)} if at else {}
    return parts | ({degree: slope * value} if slope else {})


def _derivative(f: Callable[[Tensor], Tensor], at: Tensor, n: int) -> Tensor:
    """The n-th derivative divided by n!."""
    with _autograd(), torch.enable_grad():
        at = at.detach().clone().requires_grad_()
        value = f(at)
        for _ in range(n):
            (value,) = torch.autograd.grad(value.sum(), at, create_graph=True)
        return value.detach() / math.factorial(n)


def _autograd() -> Any:
    """Enable autograd inside a dispatch mode, which excludes its dispatch keys."""
    off = torch._C._dispatch_tls_local_exclude_set()
    for name in dir(torch._C.DispatchKey):
        key = getattr(torch._C.DispatchKey, name)
        if name.startswith(("Autograd", "ADInplaceOrView")) and off.has(key):
            off = off.remove(key)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), off)


@rule("relu", "abs", "leaky_relu")
def piecewise_linear(operation: Operation, x: Series, *args: Any) -> Series:
    """Functions that are homogeneous of degree 1: the sign of the leading term determines the slope of all terms."""
    if x.top.value.is_complex():
        return modulus(operation, x)
    if len(x.terms) == 1 and x.exponential is None:
        found = x.map(lambda v: operation(v, *args))
    else:
        sign = x.sign()
        slope = operation(sign, *args) * sign  # 1, -1, the slope or 0
        found = times_constant(x.only(slope != 0) if x.exponential is None else x, slope)
    exact = x.exact_zeros or (x.rest is None and not x.lost and x.exponential is None)
    if operation.name == "relu":  # what it cut off is exactly 0; what vanishes may be above 0
        exact = exact or decided([term.value for term in x.terms])
    return replace(found, exact_zeros=operation.name == "relu" and exact)


@rule("_prelu_kernel")
def learned_slope(operation: Operation, x: Any, slope: Any) -> Series:
    """prelu: x if positive, else slope · x, where the slope is a parameter and grows."""
    x = as_series(x)
    sloped = product(torch.mul, x, as_series(slope), operation.orders)
    return choose(x.sign() > 0, x, sloped)


@rule("hardshrink", "softshrink")
def shrunk(operation: Operation, x: Series, bound: float = 0.5) -> Series:
    """hardshrink and softshrink: 0 within the bound; outside it x, which softshrink moves toward 0 by the bound."""
    sign = x.sign()
    outside = comparison(Operation(aten.gt.Scalar, operation.context), times_constant(x, sign), bound)
    if operation.name == "softshrink":
        x = add(x, constant_series(sign * bound), -1)
    return choose(outside, x, as_series(0.0, x))


@rule("threshold")
def threshold(operation: Operation, x: Series, at: Any, value: Any) -> Series:
    if at != 0 or value != 0:
        raise operation.refuse("no rule for a threshold other than 0")
    return piecewise_linear(Operation(aten.relu.default, operation.context), x)


@rule("sin", "cos", "sinh", "cosh", "erfinv", "tan", "atan", "asin", "acos", "atanh")
def smooth(operation: Operation, x: Series) -> Series:
    if growing_elements(x) is not None:
        raise operation.refuse(f"has no limit that is a power of c for an input of degree {x.top.degree}")
    level = x.at(ZERO)
    if level is not None and operation.name in ("atanh", "erfinv") and bool((level.abs() >= 1).any()):
        raise operation.refuse("has no limit that is a power of c for an input of 1 or -1")
    if operation.name not in ("asin", "acos") or level is None or not bool((edge := level.abs() == 1).any()):
        return towards(operation, x, operation, LIKE_STEP)
    # The slope is infinite there: a term lower by d degrees changes the result at d/2 degrees.
    below = highest(x.rest, *(term.degree for term in x.terms if term.degree < 0))
    inside = towards(operation, x.only(~edge), operation, LIKE_STEP)
    at_edge = Series((Term(ZERO, operation(level), x.sources),), None if below is None else below / 2)
    return combine(lambda a, b: torch.where(edge, a, b), at_edge, inside, moves=True)


@rule("sign", "sgn")
def sign(_: Operation, x: Series) -> Tensor:
    return x.sign()
