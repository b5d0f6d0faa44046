"""Bootstrap: confidence intervals that allow for autocorrelated residuals, and the effective number of points.

The norm of a checkpoint depends on all earlier steps, so the residuals of a fit are autocorrelated. Treating them as
independent makes intervals too narrow and evidence too strong. Three corrections use the correlation ρ of neighbors:

- n points have an effective sample size of n_eff = n/V_n(ρ). V_m(ρ) = 1 + 2·Σ_{i<m} (1 − i/m)·ρ^i is the factor by
  which such correlation widens the variance of a mean of m points. It is at least 1; as ρ is at most 1 − 1/n, the
  smallest value for long series is e/2 = 1.36.
- Replicates draw residuals in blocks, which preserve the order inside a block (moving blocks that wrap around
  the ends, so that each residual is drawn equally often). The block length minimizes the error for such
  correlation: (6·n·ρ²/(1 − ρ²)²)^(1/3), at least 1 and at most n/3.
- Residuals are widened three times. Blocks lose the correlation beyond their ends: factor √(V_n/V_block). The
  fit absorbs part of the noise, in the form of slow waves: of the m = n_eff·V_block/block block means, k are
  lost, so the factor is √(m/(m − k)), which is √(n/(n − k)) for independent residuals. Few effective points
  estimate the spread poorly: the factor is Student's quantile for n_eff − k degrees of freedom over the normal
  quantile. m − k and n_eff − k are at least 2 (or n − k if that is less).

ρ is the rank correlation r, converted to the correlation of values by 2·sin(π·r/6), so one outlier, as step 0
often is, does not make the other points look independent. A fit of k parameters lowers ρ by (k + (k + 2)·ρ)/n,
which is added back. Neighbors are consecutive points of the series, regardless of the gap between their steps.
"""

from collections.abc import Mapping
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from normgrowth.fit.laws import BEYOND, Floats, Law
from normgrowth.fit.solver import Solution, solve

# Points per replicate: longer series are averaged over neighbors, which changes a smooth law little.
MOST_POINTS = 500


def correlation(residuals: Floats, k: int) -> float:
    """Return ρ of neighboring residuals of a fit with k parameters, from 0 to 1 − 1/n."""
    n = len(residuals)
    if n < 5 or not residuals.any():
        return 0.0
    ranks = np.argsort(np.argsort(residuals, kind="stable"), kind="stable").astype(np.float64)
    before, after = ranks[:-1] - ranks[:-1].mean(), ranks[1:] - ranks[1:].mean()
    r = 2 * np.sin(np.pi / 6 * (before @ after) / np.sqrt((before @ before) * (after @ after)))
    return float(np.clip(r + (k + (k + 2) * r) / n, 0.0, 1 - 1 / n))


def effective_points(n: int, rho: float) -> float:
    """Return the effective sample size of n residuals with correlation ρ between neighbors."""
    return n / _widening(n, rho)


def _widening(m: int, rho: float) -> float:
    lag = np.arange(1, m)
    return float(1 + 2 * ((1 - lag / m) * rho**lag).sum())


def block_length(n: int, rho: float) -> int:
    best = (6 * n * rho**2 / (1 - rho**2) ** 2) ** (1 / 3)
    return int(np.clip(np.ceil(best), 1, max(1, n // 3)))


def intervals(
    law: Law,
    t: Floats,
    params: Mapping[str, float],
    residuals: Floats,
    scale: float,
    *,
    replicates: int,
    confidence: float,
    rng: np.random.Generator,
) -> dict[str, tuple[float, float]]:
    """Return bootstrap intervals of the parameters, between two order statistics of the replicates.

    An end is open if the shape of its replicates reached a bound: 0 or infinite for the shape, and infinite for
    a parameter that diverges at this bound (such as n∞ when τ is much longer than the data).
    """
    size = -(-len(t) // MOST_POINTS)
    first = np.arange(0, len(t), size)
    counts = np.diff(np.append(first, len(t)))
    times, left = (np.add.reduceat(column, first) / counts for column in (t, residuals))
    # Use the curve at the mean time, not the mean of the curve: the two differ where the law is curved.
    y = (law.predict(times, params) + _draws(law, left, replicates, confidence, rng)) / scale
    if law.squared:
        y = np.maximum(y, 0.0)
    T = float(times[-1])
    values = law_parameters(law, solve(law, times / T, y, T), scale, T, open_ended=True)
    tail = (1 - confidence) / 2 * (replicates - 1)
    ordered = {name: np.sort(column) for name, column in values.items()}
    return {
        name: (float(column[int(np.floor(tail))]), float(column[replicates - 1 - int(np.floor(tail))]))
        for name, column in ordered.items()
    }


def _draws(
    law: Law, residuals: Floats, replicates: int, confidence: float, rng: np.random.Generator
) -> Floats:
    """Return residuals (replicates, n), drawn in blocks."""
    from scipy.special import ndtri, stdtrit

    n, k = len(residuals), len(law.params)
    rho = correlation(residuals, k)
    block = block_length(n, rho)
    independent, inside = effective_points(n, rho), _widening(block, rho)
    freedom, free = (max(count - k, min(n - k, 2)) for count in (independent, independent * inside / block))
    tail = (1 + confidence) / 2
    wider = np.sqrt((k + free) / free * _widening(n, rho) / inside)
    wider *= stdtrit(freedom, tail) / ndtri(tail)
    wide = wider * (residuals - residuals.mean())
    starts = rng.integers(0, n, (replicates, -(-n // block)))
    picks = (starts[:, :, None] + np.arange(block)).reshape(replicates, -1)[:, :n]
    return wide[picks % n]


def law_parameters(
    law: Law, solution: Solution, scale: float, T: float, *, open_ended: bool = False
) -> dict[str, Floats]:
    """Return the parameters of the law, in units of the norm and of the step."""
    unit = scale**2 if law.squared else scale
    columns = law.natural(solution.u * unit, solution.w * unit, solution.shape, T)
    values = dict(zip(law.params, columns, strict=True))
    if open_ended and law.shape:
        low, high = BEYOND
        values[law.shape] = np.where(solution.low, low, np.where(solution.high, high, values[law.shape]))
        for name, end in law.diverging.items():
            at_end = solution.low if end == "low" else solution.high & (solution.w > solution.u)
            values[name] = np.where(at_end, np.copysign(np.inf, values[name]), values[name])
    return values


def block_bootstrap_indices(count: int, seed: int, draws: int = 2000) -> NDArray[np.int64]:
    """Return indices (draws, count) of a circular block bootstrap with blocks of about √count neighbors."""
    rng = np.random.default_rng(seed)
    length = max(1, round(sqrt(count)))
    starts = rng.integers(0, count, (draws, -(-count // length), 1))
    return ((starts + np.arange(length)) % count).reshape(draws, -1)[:, :count]
