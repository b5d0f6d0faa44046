"""Model selection by AICc, corrected for autocorrelated residuals, and the number of points that it needs.

The evidence is computed twice, because the usual one cannot be trusted here. `aicc` is the textbook's,

    n·log(RSS/n) + 2K + 2K(K + 1)/(n − K − 1),     K the parameters and the variance of the noise,

which takes the residuals for independent. `aicc_effective` puts the number n_eff of independent points
that the residuals are worth in place of the first n: the likelihood is discounted by the factor by which
autocorrelation widens variances, as is done for overdispersed counts (QAICc, Burnham and Anderson 2002,
section 2.5). `weight` and `best` rest on it. On data from `sqrt` with 104 points and noise of ρ = 0.97, the
textbook's AICc prefers `power`, which contains it, in 81 % of 200 trials, the discounted one in 23 %; for
independent noise both do in 10 %. n_eff is that of the law with the least residual variance among those
fitted: in a law that misses the data, what is left is not noise. See `normgrowth.fit.bootstrap`.

With few points the last term decides alone, and nothing is chosen: `SeriesFit.points_needed` says how many it takes,
11 for all nine laws. On 196 series each of 5, 6, 7, 8 and 10 points (seven laws, noise of 0.2 and 2 %, ρ = 0 and 0.9)
the wrong law was preferred to the right one by 10 or more in 57, 24, 6, 0 and 2; on 12 to 30 points in 8 of 784. Few
effective points need no such rule, as the likelihood is discounted already: of 185 series of 12 or more points that
were worth four at most, it was in none.

What evidence cannot decide, prediction may: `held_out_error` is how far the later half of the points lies from a
fit to the earlier half.
"""

from collections.abc import Collection
from dataclasses import replace
from math import isfinite, nan

import numpy as np

from normgrowth.fit.bootstrap import effective_points
from normgrowth.fit.laws import Floats
from normgrowth.fit.result import LawFit, SeriesFit

LEAST = 5  # points for AICc: with fewer it is defined for `constant` only, which would always win
# The small-sample terms of laws that compete may differ by less: more is strong evidence by itself.
SMALL_SAMPLE = 6.0


def weighed(name: str, found: dict[str, LawFit], t: Floats, y: Floats, notes: tuple[str, ...]) -> SeriesFit:
    """The laws of a series with AICc and weights."""
    n = len(t)
    steps, measured = tuple(t.tolist()), tuple(y.tolist())
    # Residuals below the resolution of the solver carry no information.
    floor = (1e-12 * y.max()) ** 2 + 1e-300 if n else nan
    variance = {law: max(one.rmse**2, floor) for law, one in found.items() if one.fitted}
    if not variance:
        return SeriesFit(
            name=name, laws=found, steps=steps, measured=measured, points_needed=LEAST, notes=notes
        )
    closest = min(variance, key=lambda law: variance[law] * n / (n - len(found[law].params)))
    rho = found[closest].autocorrelation
    needed = points_needed([len(one.params) for one in found.values() if one.fitted or n <= len(one.params)])
    effective = effective_points(n, rho, len(found[closest].params))
    for law, size in variance.items():
        K = len(found[law].params) + 1
        if n >= needed:
            penalty = 2 * K + _small_sample(n, K)
            found[law] = replace(
                found[law],
                aicc=float(n * np.log(size) + penalty),
                aicc_effective=float(effective * np.log(size) + penalty),
            )
    plain, own = (
        {law: getattr(one, key) for law, one in found.items()} for key in ("aicc", "aicc_effective")
    )
    deltas, deltas_effective = _deltas(plain), _deltas(own)
    weights_independent, weights = _weights(plain), _weights(own)
    laws = {
        law: replace(
            one,
            delta_aicc=deltas[law],
            weight_independent=weights_independent[law],
            delta_effective=deltas_effective[law],
            weight=weights[law],
        )
        for law, one in found.items()
    }
    best = max(laws, key=lambda law: weights[law])
    return SeriesFit(
        name=name,
        laws=laws,
        steps=steps,
        measured=measured,
        effective_points=effective,
        autocorrelation=rho,
        points_needed=needed,
        best_law=best if weights[best] > 0 else None,
        notes=notes,
    )


def points_needed(parameters: Collection[int]) -> int:
    """The number of points needed to choose between laws with these numbers of parameters.

    The small-sample term of AICc, 2K(K + 1)/(n − K − 1), is there for noise that a fit took up. With few points it
    decides alone: of 5, it puts a constant 18 before a straight line, whatever the norms are.
    """
    least, most = min(parameters) + 1, max(parameters) + 1  # the variance of the noise is one more
    n = max(LEAST, most + 2)
    while _small_sample(n, most) - _small_sample(n, least) >= SMALL_SAMPLE:
        n += 1
    return n


def _small_sample(n: int, K: int) -> float:
    return 2 * K * (K + 1) / (n - K - 1)


def _deltas(aicc: dict[str, float]) -> dict[str, float]:
    """The differences to the smallest; infinite ones stay infinite."""
    least = min(aicc.values())
    return {law: value - least if isfinite(value) else value for law, value in aicc.items()}


def _weights(aicc: dict[str, float]) -> dict[str, float]:
    least = min(aicc.values())
    if not isfinite(least):
        return dict.fromkeys(aicc, 0.0)
    likelihood = {law: float(np.exp((least - value) / 2)) for law, value in aicc.items()}
    total = sum(likelihood.values())
    return {law: value / total for law, value in likelihood.items()}
