"""Alignment: which model of the dynamics predicts the norms of a trace, aligned or misaligned (§5.3 to §5.6)."""

from collections.abc import Mapping, Sequence
from math import inf, isfinite, log, nan
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from normgrowth.dynamics.kappa import fit_kappa, kappa_of_growth
from normgrowth.dynamics.prediction import LONGEST, Decay, Floats, Model, Rate, predict_norm
from normgrowth.dynamics.result import ModelFit, Verdict

MODELS: tuple[Model, ...] = get_args(Model)
TOLERANCE = 0.2  # a model fits if its prediction is within this fraction of the growth of log‖θ‖
SMALL = 0.5  # a model can be told from a constant norm if its error is at most this fraction of the change of log‖θ‖
ROUNDING = 1e-9  # rounding error of log‖θ‖


def fit_model(
    model: Model,
    steps: NDArray[np.int64],
    norms: Floats,
    step_sizes: Floats,
    schedule: Rate,
    *,
    kappa: float | None,
    weight_decay: float,
    decay: Decay,
) -> ModelFit:
    """Fit κ to the step sizes, and predict the norms with the given κ or else with the fitted one."""
    fitted = fit_kappa(
        steps, norms, step_sizes, schedule, model=model, weight_decay=weight_decay, decay=decay
    )
    needed = kappa_of_growth(steps, norms, schedule, model=model, weight_decay=weight_decay, decay=decay)
    predicted = predict_norm(
        schedule,
        fitted.value if kappa is None else kappa,
        steps,
        norms[0],
        model=model,
        start=int(steps[0]),
        weight_decay=weight_decay,
        decay=decay,
        discrete=int(steps[-1] - steps[0]) <= LONGEST,
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        error = _rms(np.log(predicted / norms)[1:][np.isfinite(norms[1:])])
    return ModelFit(
        model,
        fitted.value,
        fitted.low,
        fitted.high,
        fitted.drift,
        tuple(fitted.each.tolist()),
        needed,
        tuple(predicted.tolist()),
        error,
    )


def change_of_norm(norms: Sequence[float] | Floats) -> float:
    """Return the rms of log(‖θ_t‖/‖θ_0‖) over all later steps, the error of predicting a constant norm."""
    with np.errstate(divide="ignore", invalid="ignore"):
        change = np.log(np.asarray(norms, np.float64)[1:] / norms[0])
    return _rms(change[np.isfinite(change)])


def _rms(x: Floats) -> float:
    return float(np.sqrt(np.mean(x**2))) if len(x) else nan


def verdict(models: Mapping[Model, ModelFit], norms: Floats, *, uncertain: bool) -> Verdict:
    """Return the model whose predicted growth of log‖θ‖ fits the measurement.

    It is "undecided" if the error of this model is not small compared with the change of the norm, both as rms of
    logarithms over all steps. uncertain: widen the tolerance by the confidence interval of κ.
    """
    last = int(np.flatnonzero(np.isfinite(norms))[-1])
    if norms[last] == 0:
        return "neither"
    grown = log(norms[last] / norms[0])
    miss: dict[Model, float] = {}
    said: dict[Model, float] = {}
    for order, model in enumerate(MODELS, 1):
        fit = models[model]
        final = fit.predicted[last]
        said[model] = log(final / norms[0]) if 0 < final < inf else inf if final else -inf
        wide = 0.0
        if uncertain and isfinite(fit.kappa_high) and isfinite(said[model]):
            # The end of the interval of κ that brings the prediction closer to the measured growth.
            edge = fit.kappa_low if grown < said[model] else fit.kappa_high
            wide = said[model] * abs((edge / fit.kappa) ** order - 1) if fit.kappa else 0.0
        room = TOLERANCE * max(abs(grown), min(abs(said[model]), 1e3)) + wide + ROUNDING
        miss[model] = abs(said[model] - grown) / room
    best, other = sorted(MODELS, key=lambda model: miss[model])
    if miss[best] <= 1 and miss[other] < min(1, miss[best] + 0.5):
        return "both"
    if miss[best] <= 1:
        small = SMALL * change_of_norm(norms) + ROUNDING
        return "undecided" if models[best].error > small else best
    return "between" if said["misaligned"] < grown < said["aligned"] else "neither"
