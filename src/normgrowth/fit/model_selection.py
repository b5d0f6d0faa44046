"""Model selection by AICc, corrected for autocorrelated residuals, and the number of points that it needs.

AICc is computed twice, because the standard one is unreliable here. `aicc` is the textbook formula,

    n·log(RSS/n) + 2K + 2K(K + 1)/(n − K − 1),     K: the number of parameters, plus 1 for the noise variance.

It assumes independent residuals. `aicc_effective` replaces the first n by the effective sample size of the
residuals, n_eff, or by k + 1 if that is more. This discounts the likelihood by the factor by which autocorrelation
widens variances, as is done for overdispersed counts (QAICc, Burnham and Anderson 2002, section 2.5). `weight` and
`best` use it. On data from `sqrt` with 104 points and noise of ρ = 0.97, the textbook AICc prefers the more general
`power` in 81% of 200 trials, the discounted one in 23%; for independent noise both do in 10%. n_eff and k, the number
of parameters, are those of the law with the smallest residual variance, because the residuals of a law that misses the
data are not noise; all nine laws are fitted for this, also those that are not compared. See `normgrowth.fit.bootstrap`.

The residuals of a fit of k parameters change sign k times, however smooth they are. So k + 1 is the smallest number of
pieces that such a fit leaves, and the weights use it where n_eff is less. It is a convention, not a measurement: such
weights rank the laws by how closely they fit, and do not test them.

With few points, the last term alone would decide, so no law is chosen. `SeriesFit.points_needed` is the required
number, 11 for all nine laws. On 196 series each of 5, 6, 7, 8 and 10 points (seven laws, noise of 0.2 and 2%, ρ = 0
and 0.9), AICc preferred the wrong law to the right one by 10 or more in 57, 24, 6, 0 and 2 series; with 12 to 30
points, in 8 of 784. Copies of points do not count. With a small n_eff, AICc seldom prefers a wrong law by much, because
the likelihood is already discounted: among 185 series of at least 12 points with n_eff below 4, never by 10. But then
`constant` can have the largest weight for a norm that rises, only because it has the fewest parameters. So with n_eff
below `points_needed` it is not chosen, and neither is another law.

If the evidence cannot decide, prediction may: `held_out_error` is the error of predicting the later half of the
points from a fit to the earlier half.
"""

from collections.abc import Collection
from dataclasses import replace
from math import isfinite, nan

import numpy as np

from normgrowth.fit.bootstrap import effective_points
from normgrowth.fit.laws import Floats
from normgrowth.fit.points import count_copies
from normgrowth.fit.result import LawFit, SeriesFit

LEAST = 5  # points for AICc: with fewer, it is defined only for `constant`, which would always win
# Upper limit for differences between the small-sample terms of laws: more would be strong evidence by itself.
SMALL_SAMPLE = 6.0


def weighed(
    name: str,
    found: dict[str, LawFit],
    others: dict[str, LawFit],
    t: Floats,
    y: Floats,
    notes: tuple[str, ...],
) -> SeriesFit:
    """Return the fits of a series with AICc and weights added. others: fits of the laws that are not compared."""
    n, copied = len(t), count_copies(y)
    steps, measured = tuple(t.tolist()), tuple(y.tolist())
    # Residuals below the resolution of the solver carry no information.
    floor = (1e-12 * y.max()) ** 2 + 1e-300 if n else nan
    fitted = {law: one for law, one in (found | others).items() if one.fitted}
    variance = {law: max(one.rmse**2, floor) for law, one in fitted.items()}
    if not any(one.fitted for one in found.values()):
        return SeriesFit(
            name=name, laws=found, steps=steps, measured=measured, points_needed=LEAST, notes=notes
        )
    closest = min(variance, key=lambda law: variance[law] * n / (n - len(fitted[law].params)))
    rho = fitted[closest].autocorrelation
    needed = points_needed([len(one.params) for one in found.values() if one.fitted or n <= len(one.params)])
    effective = effective_points(n, rho)
    counted = max(effective, len(fitted[closest].params) + 1.0)
    for law in found.keys() & variance.keys():
        K, size = len(found[law].params) + 1, variance[law]
        if n - copied >= needed:
            penalty = 2 * K + _small_sample(n, K)
            found[law] = replace(
                found[law],
                aicc=float(n * np.log(size) + penalty),
                aicc_effective=float(counted * np.log(size) + penalty),
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
    refused = best == "constant" and effective < needed
    return SeriesFit(
        name=name,
        laws=laws,
        steps=steps,
        measured=measured,
        effective_points=effective,
        weighed_points=counted,
        autocorrelation=rho,
        points_needed=needed,
        best_law=best if weights[best] > 0 and not refused else None,
        notes=notes,
    )


def points_needed(parameters: Collection[int]) -> int:
    """Return the number of points needed to choose between laws with these numbers of parameters.

    The small-sample term of AICc, 2K(K + 1)/(n − K − 1), corrects for noise that a fit absorbs. With few points it
    alone decides: with 5 points, it favors a constant over a straight line by 18, regardless of the norms.
    """
    least, most = min(parameters) + 1, max(parameters) + 1  # the noise variance is one more parameter
    n = max(LEAST, most + 2)
    while _small_sample(n, most) - _small_sample(n, least) >= SMALL_SAMPLE:
        n += 1
    return n


def _small_sample(n: int, K: int) -> float:
    return 2 * K * (K + 1) / (n - K - 1)


def _deltas(aicc: dict[str, float]) -> dict[str, float]:
    """Return the differences to the smallest value; infinite values stay infinite."""
    least = min(aicc.values())
    return {law: value - least if isfinite(value) else value for law, value in aicc.items()}


def _weights(aicc: dict[str, float]) -> dict[str, float]:
    least = min(aicc.values())
    if not isfinite(least):
        return dict.fromkeys(aicc, 0.0)
    likelihood = {law: float(np.exp((least - value) / 2)) for law, value in aicc.items()}
    total = sum(likelihood.values())
    return {law: value / total for law, value in likelihood.items()}
