"""Evidence: which model of the dynamics a trace supports, and what it cannot decide (§5.3 to §5.6)."""

from dataclasses import dataclass
from math import inf, isfinite, log, nan
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from normgrowth.dynamics.direction import intervals_of
from normgrowth.dynamics.kappa import Kappa, fit_kappa, kappa_of_growth
from normgrowth.dynamics.prediction import LONGEST, Decay, Floats, Model, Rate, predict_norm, totals
from normgrowth.errors import InputError
from normgrowth.records import Records
from normgrowth.text import html_table

MODELS: tuple[Model, ...] = get_args(Model)
TOLERANCE = 0.2  # of the growth of log‖θ‖: how near a model must come to be said to fit
ROUNDING = 1e-9  # of log‖θ‖


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
    until: T, the step up to which all this is summed: the last, or the one before the first that is not finite.
    interval: fewest and most optimiser steps between checkpoints. fits: "aligned", "misaligned", "both",
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
    until: int
    interval: tuple[int, int]
    fits: str
    findings: list[str]
    undecided: list[str]

    def __repr__(self) -> str:
        """One line: the arrays would hide the verdict."""
        return f"Evidence({len(self.steps):,} checkpoints; fits: {self.fits})"

    def _repr_html_(self) -> str:
        titles = ("model", "κ", "from", "to", "κ by growth", "error")
        rows = []
        for model, kappa in self.kappa.items():
            fitted = kappa.value, kappa.low, kappa.high
            rows.append((model, *fitted, self.growth_kappa[model], self.error[model]))
        said = [("found", text) for text in self.findings] + [("undecided", text) for text in self.undecided]
        return html_table(titles, rows) + html_table(("fits", self.fits), said)


def examine(
    records: Records,
    schedule: Rate,
    *,
    level: str = "model",
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
    rows = intervals_of(records, level, name)
    steps, norms = rows.series("norm", level=level)
    if len(steps) < 2:
        raise InputError("one checkpoint has no dynamics: two are needed at least")
    if not (np.isfinite(norms[0]) and norms[0] > 0):
        raise InputError(
            f"the norm at the first checkpoint, step {steps[0]}, is {norms[0]}: nothing to start from"
        )
    sizes = _sizes_between(rows, level, steps)
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
    until = _until(rows, level, int(steps[-1]))
    total, turned, stepped = (
        _at(rows, until, quantity, level)
        for quantity in ("total_growth", "total_growth_alignment", "total_growth_steps")
    )
    moved = _at(rows, until, "step_size", level, "first")
    gaps = np.diff(steps)
    _, cosines = rows.series("alignment", level=level)
    share = _over(turned, total), _over(stepped, total)
    summed = steps <= until
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
        nan if weight_decay is None else _taken(schedule, steps[summed], norms[summed], lam, decay),
        _over(moved * moved, stepped),
        until,
        (int(gaps.min()), int(gaps.max())),
        _fits(predicted, norms, fitted if kappa is None else {}, lam),
        [],
        [],
    )
    evidence.findings.extend(_findings(evidence, kappa, lam > 0 and decay == "eq3"))
    evidence.undecided.extend(_undecided(evidence, kappa, weight_decay))
    return evidence


def _sizes_between(rows: Records, level: str, steps: NDArray[np.int64]) -> Floats:
    """The distance of each measured step to the one before."""
    ends, sizes = rows.series("step_size", level=level)
    if (lacking := np.setdiff1d(steps[1:], ends)).size:
        raise InputError(
            f"no step size at step {lacking[0]}{f' and {lacking.size - 1} more' if lacking.size > 1 else ''}: the "
            "checkpoint before was deleted before it was compared; trace a part of the series without gaps"
        )
    return sizes


def _until(rows: Records, level: str, last: int) -> int:
    """The last step at which the summed budget is finite; the last one if there is no budget."""
    if not len(rows.where(quantity="total_growth")):
        return last
    steps, total = rows.series("total_growth", level=level)
    known = steps[np.isfinite(total)]
    return int(known[-1]) if len(known) else last


def _at(rows: Records, step: int, quantity: str, level: str, reference: str | None = None) -> float:
    there = rows.where(step=step, quantity=quantity).compared_with(reference)
    return float(there.series(quantity, level=level, reference=reference)[1][0]) if len(there) else nan


def _end(norms: Floats) -> int:
    """The place of the last norm that is finite."""
    return int(np.flatnonzero(np.isfinite(norms))[-1])


def _rms(x: Floats) -> float:
    return float(np.sqrt(np.mean(x**2))) if len(x) else nan


def _over(a: float, b: float) -> float:
    return a / b if b else nan


def _taken(schedule: Rate, steps: NDArray[np.int64], norms: Floats, lam: float, decay: Decay) -> float:
    """2λΣη‖θ‖², by the mean of the ends of each interval."""
    at = steps.astype(np.float64)
    once = np.diff(at if decay == "eq3" else totals(schedule, at, 1))
    return float(np.nansum(lam * once * (norms[1:] ** 2 + norms[:-1] ** 2)))


def _fits(predicted: dict[Model, Floats], norms: Floats, fitted: dict[Model, Kappa], lam: float) -> str:
    """The model whose growth of log‖θ‖ is near the measured one, allowing for the interval of κ."""
    last = _end(norms)
    if norms[last] == 0:
        return "neither"
    grown = log(norms[last] / norms[0])
    miss: dict[Model, float] = {}
    said: dict[Model, float] = {}
    for order, model in enumerate(MODELS, 1):
        final = predicted[model][last]
        said[model] = log(final / norms[0]) if 0 < final < inf else inf if final else -inf
        wide = 0.0
        if model in fitted and isfinite(fitted[model].high) and isfinite(said[model]) and not lam:
            k = fitted[model]
            edge = k.low if grown < said[model] else k.high  # on the side of what was measured
            wide = said[model] * abs((edge / k.value) ** order - 1) if k.value else 0.0
        room = TOLERANCE * max(abs(grown), min(abs(said[model]), 1e3)) + wide + ROUNDING
        miss[model] = abs(said[model] - grown) / room
    best, other = sorted(MODELS, key=lambda model: miss[model])
    if miss[best] <= 1:
        return "both" if miss[other] < min(1, miss[best] + 0.5) else best
    return "between" if said["misaligned"] < grown < said["aligned"] else "neither"


def _findings(e: Evidence, kappa: float | None, shrinking: bool) -> list[str]:
    """shrinking: weights move where η is 0, since the decay of eq. (3) goes on."""
    low, high = e.interval
    apart = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    sums = "steps apart: each δ is their sum" if high > 1 else "step apart: each δ is that step"
    said = [f"{len(e.steps)} checkpoints, {apart} optimiser {sums}."]
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
    known = np.isfinite(e.norms) & (e.norms > 0)
    idle = mis.ends[np.isnan(mis.each) & (e.step_sizes > 0) & known[1:] & known[:-1]]
    if len(idle) and not shrinking:
        said.append(
            f"In {len(idle)} of {len(e.step_sizes)} intervals the weights moved although η is 0, first in the one "
            f"up to step {idle[0]:,}: the schedule is not that of the run."
        )
    end = _end(e.norms)
    norm = ", ".join(f"{e.predicted[model][end]:.5g} {model}" for model in MODELS)
    by = "the fitted κ" if kappa is None else f"κ = {kappa:g}"
    said.append(f"Norm at step {e.steps[end]:,}: {e.norms[end]:.5g} measured; {norm} with {by}.")
    if isfinite(e.by_steps):
        verb = "grew" if e.growth > 0 else "fell"
        parts = f"{100 * e.by_steps:.3g} % by Σ‖δ‖², {100 * e.by_alignment:.3g} % by 2⟨θ,δ⟩"
        if e.growth <= 0:
            parts = f"Σ‖δ‖² added {e.by_steps * e.growth:.4g}, 2⟨θ,δ⟩ took {-e.by_alignment * e.growth:.4g}"
        up_to = "" if e.until == e.steps[-1] else f" up to step {e.until:,}, where the sums end"
        said.append(
            f"‖θ‖² {verb} by {abs(e.growth):.4g}{up_to}: {parts}; the mean alignment is {e.alignment:.3g}."
        )
    if e.by_decay > 0:
        turned = e.by_alignment * e.growth
        said.append(
            f"The weight decay alone took {e.by_decay:.4g} of ‖θ‖²; without that part 2⟨θ,δ⟩ is "
            f"{turned + e.by_decay:.4g}."
        )
    intervals = int((e.steps <= e.until).sum()) - 1
    if isfinite(e.displacement) and intervals > 1:
        said.append(
            f"‖θ_T − θ_0‖² is {e.displacement:.3g} of Σ‖δ‖²: 1 if intervals are independent, "
            f"{intervals} if they all go one way."
        )
    amount = "more" if e.norms[end] > e.predicted["aligned"][end] else "less"
    said.append(
        {
            "misaligned": "Misaligned dynamics fit.",
            "aligned": "Aligned dynamics fit.",
            "both": "Both models come near the norm.",
            "between": "It lies between the models: misaligned dynamics grow too slowly, aligned ones too fast.",
            "neither": f"Neither model fits: the norm grew {amount} than either says.",
        }[e.fits]
    )
    return said


def _undecided(e: Evidence, kappa: float | None, weight_decay: float | None) -> list[str]:
    said = []
    sparse = e.interval[1] > 1 and kappa is None
    if e.fits == "both":
        said.append("Which model it is: κ is too uncertain, or the growth too small, to tell them apart.")
    if sparse:
        gaps = np.diff(e.steps)
        once = np.nansum((e.step_sizes**2 / gaps)[e.steps[1:] <= e.until])
        share = f"{100 * once / e.growth:.2g} %" if e.growth > 0 else "very little"
        said.append(
            f"What single steps do. If those of an interval all went one way, their Σ‖δ‖² would make {share} of "
            "the growth; momentum, too, makes checkpoints show more than steps have; steps that cancel leave no mark. "
            "Checkpoints of neighbouring steps, or κ logged in training, decide it."
        )
    if sparse and e.displacement > 3 and len(e.step_sizes) > 3:
        said.append(
            "Intervals go on in one direction, so single steps may too: κ of independent steps is then too large."
        )
    if weight_decay is None:
        said.append(
            "Whether weight decay took part: it shows as a negative alignment. Give it if it is known."
        )
    if not isfinite(e.kappa["misaligned"].low):
        count = int(np.isfinite(e.kappa["misaligned"].each).sum())
        few = "1 interval is" if count == 1 else f"{count} intervals are"
        said.append(f"How sure κ is: {few} too few for a confidence interval.")
    return said
