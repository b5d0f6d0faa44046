"""Evidence: which model of the dynamics a trace supports, and what it cannot decide (§5.3 to §5.6)."""

from dataclasses import dataclass
from math import inf, isfinite, log, nan
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import InputError
from normgrowth.records import Records
from normgrowth.weights.direction import rows_of
from normgrowth.weights.dynamics import LONGEST, Decay, Floats, Model, Rate, predict_norm, totals
from normgrowth.weights.kappa import Kappa, fit_kappa, kappa_of_growth

MODELS: tuple[Model, ...] = get_args(Model)
TOLERANCE = 0.2  # of the growth of log‖θ‖: how near a model must come to be said to fit


@dataclass(frozen=True)
class Evidence:
    """What a trace says about the two models.

    kappa: κ fitted to the step sizes under each model; growth_kappa: the κ that the norms alone would need.
    Where a model is right the two agree. predicted: norms at `steps` from the fitted (or given) κ; error: the
    rms of log(predicted/measured).
    alignments: the cosine of each δ with θ; alignment: their mean. by_alignment, by_steps: the shares of 2⟨θ,δ⟩
    and ‖δ‖² in `growth`, that of ‖θ‖², all summed. by_decay: what the decay alone would have taken of ‖θ‖²; nan
    if unknown.
    displacement: ‖θ_T − θ_0‖²/Σ‖δ‖²: 1 if intervals are independent, their number if all go one way.
    interval: fewest and most optimiser steps between checkpoints. fits: "aligned", "misaligned",
    "between" or "neither". findings and undecided: the same in sentences.
    """

    steps: NDArray[np.int64]
    norms: Floats
    step_sizes: Floats
    kappa: dict[Model, Kappa]
    growth_kappa: dict[Model, float]
    predicted: dict[Model, Floats]
    error: dict[Model, float]
    alignments: Floats
    alignment: float
    growth: float
    by_alignment: float
    by_steps: float
    by_decay: float
    displacement: float
    interval: tuple[int, int]
    fits: str
    findings: list[str]
    undecided: list[str]


def examine(
    records: Records,
    schedule: Rate,
    *,
    scope: str = "model",
    name: str | None = None,
    kappa: float | None = None,
    weight_decay: float | None = None,
    decay: Decay = "decoupled",
) -> Evidence:
    """Fit κ to a trace, predict its norms under either model, and weigh the evidence.

    kappa: that of single optimiser steps, if it is known from elsewhere (a run that logged them). It then
    makes the predictions, and decides what sparse checkpoints cannot.
    weight_decay: None if it is not known, which is not the same as 0.
    """
    rows = rows_of(records, scope, name)
    steps, norms = rows.series("norm", scope=scope)
    if len(steps) < 2:
        raise InputError("one checkpoint has no dynamics: two are needed at least")
    if not (np.isfinite(norms[0]) and norms[0] > 0):
        raise InputError(
            f"the norm at the first checkpoint, step {steps[0]}, is {norms[0]}: nothing to start from"
        )
    ends, sizes = rows.series("step_size", scope=scope)
    if len(ends) != len(steps) - 1:
        raise InputError(f"{len(steps)} checkpoints should have {len(steps) - 1} step sizes, not {len(ends)}")
    lam = weight_decay or 0.0
    fitted: dict[Model, Kappa] = {
        model: fit_kappa(steps, norms, sizes, schedule, model=model, weight_decay=lam, decay=decay)
        for model in MODELS
    }
    needed: dict[Model, float] = {
        model: kappa_of_growth(steps, norms, schedule, model=model, weight_decay=lam, decay=decay)
        for model in MODELS
    }

    def predict(model: Model, value: float) -> Floats:
        return predict_norm(
            schedule,
            value,
            steps,
            norms[0],
            model=model,
            start=int(steps[0]),
            weight_decay=lam,
            decay=decay,
            discrete=int(steps[-1] - steps[0]) <= LONGEST,
        )

    used = {model: fitted[model].value if kappa is None else kappa for model in MODELS}
    predicted: dict[Model, Floats] = {model: predict(model, used[model]) for model in MODELS}
    with np.errstate(divide="ignore", invalid="ignore"):
        error: dict[Model, float] = {
            model: _rms(np.log(predicted[model] / norms)[1:][np.isfinite(norms[1:])]) for model in MODELS
        }
    total, turned, stepped = (
        _last(rows, f"total_growth{term}", scope) for term in ("", "_alignment", "_steps")
    )
    gaps = np.diff(steps)
    moved = _last(rows, "step_size_first", scope)
    _, cosines = rows.series("alignment", scope=scope)
    share = _over(turned, total), _over(stepped, total)
    evidence = Evidence(
        steps,
        norms,
        sizes,
        fitted,
        needed,
        predicted,
        error,
        cosines,
        float(np.nanmean(cosines)) if np.isfinite(cosines).any() else nan,
        total,
        *share,
        nan if weight_decay is None else _taken(schedule, steps, norms, lam, decay),
        _over(moved * moved, stepped),
        (int(gaps.min()), int(gaps.max())),
        _fits(predicted, norms, fitted if kappa is None else {}, lam),
        [],
        [],
    )
    evidence.findings.extend(_findings(evidence, kappa))
    evidence.undecided.extend(_undecided(evidence, kappa, weight_decay))
    return evidence


def _last(rows: Records, quantity: str, scope: str) -> float:
    """The last finite value of a quantity; nan if it has none."""
    if not len(rows.where(quantity=quantity)):
        return nan
    values = rows.series(quantity, scope=scope)[1]
    values = values[np.isfinite(values)]
    return float(values[-1]) if len(values) else nan


def _rms(x: Floats) -> float:
    return float(np.sqrt(np.mean(x**2))) if len(x) else nan


def _over(a: float, b: float) -> float:
    return a / b if b else nan


def _taken(schedule: Rate, steps: NDArray[np.int64], norms: Floats, lam: float, decay: Decay) -> float:
    """2λΣη‖θ‖², by the mean of the ends of each interval."""
    at = steps.astype(np.float64)
    once = np.diff(at if decay == "eq3" else totals(schedule, at, 1, sums=True))
    return float(np.nansum(lam * once * (norms[1:] ** 2 + norms[:-1] ** 2)))


def _fits(predicted: dict[Model, Floats], norms: Floats, fitted: dict[Model, Kappa], lam: float) -> str:
    """The model whose growth of log‖θ‖ is near the measured one, allowing for the interval of κ."""
    last = int(np.flatnonzero(np.isfinite(norms) & (norms > 0))[-1])
    grown = log(norms[last] / norms[0])
    miss: dict[Model, float] = {}
    said: dict[Model, float] = {}
    for order, model in enumerate(MODELS, 1):
        final = predicted[model][last]
        said[model] = log(final / norms[0]) if 0 < final < inf else inf if final else -inf
        wide = 0.0
        if model in fitted and isfinite(fitted[model].high) and not lam:
            k = fitted[model]
            wide = said[model] * max(
                abs((edge / k.value) ** order - 1) if k.value else 0 for edge in (k.low, k.high)
            )
        room = TOLERANCE * max(abs(grown), min(abs(said[model]), 1e3)) + wide
        miss[model] = abs(said[model] - grown) / room if room else 0.0
    best = min(MODELS, key=lambda model: miss[model])
    if miss[best] <= 1:
        return best
    return "between" if said["misaligned"] < grown < said["aligned"] else "neither"


def _findings(e: Evidence, kappa: float | None) -> list[str]:
    low, high = e.interval
    apart = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    said = [
        f"{len(e.steps)} checkpoints, {apart} optimiser step{'s' if high > 1 else ''} apart: each δ is their sum."
    ]
    mis, ali = e.kappa["misaligned"], e.kappa["aligned"]
    wide = f" ({mis.low:.3g} to {mis.high:.3g})" if isfinite(mis.low) else ""
    if high > 1:
        said.append(
            f"κ in ‖δ‖ = κη‖θ‖ of one step: {mis.value:.3g}{wide} if steps are independent (squares add), and "
            f"{ali.value:.3g} at least (lengths add)."
        )
    else:
        said.append(f"κ in ‖δ‖ = κη‖θ‖: {mis.value:.3g}{wide}.")
    if isfinite(mis.drift):
        said.append(
            f"From the earlier half to the later κ changed by ×{mis.drift:.3g}; Assumption 1 says ×1."
        )
    norm = ", ".join(f"{e.predicted[model][-1]:.5g} {model}" for model in MODELS)
    by = "the fitted κ" if kappa is None else f"κ = {kappa:g}"
    said.append(f"Norm at step {e.steps[-1]:,}: {e.norms[-1]:.5g} measured; {norm} with {by}.")
    if isfinite(e.by_steps):
        verb = "grew" if e.growth > 0 else "fell"
        parts = f"{100 * e.by_steps:.3g} % by Σ‖δ‖², {100 * e.by_alignment:.3g} % by 2⟨θ,δ⟩"
        if e.growth <= 0:
            parts = f"Σ‖δ‖² added {e.by_steps * e.growth:.4g}, 2⟨θ,δ⟩ took {-e.by_alignment * e.growth:.4g}"
        said.append(f"‖θ‖² {verb} by {abs(e.growth):.4g}: {parts}; the mean alignment is {e.alignment:.3g}.")
    if e.by_decay > 0:
        turned = e.by_alignment * e.growth
        said.append(
            f"The weight decay alone took {e.by_decay:.4g} of ‖θ‖²; without that part 2⟨θ,δ⟩ is "
            f"{turned + e.by_decay:.4g}."
        )
    if isfinite(e.displacement) and len(e.step_sizes) > 1:
        said.append(
            f"‖θ_T − θ_0‖² is {e.displacement:.3g} of Σ‖δ‖²: 1 if intervals are independent, "
            f"{len(e.step_sizes)} if they all go one way."
        )
    amount = "more" if e.norms[-1] > e.predicted["aligned"][-1] else "less"
    said.append(
        {
            "misaligned": "Misaligned dynamics fit.",
            "aligned": "Aligned dynamics fit.",
            "between": "It lies between the models: misaligned dynamics grow too slowly, aligned ones too fast.",
            "neither": f"Neither model fits: the norm grew {amount} than either says.",
        }[e.fits]
    )
    return said


def _undecided(e: Evidence, kappa: float | None, weight_decay: float | None) -> list[str]:
    said = []
    if e.interval[1] > 1 and kappa is None:
        share = f"{100 * e.by_steps / e.interval[1]:.2g} %" if e.growth > 0 else "very little"
        said.append(
            f"What single steps do. If those of an interval all went one way, their Σ‖δ‖² would make {share} of "
            "the growth; momentum, too, makes checkpoints show more than steps have; steps that cancel leave no mark. "
            "Checkpoints of neighbouring steps, or κ logged in training, decide it."
        )
    if e.displacement > 3 and len(e.step_sizes) > 3:
        said.append(
            "Intervals go on in one direction, so single steps may too: κ of independent steps is then too large."
        )
    if weight_decay is None:
        said.append(
            "Whether weight decay took part: it shows as a negative alignment. Give it if it is known."
        )
    if len(e.step_sizes) < 4:
        said.append(f"How sure κ is: {len(e.step_sizes)} intervals are too few for a confidence interval.")
    return said
