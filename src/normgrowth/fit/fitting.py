"""Fit the laws to series: least squares, confidence intervals, the error of predicting the later half.

`normgrowth.fit.fit` is the public function; which law the evidence prefers is decided in `model_selection`.
"""

from collections.abc import Iterator, Sequence
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from normgrowth.errors import InputError
from normgrowth.fit.bootstrap import correlation, intervals, law_parameters
from normgrowth.fit.laws import LAWS, Floats, Law
from normgrowth.fit.model_selection import weighed
from normgrowth.fit.norm_series import NormSeries, read_data
from normgrowth.fit.points import clean, real_numbers
from normgrowth.fit.result import Fits, LawFit, SeriesFit, tabulated
from normgrowth.fit.solver import solve
from normgrowth.moments.levels import MATRICES
from normgrowth.records import Records
from normgrowth.results import Provenance, Result
from normgrowth.text import number


def fit_data(
    data: Result | Records | Path | str | Sequence[Any] | ArrayLike,
    norms: ArrayLike | None,
    *,
    level: str,
    quantity: str,
    laws: Sequence[str] | str | None,
    from_step: float | None,
    to_step: float | None,
    bootstrap: int,
    confidence: float,
    seed: int,
) -> Fits:
    """Fit laws to series; see `normgrowth.fit.fit` for the parameters."""
    chosen = _chosen(laws)
    _check(bootstrap, confidence, seed)
    given = read_data(data, norms, level=level, quantity=quantity)

    def fitted(series: NormSeries) -> SeriesFit:
        return fit_series(_between(series, from_step, to_step), chosen, bootstrap, confidence, seed)

    found = {name: fitted(series) for name, series in given.series.items()}
    matrices = None if given.matrices is None else fitted(given.matrices)
    if not any(law.fitted for series in found.values() for law in series.values()):
        reason = next(iter(next(iter(found.values())).values())).reason
        raise InputError(f"{f'{given.source}: ' if given.source else ''}no law can be fitted: {reason}")
    layers = {name: series.layer for name, series in given.series.items()}
    records = tabulated(given.run, given.level, found, layers)
    if matrices is not None:
        records = Records.joined([records, tabulated(given.run, "part", {MATRICES: matrices}, {})])
    return Fits(
        records=records,
        series=found,
        matrices=matrices,
        source=given.source,
        notes=given.notes,
        parameters=given.parameters,
        level=given.level,
        quantity=quantity,
        from_step=from_step,
        to_step=to_step,
        bootstrap=bootstrap,
        confidence=confidence,
        seed=seed,
        provenance=Provenance.now(),
    )


def fit_series(
    series: NormSeries, laws: Sequence[Law], bootstrap: int, confidence: float, seed: int
) -> SeriesFit:
    """Fit all chosen laws to one series."""
    t, y, notes = clean(series.steps, series.values)
    found, others = {}, {}
    for index, law in enumerate(LAWS.values()):
        # Each law has its own random stream, so that its intervals do not depend on the other laws.
        rng = np.random.default_rng([seed, index])
        if law in laws:
            found[law.name] = _one(law, t, y, bootstrap, confidence, rng)
        else:  # the effective sample size does not depend on which laws are chosen
            others[law.name] = _one(law, t, y, 0, confidence, rng)
    return weighed(series.name, found, others, t, y, notes)


def _between(series: NormSeries, first: float | None, last: float | None) -> NormSeries:
    """Return the points between two steps, inclusive."""
    if first is None and last is None:
        return series
    t, y = real_numbers(series.steps, series.values)
    low, high = -inf if first is None else first, inf if last is None else last
    kept = ~((t < low) | (t > high))  # a NaN step is kept here and dropped later, with a note
    return NormSeries(series.name, t[kept], y[kept], series.layer)


def _check(bootstrap: int, confidence: float, seed: int) -> None:
    if not 0 < confidence < 1:
        raise InputError(f"confidence must be between 0 and 1, got {confidence:g}")
    if seed < 0:
        raise InputError(f"seed must be >= 0, got {seed}")
    if bootstrap and bootstrap < (least := int(np.ceil(2 / (1 - confidence)))):
        raise InputError(
            f"a confidence of {confidence:g} needs at least {least} bootstrap replicates, got {bootstrap}"
        )


def _chosen(laws: Sequence[str] | str | None) -> list[Law]:
    names = list(LAWS) if laws is None else [laws] if isinstance(laws, str) else list(laws)
    for name in names:
        if name not in LAWS:
            raise InputError(f"unknown law {name!r}; known: {', '.join(LAWS)}")
    if not names:
        raise InputError(f"no law to fit; known: {', '.join(LAWS)}")
    return [LAWS[name] for name in names]


def _same(y: Floats) -> bool:
    return bool(np.ptp(y) <= 8 * np.finfo(float).eps * y.max())


def _one(law: Law, t: Floats, y: Floats, replicates: int, confidence: float, rng: Any) -> LawFit:
    """Fit one law to one series; its weight is computed later, when all laws are fitted."""
    n, k = len(t), len(law.params)
    reason = ""
    if n <= k:
        reason = f"too few points for {k} parameter{'' if k == 1 else 's'}: {n}"
    elif law.shape and _same(y):
        reason = f"the norms are constant, so {law.shape} is undetermined"
    if reason:
        return LawFit(law.name, law.formula, dict.fromkeys(law.params, nan), reason=reason)
    scale, T = float(y.max()) or 1.0, float(t[-1])
    solution = solve(law, t / T, y[None] / scale, T)
    params = {name: float(column[0]) for name, column in law_parameters(law, solution, scale, T).items()}
    curve = law.predict(t, params)
    off = y - curve
    spread = ((y - y.mean()) ** 2).sum()
    found: dict[str, tuple[float, float]] = {}
    if replicates:
        found = intervals(law, t, params, off, scale, replicates=replicates, confidence=confidence, rng=rng)
        # The interval always contains the estimate, even if the replicates are skewed.
        at = law_parameters(law, solution, scale, T, open_ended=True)
        found = {
            name: (min(low, float(at[name][0])), max(high, float(at[name][0])))
            for name, (low, high) in found.items()
        }
    bound = [law.shape] if solution.low[0] or solution.high[0] else []
    bound += [
        law.edges[i] for i, value in enumerate((solution.u, solution.w)) if law.squared and value[0] == 0
    ]
    return LawFit(
        law.name,
        law.formula,
        params,
        found,
        r2=nan if _same(y) else max(0.0, float(1 - (off @ off) / spread)),
        rmse=float(np.sqrt(off @ off / n)),
        held_out_error=_held_out_error(law, t, y),
        autocorrelation=correlation(off, k),
        converged=bool(solution.converged[0]),
        at_bound=tuple(bound),
        notes=tuple(_remarks(law, params, found, bound, bool(solution.converged[0]))),
    )


def _remarks(
    law: Law,
    params: dict[str, float],
    found: dict[str, tuple[float, float]],
    bound: list[str],
    converged: bool,
) -> Iterator[str]:
    if not converged:
        yield "the search did not converge"
    for name in bound:
        yield f"{name} is at its bound, {number(params[name], 4)}"
    low, high = found.get(law.shape, (nan, nan))
    if low == 0 and high == inf:
        yield f"these data do not determine {law.shape}"
    elif low == 0 or high == inf:
        yield f"these data give no {'lower' if low == 0 else 'upper'} bound for {law.shape}"


def _held_out_error(law: Law, t: Floats, y: Floats) -> float:
    half = len(t) // 2
    if half <= len(law.params) or not y[:half].any() or (law.shape and _same(y[:half])):
        return nan
    scale, T = float(y[:half].max()), float(t[half - 1])
    early = law_parameters(law, solve(law, t[:half] / T, y[None, :half] / scale, T), scale, T)
    off = y[half:] - law.predict(t[half:], {name: float(column[0]) for name, column in early.items()})
    level = y[half:].mean()
    return float(np.sqrt((off**2).mean()) / level) if level > 0 else nan
