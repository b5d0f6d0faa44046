"""Sentences on dynamics: the model that fits, open questions, weight decay, direction, uniformity."""

from math import isfinite

import numpy as np

from normgrowth.dynamics.observed.direction import Direction
from normgrowth.dynamics.observed.uniformity import Uniformity
from normgrowth.dynamics.result import Dynamics, ModelFit
from normgrowth.report.numbers import times
from normgrowth.report.sentences.trace import growth_terms


def findings(d: Dynamics) -> list[str]:
    """Sentences on the checkpoints, κ, the predicted norms, the budget, and the model that fits."""
    low, high = d.checkpoint_gap
    apart = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    sums = "steps apart; δ is the sum of the steps between two" if high > 1 else "step apart; δ is one step"
    said = [f"{len(d.steps)} checkpoints, {apart} optimizer {sums}."]
    if d.aligned is not None and d.misaligned is not None:
        said += _models(d, d.aligned, d.misaligned)
    said += _budget(d)
    if d.aligned is not None and d.verdict is not None:
        end = _end(d)
        amount = "more" if d.norms[end] > d.aligned.predicted[end] else "less"
        said.append(
            {
                "misaligned": "The misaligned model (steps orthogonal to the weights) fits.",
                "aligned": "The aligned model (steps along the weights) fits.",
                "both": "Both models fit within their uncertainty.",
                "between": "The norm grew more than the misaligned model predicts and less than the aligned one.",
                "neither": f"Neither model fits: the norm grew {amount} than both predict.",
            }[d.verdict]
        )
    return said


def _models(d: Dynamics, aligned: ModelFit, misaligned: ModelFit) -> list[str]:
    known_interval = isfinite(misaligned.kappa_low)
    wide = f" ({misaligned.kappa_low:.3g} to {misaligned.kappa_high:.3g})" if known_interval else ""
    if d.checkpoint_gap[1] > 1:
        said = [
            f"κ, squares add: if the steps between checkpoints are independent, κ in ‖δ‖ = κη‖θ‖ of one step is "
            f"{misaligned.kappa:.3g}{wide}, from all intervals together.",
            f"κ, lengths add: if they are parallel, κ is {aligned.kappa:.3g}. This is a lower bound of the mean κ over "
            "all intervals; the table has a bound for each interval, which may be lower.",
        ]
    else:
        said = [f"κ in ‖δ‖ = κη‖θ‖: {misaligned.kappa:.3g}{wide}."]
    if isfinite(misaligned.kappa_drift):
        said.append(
            f"κ of the later half is {misaligned.kappa_drift:.3g} times that of the earlier half; 1 under Assumption 1."
        )
    idle = _moved_without_rate(d, misaligned)
    # Decay by eq. (3) moves the weights even where η = 0.
    if idle and not (d.weight_decay and d.optimizer.decay == "eq3"):
        said.append(
            f"The weights moved in {len(idle)} of {len(d.step_sizes)} intervals in which the schedule has η = 0, first "
            f"before step {idle[0]:,}: the schedule does not belong to this run."
        )
    end = _end(d)
    norm = ", ".join(f"{fit.predicted[end]:.5g} {fit.model}" for fit in (aligned, misaligned))
    by = "the fitted κ" if d.kappa is None else f"κ = {d.kappa:g}"
    said.append(f"The norm at step {d.steps[end]:,} is {d.norms[end]:.5g}; predicted with {by}: {norm}.")
    return said


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
            f"‖θ‖² {growth_terms(budget.growth, *terms)}{up_to}; the mean alignment is {d.alignment:.3g}."
        )
    if budget.by_decay > 0:
        rest = budget.by_alignment * budget.growth + budget.by_decay
        said.append(f"Weight decay contributed −{budget.by_decay:.4g} to Σ2⟨θ,δ⟩; the rest is {rest:.4g}.")
    intervals = sum(step <= budget.until for step in d.steps) - 1
    if isfinite(budget.displacement) and intervals > 1:
        said.append(
            f"‖θ_T − θ_0‖² / Σ‖δ‖² is {budget.displacement:.3g}: 1 if intervals are independent, "
            f"{intervals} if all have the same direction."
        )
    return said


def undecided(d: Dynamics) -> list[str]:
    """What the trace cannot decide, and which data would."""
    return [_question(d, question) for question in d.open_questions]


def _question(d: Dynamics, question: str) -> str:
    if question == "model":
        return "Which model fits: κ is too uncertain, or the growth too small."
    if question == "single_steps":
        steps, sizes = np.array(d.steps), np.array(d.step_sizes)
        once = np.nansum((sizes**2 / np.diff(steps))[steps[1:] <= d.budget.until])
        share = (
            f"{float(f'{100 * once / d.budget.growth:.2g}'):g} %" if d.budget.growth > 0 else "very little"
        )
        return (
            f"How single steps contribute. If the steps between two checkpoints were parallel, their Σ‖δ‖² would be "
            f"{share} of the growth; momentum makes δ between checkpoints larger, and steps that cancel do not show. "
            "Checkpoints of neighboring steps, or κ logged during training, would decide it."
        )
    if question == "one_direction":
        return "Whether single steps are correlated, as intervals are: κ for independent steps would then be too large."
    if question == "weight_decay":
        return "Whether there was weight decay, which makes the alignment negative: give --weight-decay if it is known."
    count = 0 if d.misaligned is None else sum(map(isfinite, d.misaligned.kappa_by_interval))
    few = "1 interval is" if count == 1 else f"{count} intervals are"
    return f"The uncertainty of κ: {few} too few for a confidence interval."


def weight_decay(d: Dynamics) -> list[str]:
    """The equilibria under weight decay, or why there are none."""
    if d.weight_decay is None:
        return []
    if not d.equilibria:
        if d.optimizer.optimizer == "adamw":
            return ["The equilibrium of adamw needs the number of weights, which these records lack."]
        return [
            "Without weight decay (λ = 0) there is no equilibrium; the gradient norm (--gradient-norm) would give λ*, "
            "which keeps the norm."
        ]
    said = []
    for row in d.equilibria:
        at, found = f"At η = {row.lr:.3g} (step {row.step:,})", row.equilibrium
        if row.lr == 0:
            said.append(f"{at} only weight decay moves the weights: there is no equilibrium.")
            continue
        if not isfinite(found.norm):
            said.append(f"{at} and λ = 0 there is no equilibrium: the norm grows without limit.")
        else:
            said.append(
                f"{at} random gradients have an equilibrium norm of {found.norm:.4g}, a rotation of "
                f"{found.rotation:.3g} radians per step and a time constant of {found.time:,.0f} steps. The last norm "
                f"is {row.reached:.3g} times the equilibrium norm."
            )
        said.append(
            f"With random gradients λ* = {row.stationary_decay:.3g} would keep the first norm (here λ = "
            f"{d.weight_decay:g}); under Assumption 1, misaligned, λ = {row.holding_decay:.3g} would keep any norm."
        )
    return said


def direction(found: Direction) -> list[str]:
    """Sentences on the total turn of the direction, and on whether it converges."""
    said = [
        f"The angles between neighboring checkpoints sum to {found.total[-1]:.3g} radians up to step "
        f"{found.steps[-1]:,}."
    ]
    if isfinite(found.q):
        meaning = {
            "turns on": "the direction does not converge, unless later turns undo earlier ones",
            "converges": "the angles have a finite sum, so the direction converges (as it must if η falls to 0)",
            "undecided": "this does not decide whether the direction converges",
        }[found.verdict]
        interval = f"{-found.high:.2f} to {-found.low:.2f}"
        said.append(f"Squared angles per step scale as t^{-found.q:.2f} ({interval}): {meaning}.")
    else:
        said.append("There are too few intervals to say whether the direction converges.")
    doubled = found.doubled
    if len(doubled.steps) > 1:
        said.append(
            f"cos(θ_t, θ_t/2) is {doubled.cosine[0]:.4f} at step {doubled.steps[0]:,} and {doubled.cosine[-1]:.4f} at "
            f"{doubled.steps[-1]:,}; it goes to 1 if the direction converges."
        )
    else:
        said.append("A trace with lags (`normgrowth trace --lags 1,2,4,8`) would also give cos(θ_t, θ_t/2).")
    return said


def uniformity(found: Uniformity) -> str:
    """The smallest and the largest growth of layers, roles or tensors."""
    good = [i for i, factor in enumerate(found.factor) if isfinite(factor)]
    if len(good) < 2 or found.first_step == found.last_step:
        return f"There are too few {found.level}s or checkpoints to compare their growth."
    low, high = (end(good, key=lambda i: found.factor[i]) for end in (min, max))
    return (
        f"{found.level.capitalize()}s grew by ×{times(found.factor[low])} ({found.names[low]}) to "
        f"×{times(found.factor[high])} ({found.names[high]}), a ratio of {found.spread:.3g}; "
        f"{100 * found.moved:.2g} % of ‖θ‖² moved between {found.level}s."
    )


def _end(d: Dynamics) -> int:
    """The index of the last finite norm."""
    return max(i for i, norm in enumerate(d.norms) if isfinite(norm))
