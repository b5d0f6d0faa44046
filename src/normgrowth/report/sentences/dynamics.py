"""Sentences on dynamics: the model that fits, open questions, weight decay, direction, uniformity."""

from math import isfinite

import numpy as np

from normgrowth.dynamics.growth_models import change_of_norm
from normgrowth.dynamics.observed.direction import Direction
from normgrowth.dynamics.observed.uniformity import Uniformity
from normgrowth.dynamics.result import Dynamics, ModelFit
from normgrowth.report.numbers import number, percent, signed, small, times
from normgrowth.report.sentences.trace import growth_terms
from normgrowth.trace.result import LAYER_MATRICES, MATRICES


def interval(d: Dynamics) -> str:
    """How many checkpoints there are, how far apart they are, and what δ is between two of them."""
    low, high = d.checkpoint_gap
    if high == 1:
        return f"{len(d.steps)} consecutive steps; δ: one optimizer step"
    apart = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{len(d.steps)} checkpoints, {apart} steps apart; δ: change of the weights from one to the next"


def topics(result: Dynamics, shown: str) -> dict[str, list[str]]:
    """All sentences by topic: on the matrices if vectors hide them, then on the model. shown: by a table or chart."""
    d = result.leading
    whole = [*findings(result), *weight_decay(result), *direction(result.direction)[:1]]
    return {
        "Growth": growth(result, shown),
        "Rounding": rounding(d),
        "Layers": layers(d),
        "Direction": [*direction(d.direction), *displacement(d)],
        "Weight decay": weight_decay(d),
        "Open questions": undecided(d),
        "Whole model": [] if d is result else whole,
    }


def hidden_matrices(d: Dynamics, shown: str) -> list[str]:
    """Why the matrices lead, if they do, and the growth of the model."""
    if d.matrices is None:
        return []
    first, last = d.matrices.norms[0], d.matrices.norms[_end(d.leading)]
    return [
        f"Gains, biases and other vectors make up to {percent(d.matrices.vector_share)} of ‖θ‖², which hides the "
        f"change of the matrices (×{times(last / first)}), so this {shown} shows the matrices; the norm of the model "
        f"changed by ×{times(d.norms[_end(d)] / d.norms[0])}."
    ]


def growth(result: Dynamics, shown: str) -> list[str]:
    """The findings, the most important first, and after it why the matrices lead, if they do. shown: by what."""
    said = findings(result.leading)
    return [*said[:1], *hidden_matrices(result, shown), *said[1:]]


def rounding(d: Dynamics) -> list[str]:
    """How much rounding of the published digits can change the budget and each value."""
    if (bound := d.rounding) is None:
        return []
    norms, sizes, alignments = (
        number(float(np.nanmax(values)), 2) for values in (bound.norms, bound.step_sizes, bound.alignments)
    )
    return [
        f"Rounding of the published digits changes the growth of ‖θ‖² by at most {number(bound.growth, 2)} and the "
        f"shares of both terms by at most {number(100 * bound.share, 2)} percentage points; single norms by at most "
        f"{norms}, step sizes by {sizes}, alignments by {alignments}."
    ]


def findings(d: Dynamics) -> list[str]:
    """Sentences on the predicted norms, κ and the budget, the most important first."""
    if d.aligned is None or d.misaligned is None:
        return _budget(d)
    first, *drift = _kappa(d, d.aligned, d.misaligned)
    return [verdict(d, d.aligned, d.misaligned), *_mismatch(d, d.misaligned), first, *_budget(d), *drift]


def verdict(d: Dynamics, aligned: ModelFit, misaligned: ModelFit) -> str:
    """The norm that each model predicts, and which of them fits."""
    end = _end(d)
    norm, along, across = d.norms[end], aligned.predicted[end], misaligned.predicted[end]
    kappa = "the fitted κ" if d.kappa is None else f"κ = {d.kappa:g}"
    predicted = (
        f"The norm{_of(d)} at step {d.steps[end]:,} is {number(norm)}. With {kappa}, steps perpendicular to the "
        f"weights (misaligned) predict {number(across)}, steps along the weights (aligned) {number(along)}"
    )
    if d.verdict is None:
        return f"{predicted}."
    found = {
        "misaligned": "the misaligned model fits",
        "aligned": "the aligned model fits",
        "both": "both models fit within their uncertainty",
        "between": "the measured norm lies between both",
        "undecided": "the norm changed too little to decide; the closest model has an error of "
        f"{percent(min(aligned.error, misaligned.error))}, a constant norm would have one of "
        f"{percent(change_of_norm(d.norms))}",
        "neither": f"neither model fits, since the norm grew {'more' if norm > along else 'less'} than both predict",
    }[d.verdict]
    return f"{predicted}: {found}."


def _kappa(d: Dynamics, aligned: ModelFit, misaligned: ModelFit) -> list[str]:
    """κ, and whether it is constant."""
    known_interval = isfinite(misaligned.kappa_low)
    value = f"{misaligned.kappa:.3g}"
    if known_interval:
        value += f" [{misaligned.kappa_low:.3g}, {misaligned.kappa_high:.3g}]"
    if d.checkpoint_gap[1] > 1:
        value += (
            f" if the optimizer steps between two checkpoints are independent, at least {aligned.kappa:.3g} on average "
            "if they are parallel"
        )
    said = [f"The factor κ in ‖δ‖ = κη‖θ‖ of one optimizer step (Assumption 1) is {value}."]
    if isfinite(misaligned.kappa_drift):
        said.append(
            f"In the later half of the run κ is {misaligned.kappa_drift:.3g} times as large as in the earlier half; "
            "Assumption 1 says that it does not change."
        )
    return said


def _mismatch(d: Dynamics, misaligned: ModelFit) -> list[str]:
    """Intervals that do not belong to the schedule."""
    idle = _moved_without_rate(d, misaligned)
    if not idle or (
        d.weight_decay and d.optimizer.decay == "eq3"
    ):  # eq. (3) moves the weights even where η = 0
        return []
    return [
        f"The schedule does not belong to this run: the weights moved in {len(idle)} of {len(d.step_sizes)} "
        f"intervals in which it has η = 0, first before step {idle[0]:,}."
    ]


def _moved_without_rate(d: Dynamics, fit: ModelFit) -> list[int]:
    """The last steps of intervals in which the weights moved although η = 0."""
    known = [isfinite(norm) and norm > 0 for norm in d.norms]
    intervals = zip(d.steps[1:], fit.kappa_by_interval, d.step_sizes, known[:-1], known[1:], strict=True)
    return [end for end, kappa, size, a, b in intervals if not isfinite(kappa) and size > 0 and a and b]


def _budget(d: Dynamics) -> list[str]:
    said, budget = [], d.budget
    if isfinite(budget.by_steps):
        terms = (budget.by_steps * budget.growth, budget.by_alignment * budget.growth)
        up_to = "" if budget.until == d.steps[-1] else f" up to step {budget.until:,}, where the sums end"
        said.append(
            f"‖θ‖²{_of(d)} {growth_terms(budget.growth, *terms)}{up_to}; the mean alignment is {small(d.alignment)}."
        )
    if budget.by_decay > 0:
        rest = budget.by_alignment * budget.growth + budget.by_decay
        said.append(
            f"Weight decay contributed {signed(-budget.by_decay)} to the alignment term, "
            f"everything else {signed(rest)}."
        )
    return said


def displacement(d: Dynamics) -> list[str]:
    """How correlated the changes between checkpoints are: their sum, compared with the sum of their squares."""
    intervals = sum(step <= d.budget.until for step in d.steps) - 1
    if not isfinite(d.budget.displacement) or intervals < 2:
        return []
    return [
        f"The squared distance from the first to the last weights is {d.budget.displacement:.3g} times Σ‖δ‖²: 1 if all "
        f"δ are perpendicular to each other, {intervals} if they are equal."
    ]


def undecided(d: Dynamics) -> list[str]:
    """What the trace cannot decide, and which data would."""
    return [_question(d, question) for question in d.open_questions]


def _question(d: Dynamics, question: str) -> str:
    if question == "model":
        return "Which model fits: κ is too uncertain, or the growth too small."
    if question == "single_steps":
        steps, sizes = np.array(d.steps), np.array(d.step_sizes)
        once = np.nansum((sizes**2 / np.diff(steps))[steps[1:] <= d.budget.until])
        share = percent(once / d.budget.growth) if d.budget.growth > 0 else "very little"
        return (
            f"How much the size of single optimizer steps contributes: if the steps between two checkpoints were "
            f"parallel and equal, their squares would sum to {share} of the growth. Checkpoints of neighboring steps, "
            "or a NormTracker with every=1, would decide it."
        )
    if question == "one_direction":
        return "Whether single steps are correlated, as the intervals are. If so, κ for independent steps is too large."
    if question == "weight_decay":
        return "Whether there was weight decay, which makes the alignment negative: pass --weight-decay if you know it."
    count = 0 if d.misaligned is None else sum(map(isfinite, d.misaligned.kappa_by_interval))
    few = "1 interval is" if count == 1 else f"{count} intervals are"
    return f"How uncertain κ is: {few} too few for a confidence interval."


def weight_decay(d: Dynamics) -> list[str]:
    """The equilibria under weight decay, or why there are none."""
    if d.weight_decay is None:
        return []
    if not d.equilibria:
        if d.optimizer.optimizer == "other":
            return []  # a note says why
        if d.optimizer.optimizer == "adamw":
            return ["The equilibrium of adamw needs the number of weights, which these records lack."]
        return [
            "Without weight decay (λ = 0) there is no equilibrium. Pass --gradient-norm to compute the λ that would "
            "hold the norm."
        ]
    said = []
    for row in d.equilibria:
        at, found = f"At η = {row.lr:.3g} (step {row.step:,})", row.equilibrium
        if row.lr == 0:
            said.append(f"{at} only weight decay moves the weights: there is no equilibrium.")
            continue
        if not isfinite(found.norm):
            said.append(f"{at}, without weight decay, there is no equilibrium.")
        else:
            said.append(
                f"{at} the equilibrium of random gradients and weight decay has a norm of {number(found.norm, 4)}, a "
                f"rotation of {found.rotation:.3g} radians per step and a time constant of {found.time:,.0f} steps. "
                f"The last norm is {row.reached:.3g} times the equilibrium norm."
            )
        said.append(
            f"{at}, with random gradients, λ = {row.stationary_decay:.3g} would keep the norm at its initial value. "
            f"With misaligned steps under Assumption 1, λ = {row.holding_decay:.3g} would keep any norm. This run has "
            f"λ = {d.weight_decay:g}."
        )
    return said


def direction(found: Direction) -> list[str]:
    """Sentences on whether the direction converges, and on its total turn."""
    if isfinite(found.q):
        meaning = {
            "turns on": "here it keeps turning",
            "converges": "here it converges, as it must if η falls to 0",
            "undecided": "this does not decide whether it converges",
        }[found.verdict]
        said = [
            f"Squared angles per step change like t^{-found.q:.2f} [{-found.high:.2f}, {-found.low:.2f}]. "
            "The direction converges if they fall faster than t^-2, and keeps turning if they fall slower than t^-1: "
            f"{meaning}."
        ]
    else:
        said = ["There are too few intervals to say whether the direction converges."]
    unit = "steps" if (consecutive := bool(np.all(np.diff(found.steps) == 1))) else "checkpoints"
    said.append(f"The angles between neighboring {unit} sum to {found.total[-1]:.3g} radians.")
    doubled = found.doubled
    if len(doubled.steps) > 1:
        said.append(
            f"The cosine between the weights at steps t/2 and t is {doubled.cosine[0]:.4f} at t = {doubled.steps[0]:,} "
            f"and {doubled.cosine[-1]:.4f} at t = {doubled.steps[-1]:,}; it goes to 1 if the direction converges."
        )
    elif not consecutive:
        said.append(
            "`normgrowth trace --lags 1,2,4,8` would also give the cosine between the weights at steps t/2 and t."
        )
    return said


def uniformity(found: Uniformity) -> str:
    """The smallest and the largest growth of layers, roles or tensors."""
    good = [i for i, factor in enumerate(found.factor) if isfinite(factor)]
    if len(good) < 2 or found.first_step == found.last_step:
        return f"There are too few {_noun(found)}s or checkpoints to compare their growth."
    low, high = (end(good, key=lambda i: found.factor[i]) for end in (min, max))
    noun = _noun(found)
    of = " (matrices)" if found.level == LAYER_MATRICES else ""
    verb = "grew" if found.factor[low] >= 1 else "shrank" if found.factor[high] <= 1 else "changed"
    return (
        f"{noun.capitalize()}s{of} {verb} by ×{times(found.factor[low])} ({found.names[low]}) to "
        f"×{times(found.factor[high])} ({found.names[high]}), a ratio of {found.spread:.3g}; "
        f"{percent(found.moved)} of ‖θ‖² moved between {noun}s."
    )


def layers(d: Dynamics) -> list[str]:
    """Why some layers grew more than others, and how uneven their growth is."""
    return [text for found in shown_layers(d) for text in (*_terms(found), uniformity(found))]


def shown_layers(d: Dynamics) -> list[Uniformity]:
    """The growth of the layers, or of their matrices if these are explained; without layers, of the roles."""
    of_matrices = d.uniformity.get(LAYER_MATRICES) if d.name == MATRICES else None
    return [of_matrices] if of_matrices else list(d.uniformity.values())[:1]


def _noun(found: Uniformity) -> str:
    return "layer" if found.level == LAYER_MATRICES else found.level


def _terms(found: Uniformity) -> list[str]:
    """Both terms of the growth of ‖θ‖², in the layer that grew most and in the one that grew least."""
    if not found.by_steps:
        return []
    terms = zip(found.by_alignment, found.by_steps, found.names, strict=True)
    known = sorted((a + b, name, signed(a), signed(b)) for a, b, name in terms if isfinite(a + b))
    if len(known) < 2:
        return []
    of = "the matrices of " if found.level == LAYER_MATRICES else ""
    (_, least, *fewer), (_, most, *more) = known[0], known[-1]
    return [
        f"‖θ‖² of {of}{most} grew most: {more[0]} by alignment and {more[1]} by steps, "
        f"against {fewer[0]} and {fewer[1]} in {least}."
    ]


def _of(d: Dynamics) -> str:
    """What the numbers are of, for a sentence: matrices or vectors are named, since sentences on the model follow."""
    return f" of the {d.name}" if d.level == "part" else ""


def _end(d: Dynamics) -> int:
    """The index of the last finite norm."""
    return max(i for i, norm in enumerate(d.norms) if isfinite(norm))
