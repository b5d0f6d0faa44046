"""κ, the constant of Assumption 1 in ‖δ‖ = κη‖θ‖^p, estimated from checkpoints."""

from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normgrowth.dynamics.prediction import (
    Decay,
    Floats,
    Model,
    Rate,
    check_not_negative,
    check_words,
    decay_loss,
    schedule_sums,
)
from normgrowth.errors import InputError
from normgrowth.fit.bootstrap import block_bootstrap_indices


@dataclass(frozen=True)
class Kappa:
    """κ of a series under one model.

    value: pooled over all intervals. low, high: 95% confidence interval from a seeded block bootstrap over intervals;
    NaN for fewer than 4. ends: the last step of each interval. each: κ of each interval, NaN where it is undefined.
    drift: κ of the later half over that of the earlier half; 1 under Assumption 1.
    """

    model: Model
    value: float
    low: float
    high: float
    ends: NDArray[np.int64]
    each: Floats
    drift: float


def fit_kappa(
    steps: ArrayLike,
    norms: ArrayLike,
    step_sizes: ArrayLike,
    schedule: Rate,
    *,
    model: Model = "misaligned",
    p: float = 1.0,
    weight_decay: float = 0.0,
    decay: Decay = "decoupled",
    single: bool = False,
    seed: int = 0,
) -> Kappa:
    """Estimate κ in ‖δ‖ = κη‖θ‖^p from norms and step sizes of checkpoints.

    norms: one per step. step_sizes: ‖Δ‖ between neighboring checkpoints, one fewer. Δ is the sum of many optimizer
    steps, so κ of a single step depends on how they add up:

        aligned      lengths add:  ‖Δ‖ = κ Σ η‖θ‖^p;    a lower bound of the true κ, by the triangle inequality
        misaligned   squares add:  ‖Δ‖² = κ² Σ η²‖θ‖^2p; exact if steps are independent. Momentum correlates
                     them: for Adam this κ is √((1 + β₁)/(1 − β₁)) times that of one step, 4.4 for β₁ = 0.9

    For intervals of one step, both are ‖δ‖/(η‖θ‖^p). single: each step size is that of a single optimizer step at
    the same index of `steps`, so there are as many step sizes as norms.

    Between checkpoints, ‖θ‖ is assumed to change exponentially with Ση or Ση². The part of Δ that is due to weight
    decay is subtracted. Intervals with η = 0 or a norm that is not finite are ignored.
    """
    at, n = np.asarray(steps, np.float64), np.asarray(norms, np.float64)
    size = np.asarray(step_sizes, np.float64)
    check_not_negative(weight_decay=weight_decay)
    check_words(model, decay)
    expected = len(at) if single else len(at) - 1
    if n.shape != at.shape or size.shape != (expected,) or expected < 1:
        raise InputError(
            f"{len(at)} steps need {len(at)} norms and {expected} step sizes, and at least one interval"
        )
    if len(at) > 1 and not (np.diff(at) > 0).all():
        raise InputError("steps must increase")
    order = 1 if model == "aligned" else 2
    first, last = (at, at + 1) if single else (at[:-1], at[1:])
    n0, n1 = (n, n) if single else (n[:-1], n[1:])
    grid, place = np.unique(np.concatenate([first, last]), return_inverse=True)
    summed = schedule_sums(schedule, grid, order)[place]
    exposure = summed[len(first) :] - summed[: len(first)]  # Ση^order of each interval
    gone = decay_loss(schedule, grid, weight_decay, decay)[place]
    keep = np.exp(gone[: len(first)] - gone[len(first) :])  # fraction of the weights that remains after decay
    with np.errstate(divide="ignore", invalid="ignore"):
        # ‖Δ + (1 − keep)θ‖, from ‖Δ‖² and 2⟨θ,Δ⟩ = n₁² − n₀² − ‖Δ‖²; for a single step the model gives ⟨θ,δ⟩.
        if not single:
            dot = n1**2 - n0**2 - size**2
        else:
            dot = 2 * n0 * size if order == 1 else -2 * (1 - keep) * n0**2
        moved = np.sqrt(np.maximum(size**2 + (1 - keep) * dot + ((1 - keep) * n0) ** 2, 0.0))
        between = _log_mean((n0**p * keep) ** order, n1 ** (p * order))
        weight = exposure * np.where(last - first == 1, n0 ** (p * order), between)
        good = np.isfinite(moved) & np.isfinite(weight) & (weight > 0)
    if not good.any():
        raise InputError("κ cannot be estimated: η‖θ‖ is 0 or not finite in every interval")
    top, below = moved[good] ** order, weight[good]

    def pooled(index: Any) -> Any:
        return (top[index].sum(axis=-1) / below[index].sum(axis=-1)) ** (1 / order)

    count = int(good.sum())
    low, high = (
        np.quantile(pooled(block_bootstrap_indices(count, seed)), [0.025, 0.975])
        if count >= 4
        else (nan, nan)
    )
    half = np.arange(count) < count // 2
    with np.errstate(divide="ignore", invalid="ignore"):
        drift = float(pooled(~half) / pooled(half)) if count >= 2 else nan
    ends = (first if single else last).astype(np.int64)
    each = np.full(len(first), nan)
    each[good] = (top / below) ** (1 / order)
    return Kappa(model, float(pooled(slice(None))), float(low), float(high), ends, each, drift)


def kappa_of_growth(
    steps: ArrayLike,
    norms: ArrayLike,
    schedule: Rate,
    *,
    model: Model = "misaligned",
    weight_decay: float = 0.0,
    decay: Decay = "decoupled",
) -> float:
    """Return the κ (p = 1) that explains the norms, by least squares of log(‖θ‖/‖θ₀‖) plus the loss to decay.

    If it agrees with `fit_kappa`, step sizes and growth are consistent, and the model holds. It is NaN if the
    norm fell, which no κ explains.
    """
    at, n = np.asarray(steps, np.float64), np.asarray(norms, np.float64)
    check_words(model, decay)
    good = np.isfinite(n) & (n > 0)
    at, n = at[good], n[good]
    if len(at) < 2:
        raise InputError("growth needs at least two finite norms > 0")
    order = 1 if model == "aligned" else 2
    x = schedule_sums(schedule, at, order) / order
    gone = decay_loss(schedule, at, weight_decay, decay)
    y = np.log(n / n[0]) + gone - gone[0]
    x = x - x[0]
    slope = float(x @ y / (x @ x)) if x @ x > 0 else nan
    return slope ** (1 / order) if slope >= 0 else nan


def _log_mean(a: Floats, b: Floats) -> Floats:
    """Return (b − a)/log(b/a), the mean of a quantity that changes exponentially from a to b."""
    ratio = np.log(b / a)
    near = np.abs(ratio) < 1e-5
    return np.where(near, np.sqrt(a) * np.sqrt(b), (b - a) / np.where(near, 1.0, ratio))
