"""How fast an error vanishes as the weights grow: like a power of c, or faster than any.

What the theory says of ‖f(x; cθ)/cᵏ − limit‖ (PAPER.md's errata to Definition 3), once no attention score is near
another:

    exponential   the softness of attention alone: no biases of linear maps, no eps, no sum of unlike degrees
    c^(-2k)       eps in a norm of something of degree k; c⁻⁶ in the paper's pre-norm
    c^(-2)        a residual stream of degree 1 beside branches of degree 3: post-norm, the usual pre-norm
    c^(-1)        the bias of a linear map beside its product, one degree higher

The slowest of them wins, for c large enough. Scores that are near each other keep the error up until c tells
them apart; then it drops at once.
"""

from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ALIKE = 3  # local powers in a row that must agree for a power law
AGREE = 0.05  # to within this part
SLOWEST = 0.1  # a power; what falls less than that waits for a near tie to be decided
STEEP = 8.0  # a local power above this, still growing at the last digits, is called exponential
ROUNDING = 16.0  # units of rounding; below that an error means nothing
SETTLED = 1e-4  # an error that stays at one value below this stays there by rounding


@dataclass(frozen=True)
class Rate:
    """law: "power", "exponential" or "unsettled". power: p in c^(-p), the last local one if there is no law.

    decay: d in exp(−d‖cθ‖) between the last two scales before rounding; of use if the law is exponential.
    """

    law: str
    power: float
    decay: float

    def sentence(self) -> str:
        if self.law == "power":
            return f"falls like c^-{self.power:.1f}"
        if self.law == "exponential":
            return "falls faster than any power of c, down to rounding"
        return "has not settled at a rate: take larger scales, or more of them"


def local_powers(scales: Floats, errors: Floats) -> Floats:
    """−Δ log error / Δ log c from one scale to the next; NaN at the first."""
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = -np.diff(np.log(errors)) / np.diff(np.log(scales))
    return np.append(nan, np.where(np.isfinite(slopes), slopes, nan))


def rate(scales: Floats, norms: Floats, errors: Floats, unit: float = 2.0**-52) -> Rate:
    """The law that the errors end with. unit: that of rounding, for the dtype in which the network ran."""
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
    ends = above < len(errors)  # it got down to rounding within the scales
    steepest = float(powers[-1])
    if ends:  # the last drop, into rounding, was at least that steep
        steepest = max(
            steepest, float(np.log(errors[above - 1] / floor) / np.log(scales[above] / scales[above - 1]))
        )
    return Rate("exponential" if ends and steepest >= STEEP else "unsettled", steepest, decay)
