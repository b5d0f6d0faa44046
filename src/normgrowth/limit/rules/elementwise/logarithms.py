"""Rules for exponentials and logarithms."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from normgrowth.limit.dispatch import Operation, rule
from normgrowth.limit.exponentials import LOG_C, multiplied, plus, times_constant
from normgrowth.limit.power_series import (
    ZERO,
    Series,
    Term,
    combine,
    constant_series,
    from_parts,
    highest,
    product,
    without_zeros,
)
from normgrowth.limit.rules.arithmetic import add, as_series, sum_of_series
from normgrowth.limit.rules.attention.softmax import distribution
from normgrowth.limit.rules.elementwise.activations import (
    LIKE_STEP,
    Asymptotes,
    all_level,
    growing_elements,
    smooth,
    tail,
    towards,
)
from normgrowth.limit.rules.elementwise.powers import expanded, power, square
from normgrowth.limit.rules.products import accumulated

aten = torch.ops.aten


@rule("exp", "expm1", "exp2")
def exponential(operation: Operation, x: Series) -> Series:
    """exp is 0 (expm1: -1) if the argument goes to minus infinity; there is no limit if it goes to infinity.

    The error for infinite values is raised only if a result depends on them, because hand-written functions often
    discard such values.
    """
    growing = growing_elements(x)
    refusal = None
    if growing is not None:
        diverging = growing & (x.sign() > 0)
        if bool(diverging.any()):
            refusal = operation.diverges(_sources(x, diverging))
    far = float(operation(torch.full((), -torch.inf)))
    found = replace(towards(operation, x, operation, Asymptotes((0, far), (0, math.inf))), diverges=refusal)
    if not operation.context.exponentials:
        return found
    rate = math.log(2) if operation.name == "exp2" else 1.0
    part, cancelled = tail(x, 1.0, 0.0, rate), False
    if x.exponential is not None:  # exp(x + α) = exp(x) + exp(x) α
        slope = (
            add(found, as_series(1.0, found)) if operation.name == "expm1" else times_constant(found, rate)
        )
        part, cancelled = plus(part, multiplied(x.exponential, slope), found.shape)
    lost = cancelled or (x.lost and not all_level(x, LIKE_STEP)) or refusal is not None
    return replace(found, exponential=part, lost=lost)


def _sources(x: Series, where: Tensor) -> int:
    """The parameters that make these elements grow."""
    found = 0
    for term in x.terms:
        if term.degree > 0 and bool((where & (term.value > 0)).any()):
            found |= term.sources
    return found


@rule("pow")
def raised(operation: Operation, x: Any, exponent: Any) -> Series:
    """x to a constant power; a constant to the power x is exp(x log a)."""
    if isinstance(exponent, Tensor) and exponent.numel() == 1:
        exponent = float(exponent)
    if isinstance(x, Series) and not isinstance(exponent, Tensor | Series):
        if exponent == 2:
            return square(operation, x)
        return power(operation, x, exponent)
    base = None if isinstance(x, Series) else torch.as_tensor(x)
    if base is None or not isinstance(exponent, Series) or bool((base <= 0).any()):
        raise operation.refuse("an exponent that varies needs a base that is constant and positive")
    rate = as_series(base.to(exponent.top.value.dtype).log())
    exp = Operation(aten.exp.default, operation.context, arguments=operation.arguments)
    return exponential(exp, product(torch.mul, exponent, rate, operation.orders))


@rule("log", "log2", "log10")
def logarithm(operation: Operation, x: Series) -> Series:
    """The logarithm of a constant is a constant; of an exponentially small part, it is minus its decay."""
    gone = torch.zeros_like(x.top.value, dtype=torch.bool)
    if x.lost or x.exponential is not None:
        gone = x.vanishes()
    open_ = ~gone
    for term in x.terms:
        here = open_ & (term.value != 0)
        if term.degree != 0 and bool(here.any()):
            raise operation.refuse(
                f"the logarithm of a value of degree {term.degree} grows like log c, which is not a power of c"
            )
        open_ = open_ & ~here
    unit = float(operation(torch.tensor(math.e, dtype=torch.float64)))
    level = x.at(ZERO)
    level = torch.zeros_like(x.top.value) if level is None else level
    below = highest(x.rest, *(term.degree for term in x.terms if term.degree < 0))
    found = Series((Term(ZERO, operation(level), x.sources),), below)
    if not bool(gone.any()):
        here = replace(x, terms=tuple(term for term in x.terms if term.degree <= 0))
        if not here.terms or here.top.degree != 0:
            return found
        found = expanded(operation, here, found, lambda n: -unit / n * torch.pow(-level, -n))
        return found if len(found.terms) > 1 else _near_one(operation, here, found, unit)
    if x.exponential is None:
        operation.context.unranked += int(gone.sum())
        return found
    if x.lost:
        operation.context.unranked += int(gone.sum())
    decay = x.exponential.decay
    if decay.at(LOG_C) is not None:  # log(c^k exp(-d)) = k log c - d, of which the logarithm is left out
        powers = [term for term in decay.terms if term.degree != LOG_C]
        nothing = Term(ZERO, torch.zeros_like(level), 0)
        decay = without_zeros(powers or [nothing], highest(decay.rest, LOG_C))
    inside = add(times_constant(decay, -unit), Series((Term(ZERO, operation(x.exponential.weight), 0),)))
    zeros = torch.zeros_like(level)
    outside = Series((Term(ZERO, torch.where(gone, zeros, found.top.value), x.sources),), below)
    return combine(lambda a, b: torch.where(gone, a, b), inside.only(gone), outside, moves=True)


def _near_one(operation: Operation, x: Series, found: Series, unit: float) -> Series:
    """log(1 + w) = w - ...: where the leading term is 1, the lower terms lead."""
    ones = x.top.value == 1
    if (x.rest is None and len(x.terms) == 1) or not bool(ones.any()):
        return found
    if len(x.terms) == 1:
        operation.context.cancelled[operation.context.module] += int(ones.sum())
        return found
    lower = Series(x.terms[1:], highest(x.rest, 2 * x.terms[1].degree))
    return combine(lambda a, b: torch.where(ones, a, b), times_constant(lower, unit), found, moves=True)


@rule("log1p")
def logarithm_beside_one(operation: Operation, x: Series) -> Series:
    """log(1 + x); the logarithm itself where x is -1 in the limit."""
    level = x.at(ZERO)
    if growing_elements(x) is None and (level is None or not bool((level == -1).any())):
        return smooth(operation, x)
    log = Operation(aten.log.default, operation.context, arguments=operation.arguments)
    return logarithm(log, add(x, as_series(1.0, x)))


@rule("logsumexp", "special_logsumexp")
def log_sum(operation: Operation, x: Series, dim: Any, keepdim: bool = False) -> Series:
    """The largest entry plus the logarithm of the number of ties."""
    if not (count := len(x.shape)):
        return x
    dims = sorted({d % count for d in ([dim] if isinstance(dim, int) else dim)}) or list(range(count))
    outer = [d for d in range(count) if d not in dims]
    sizes = [x.shape[d] for d in outer]
    rows = x.move(lambda value: value.permute(*outer, *dims).reshape(*sizes, -1))
    shape = [1 if d in dims else n for d, n in enumerate(x.shape)] if keepdim else sizes
    found = _log_sum_of_rows(operation, rows)
    return found.move(lambda value: value.reshape(shape))


def _log_sum_of_rows(operation: Operation, x: Series) -> Series:
    if growing_elements(x) is None:
        exp, log = (Operation(f, operation.context) for f in (aten.exp.default, aten.log.default))
        level = x.at(ZERO)
        level = torch.zeros_like(x.top.value) if level is None else level
        most = level.amax(-1, keepdim=True)
        most = torch.where(most.isfinite(), most, torch.zeros_like(most))
        shifted = exponential(exp, add(x, constant_series(most), -1))
        found = logarithm(log, shifted.map(lambda value: value.sum(-1, keepdim=True)))
        return sum_of_series(operation, found, constant_series(most)).map(lambda value: value.squeeze(-1))
    shares = distribution(operation, x, -1)
    share = shares.top.value
    winner = share.argmax(-1, keepdim=True)
    several = -share.gather(-1, winner).squeeze(-1).log()
    count = Series((Term(ZERO, several, shares.sources),), shares.rest)
    found = sum_of_series(operation, _largest(x, winner, share), count)
    return replace(found, lost=True)


def _largest(x: Series, winner: Tensor, share: Tensor) -> Series:
    """The largest entry; for terms that vanish, the weighted mean over the tied entries (the derivative)."""

    def taken(term: Term) -> Tensor:
        if term.degree >= 0:
            return term.value.gather(-1, winner).squeeze(-1)
        return torch.where(share > 0, term.value * share, torch.zeros_like(share)).sum(-1)

    small = [2 * term.degree for term in x.terms if term.degree < 0]  # the next order of the logarithm
    parts = {term.degree: (taken(term), term.sources) for term in x.terms}
    return from_parts(parts, highest(x.rest, *small[:1]))


@rule("logaddexp", "logaddexp2")
def log_sum_of_two(operation: Operation, a: Any, b: Any) -> Series:
    unit = math.log(2) if operation.name == "logaddexp2" else 1.0
    a, b = (times_constant(as_series(x), unit) for x in (a, b))
    both = combine(lambda x, y: torch.stack(torch.broadcast_tensors(x, y), -1), a, b, moves=True)
    return times_constant(_log_sum_of_rows(operation, both), 1 / unit)


@rule("logcumsumexp")
def running_log_sum(operation: Operation, x: Series, dim: int) -> Series:
    logaddexp = Operation(aten.logaddexp.default, operation.context, arguments=operation.arguments)
    return accumulated(x, dim, partial(log_sum_of_two, logaddexp))


@rule("logit")
def log_odds(operation: Operation, x: Series, eps: float | None = None) -> Series:
    """log(x) - log(1 - x)."""
    if eps is not None:
        raise operation.refuse("no rule for logit with eps; clamp first")
    log = Operation(aten.log.default, operation.context, arguments=operation.arguments)
    return sum_of_series(operation, logarithm(log, x), logarithm(log, add(as_series(1.0, x), x, -1)), -1)
