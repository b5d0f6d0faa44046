"""Dynamics in sentences: what was found, what cannot be decided, weight decay, direction, uniformity."""

from math import isfinite

import numpy as np

from normgrowth.dynamics.direction import Direction
from normgrowth.dynamics.result import Dynamics, ModelFit
from normgrowth.dynamics.uniformity import Uniformity
from normgrowth.report.sentences.trace import growth_terms


def findings(d: Dynamics) -> list[str]:
    """The checkpoints, κ, the predicted norms, the budget, and the model that fits."""
    low, high = d.checkpoint_gap
    apart = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    sums = "steps apart: each δ is their sum" if high > 1 else "step apart: each δ is that step"
    said = [f"{len(d.steps)} checkpoints, {apart} optimizer {sums}."]
    if d.aligned is not None and d.misaligned is not None:
        said += _models(d, d.aligned, d.misaligned)
    said += _budget(d)
    if d.aligned is not None and d.verdict is not None:
        end = _end(d)
        amount = "more" if d.norms[end] > d.aligned.predicted[end] else "less"
        said.append(
            {
                "misaligned": "Misaligned dynamics fit.",
                "aligned": "Aligned dynamics fit.",
                "both": "Both models come near the norm.",
                "between": "It lies between the models: misaligned dynamics grow too slowly, aligned ones too fast.",
                "neither": f"Neither model fits: the norm grew {amount} than either says.",
            }[d.verdict]
        )
    return said


def _models(d: Dynamics, aligned: ModelFit, misaligned: ModelFit) -> list[str]:
    known_interval = isfinite(misaligned.kappa_low)
    wide = f" ({misaligned.kappa_low:.3g} to {misaligned.kappa_high:.3g})" if known_interval else ""
    if d.checkpoint_gap[1] > 1:
        said = [
            f"κ in ‖δ‖ = κη‖θ‖ of one step: {misaligned.kappa:.3g}{wide} if steps are independent (squares add), and "
            f"{aligned.kappa:.3g} at least (lengths add)."
        ]
    else:
        said = [f"κ in ‖δ‖ = κη‖θ‖: {misaligned.kappa:.3g}{wide}."]
    if isfinite(misaligned.kappa_drift):
        said.append(
            f"From the earlier half to the later κ changed by ×{misaligned.kappa_drift:.3g}; Assumption 1 says ×1."
        )
    idle = _moved_without_rate(d, misaligned)
    if idle and not (d.weight_decay and d.optimizer.decay == "eq3"):  # that decay goes on where η is 0
        said.append(
            f"In {len(idle)} of {len(d.step_sizes)} intervals the weights moved although η is 0, first in the one "
            f"up to step {idle[0]:,}: the schedule is not that of the run."
        )
    end = _end(d)
    norm = ", ".join(f"{fit.predicted[end]:.5g} {fit.model}" for fit in (aligned, misaligned))
    by = "the fitted κ" if d.kappa is None else f"κ = {d.kappa:g}"
    said.append(f"Norm at step {d.steps[end]:,}: {d.norms[end]:.5g} measured; {norm} with {by}.")
    return said


def _moved_without_rate(d: Dynamics, fit: ModelFit) -> list[int]:
    """The ends of intervals with a step but no learning rate."""
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
        said.append(
            f"The weight decay alone took {budget.by_decay:.4g} of ‖θ‖²; without that part 2⟨θ,δ⟩ is {rest:.4g}."
        )
    intervals = sum(step <= budget.until for step in d.steps) - 1
    if isfinite(budget.displacement) and intervals > 1:
        said.append(
            f"‖θ_T − θ_0‖² is {budget.displacement:.3g} of Σ‖δ‖²: 1 if intervals are independent, "
            f"{intervals} if they all go one way."
        )
    return said


def undecided(d: Dynamics) -> list[str]:
    """What the trace cannot decide, and what would."""
    return [_question(d, question) for question in d.open_questions]


def _question(d: Dynamics, question: str) -> str:
    if question == "model":
        return "Which model it is: κ is too uncertain, or the growth too small, to tell them apart."
    if question == "single_steps":
        steps, sizes = np.array(d.steps), np.array(d.step_sizes)
        once = np.nansum((sizes**2 / np.diff(steps))[steps[1:] <= d.budget.until])
        share = (
            f"{float(f'{100 * once / d.budget.growth:.2g}'):g} %" if d.budget.growth > 0 else "very little"
        )
        return (
            f"What single steps do. If those of an interval all went one way, their Σ‖δ‖² would make {share} of "
            "the growth; momentum, too, makes checkpoints show more than steps have; steps that cancel leave no mark. "
            "Checkpoints of neighboring steps, or κ logged in training, decide it."
        )
    if question == "one_direction":
        return "Intervals go on in one direction, so single steps may too: κ of independent steps is then too large."
    if question == "weight_decay":
        return "Whether weight decay took part: it shows as a negative alignment. Give it if it is known."
    count = 0 if d.misaligned is None else sum(map(isfinite, d.misaligned.kappa_by_interval))
    few = "1 interval is" if count == 1 else f"{count} intervals are"
    return f"How sure κ is: {few} too few for a confidence interval."


def weight_decay(d: Dynamics) -> list[str]:
    """What the equilibria say, or why there are none."""
    if d.weight_decay is None:
        return []
    if not d.equilibria:
        if d.optimizer.optimizer == "adamw":
            return [
                "The number of weights is not known, so there is no equilibrium of adamw to compare with."
            ]
        return [
            "With λ = 0 there is no equilibrium; λ*, which would hold the first norm, depends on the gradient norm."
        ]
    said = []
    for row in d.equilibria:
        at, found = f"At η = {row.lr:.3g} (step {row.step:,})", row.equilibrium
        if row.lr == 0:
            said.append(f"{at} nothing but the decay moves: there is no equilibrium of random gradients.")
            continue
        if not isfinite(found.norm):
            said.append(
                f"{at} and λ = 0 there is no equilibrium: random gradients grow the norm without end."
            )
        else:
            said.append(
                f"{at} random gradients settle at a norm of {found.norm:.4g} and turn by {found.rotation:.3g} radians "
                f"a step; the distance falls by e in {found.time:,.0f} steps. The last norm is {row.reached:.3g} of it."
            )
        said.append(
            f"λ* = {row.stationary_decay:.3g} would hold the first norm against random gradients "
            f"(here λ = {d.weight_decay:g}); under Assumption 1, misaligned, λ = {row.holding_decay:.3g} would "
            "hold any."
        )
    return said


def direction(found: Direction) -> list[str]:
    """How far the direction turned, and whether it converges."""
    said = [
        f"The direction turned by {found.total[-1]:.3g} radians in all up to step {found.steps[-1]:,}, "
        "checkpoint to checkpoint."
    ]
    if isfinite(found.q):
        meaning = {
            "turns on": "the angles shrink too slowly for it to converge, unless later turns undo earlier ones",
            "converges": "the angles have a finite sum: it converges, as it must where η falls to 0",
            "undecided": "that does not decide whether it converges",
        }[found.verdict]
        interval = f"{-found.high:.2f} to {-found.low:.2f}"
        said.append(f"Squared angles per step go as t^{-found.q:.2f} ({interval}): {meaning}.")
    else:
        said.append(
            "There are too few intervals that turn to say how fast the angles fall, and whether it converges."
        )
    doubled = found.doubled
    if len(doubled.steps) > 1:
        said.append(
            f"cos(θ_t, θ_t/2) is {doubled.cosine[0]:.4f} at step {doubled.steps[0]:,} and {doubled.cosine[-1]:.4f} at "
            f"{doubled.steps[-1]:,}; a direction that converges takes it to 1."
        )
    else:
        said.append(
            "Lags of 1, 2, 4, 8, … checkpoints in the trace would give cos(θ_t, θ_t/2), which decides more."
        )
    return said


def uniformity(found: Uniformity) -> str:
    """How unevenly the parts grew."""
    good = [i for i, factor in enumerate(found.factor) if isfinite(factor)]
    if len(good) < 2 or found.first_step == found.last_step:
        return f"There is too little to compare the growth of {found.level}s."
    low, high = (end(good, key=lambda i: found.factor[i]) for end in (min, max))
    return (
        f"{found.level.capitalize()}s grew by ×{found.factor[low]:.3g} ({found.names[low]}) to "
        f"×{found.factor[high]:.3g} ({found.names[high]}), unevenly by ×{found.spread:.3g}; "
        f"{100 * found.moved:.2g} % of ‖θ‖² moved between them."
    )


def _end(d: Dynamics) -> int:
    """The place of the last norm that is finite."""
    return max(i for i, norm in enumerate(d.norms) if isfinite(norm))
