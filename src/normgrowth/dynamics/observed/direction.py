"""Direction: does θ/‖θ‖ converge?

The paper concludes from cos(θ_t, θ_{t+1}) → 1 that the direction converges (§3, §4). This does not follow: a random
walk in many dimensions shows the same. What matters is how fast the angles fall. If the angle of an interval of h
steps obeys angle²/h ∝ t^(−q), then

    q ≤ 1      even the squared angles have no finite sum: no convergence, unless later turns undo earlier ones
    1 < q ≤ 2  convergence if the turns of intervals are independent, none if all have the same direction
    q > 2      the angles have a finite sum: convergence

Misaligned dynamics with η = 1/√t have q = 1. The cosine of θ_t with θ_{t/2} needs no exponent: it tends to
1 if the direction converges, and stays below 1 if the direction keeps turning with each doubling of time.
"""

from dataclasses import dataclass
from math import nan
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from normgrowth.dynamics.observed.intervals import Floats, Steps, intervals_of
from normgrowth.fit.bootstrap import block_bootstrap_indices
from normgrowth.records import Records
from normgrowth.text import one_line

ROUNDING = 1e-8  # radians: smaller angles are rounding errors


@dataclass(frozen=True)
class Lag:
    """Cosines between checkpoints `lag` places apart."""

    lag: int
    steps: tuple[int, ...]  # of the later checkpoint
    earlier: tuple[int, ...]
    cosine: tuple[float, ...]


@dataclass(frozen=True)
class Direction:
    """How the direction of the weights moves.

    steps, angle, total: the end of each interval, its angle in radians, and the angles summed so far. The
    sum is a lower bound of the total turn: between checkpoints the direction may turn back and forth.
    q, low, high: angle²/h ∝ t^(−q) over the last decade of steps, with a 95% confidence interval; NaN if
    there are too few intervals.
    lags: cosines at increasing lags, for the lags in the trace. doubled: cosines of θ_t with θ_{t/2}.
    """

    __repr__ = one_line

    steps: tuple[int, ...]
    angle: tuple[float, ...]
    total: tuple[float, ...]
    q: float
    low: float
    high: float
    lags: tuple[Lag, ...]
    doubled: Lag
    verdict: Literal["turns on", "converges", "undecided"]


def direction(records: Records, *, level: str = "model", name: str | None = None) -> Direction:
    """Return angles, their sum, and cosines at increasing lags, for the model or one part of it."""
    rows = intervals_of(records, level, name)
    marks = rows.series("norm", level=level)[0]
    ends, angle = rows.series("angle", level=level)
    start = marks[np.searchsorted(marks, ends) - 1]
    total = np.nancumsum(angle)
    q, low, high = _exponent((start + ends) / 2, angle, ends - start)
    lags = _lags(rows, marks, level)
    doubled = _doubled(lags)
    verdict = "turns on" if high < 1 else "converges" if low > 2 else "undecided"
    return Direction(
        tuple(ends.tolist()),
        tuple(angle.tolist()),
        tuple(total.tolist()),
        q,
        low,
        high,
        lags,
        doubled,
        verdict,
    )


def _lags(rows: Records, marks: Steps, level: str) -> tuple[Lag, ...]:
    """Return the cosines to the previous checkpoint and to earlier ones, nearest first."""
    found: dict[int, str] = {}
    for reference in rows.where(quantity="cosine").distinct("reference"):
        lag = "1" if reference == "previous" else str(reference).removeprefix("lag")
        if lag.isdigit():
            found.setdefault(int(lag), reference)
    lags = []
    for lag, reference in sorted(found.items()):
        later, cosine = rows.series("cosine", level=level, reference=reference)
        earlier = marks[np.searchsorted(marks, later) - lag]
        lags.append(Lag(lag, tuple(later.tolist()), tuple(earlier.tolist()), tuple(cosine.tolist())))
    return tuple(lags)


def _exponent(t: Floats, angle: Floats, h: NDArray[np.integer]) -> tuple[float, float, float]:
    """Return q of angle²/h ∝ t^(−q) and its interval, by least squares in logarithms over the last decade of steps."""
    good = (t > 0) & (angle > ROUNDING) & (t >= t.max(initial=0.0) / 10)
    if good.sum() < 6:
        return nan, nan, nan
    x, y = np.log(t[good]), np.log(angle[good] ** 2 / h[good])

    def slope(index: NDArray[np.integer]) -> Floats:
        a = x[index] - x[index].mean(axis=-1, keepdims=True)
        return -(a * y[index]).sum(axis=-1) / (a * a).sum(axis=-1)

    # Resample residuals in blocks instead of points, because a sample of points may miss the early ones.
    q = float(slope(np.arange(len(x))))
    residual = y - y.mean() + q * (x - x.mean())
    drawn = residual[block_bootstrap_indices(len(x), seed=0)]
    a = x - x.mean()
    spread = -((drawn - drawn.mean(axis=-1, keepdims=True)) @ a) / (a @ a)
    low, high = np.quantile(q + spread, [0.025, 0.975])
    return q, float(low), float(high)


def _doubled(lags: tuple[Lag, ...]) -> Lag:
    """Return for each step the cosine with the checkpoint nearest to half of that step, within 10%."""
    best: dict[int, tuple[float, int, float]] = {}
    for lag in lags:
        for step, earlier, cosine in zip(lag.steps, lag.earlier, lag.cosine, strict=True):
            miss = abs(2 * earlier / step - 1)
            if miss <= 0.1 and np.isfinite(cosine) and miss < best.get(step, (1.0, 0, nan))[0]:
                best[step] = (miss, earlier, cosine)
    steps = tuple(sorted(best))
    return Lag(0, steps, tuple(best[step][1] for step in steps), tuple(best[step][2] for step in steps))
