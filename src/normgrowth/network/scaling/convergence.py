"""The rate at which an error vanishes as the weights grow: a power of c, or faster than any power.

The theory predicts for ‖f(x; cθ)/cᵏ − limit‖ (PAPER.md's errata to Definition 3), if no two attention scores are close:

    exponential   only the softness of attention: no biases of linear maps, no eps, no sum of different degrees
    c^(-2k)       eps in a norm of values of degree k; c⁻⁶ in the paper's pre-norm
    c^(-2)        a residual stream of degree 1 added to branches of degree 3: post-norm, the usual pre-norm
    c^(-1)        the bias of a linear map added to a product of one degree higher

For large c the slowest rate dominates. Attention scores that are close to each other keep the error large until c
separates them; then the error drops abruptly.
"""

from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ALIKE = 3  # number of last local powers that must agree for a power law
AGREE = 0.05  # their relative tolerance
SLOWEST = 0.1  # minimum power of a power law; a slower decay means that a near tie is not yet decided
STEEP = 8.0  # an error that reaches rounding with at least this local power counts as exponential
ROUNDING = 16.0  # errors below this many units of rounding are noise
SETTLED = 1e-4  # an error that is constant below this value is rounding


@dataclass(frozen=True)
class Rate:
    """A rate of convergence. law: "power", "exponential" or "unsettled".

    power: p in c^(-p); without a power law, the last local power. decay: d in exp(−d‖cθ‖) between the last two scales
    above rounding; meaningful if the law is exponential.
    """

    law: str
    power: float
    decay: float

    def sentence(self) -> str:
        if self.law == "power":
            return f"falls like c^-{self.power:.1f}"
        if self.law == "exponential":
            return "falls faster than any power of c, down to rounding"
        return "has no settled rate: use larger values of c, or more of them"


def local_powers(scales: Floats, errors: Floats) -> Floats:
    """−Δ log error / Δ log c between consecutive scales; NaN at the first."""
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = -np.diff(np.log(errors)) / np.diff(np.log(scales))
    return np.append(nan, np.where(np.isfinite(slopes), slopes, nan))


def rate(scales: Floats, norms: Floats, errors: Floats, unit: float = 2.0**-52) -> Rate:
    """The rate at the largest scales. unit: the unit of rounding of the network's dtype."""
    good = np.isfinite(errors)
    scales, norms, errors = scales[good], norms[good], errors[good]
    last = errors[-ALIKE:]
    powers = local_powers(scales, errors)
    flat = len(errors) > ALIKE and last.max() < SETTLED and bool((np.abs(powers[-ALIKE:]) < 0.5).all())
    floor = max(ROUNDING * unit, 3 * float(last.max()) if flat else 0.0)
    above = int(np.argmax(errors <= floor)) if (errors <= floor).any() else len(errors)
    powers = powers[:above]
    if above < 2:
        return Rate("unsettled", nan, nan)
    decay = float(np.log(errors[above - 2] / errors[above - 1]) / (norms[above - 1] - norms[above - 2]))
    tail = powers[-ALIKE:]
    middle = float(np.median(tail))
    if above > ALIKE and middle > SLOWEST and np.abs(tail - middle).max() <= AGREE * middle:
        return Rate("power", middle, decay)
    ends = above < len(errors)  # the error reaches rounding within the scales
    steepest = float(powers[-1])
    if ends:  # the last drop, to rounding, is at least this steep
        steepest = max(
            steepest, float(np.log(errors[above - 1] / floor) / np.log(scales[above] / scales[above - 1]))
        )
    return Rate("exponential" if ends and steepest >= STEEP else "unsettled", steepest, decay)
