"""Sections 4.2, 5.2, C and D, judged by the stage `theory`: limits, degrees, gradients, constructions."""

import numpy as np

from normgrowth.errors import InputError
from normgrowth.paper.claim import (
    FAILS,
    HOLDS,
    IN_PART,
    Claim,
    Evidence,
    Numbers,
    Ruling,
)
from normgrowth.paper.claims.trained_models import trained

SAME_DEGREE = 1e-3  # of a measured degree to the one computed


def runs(evidence: Evidence, stage: str, prefix: str) -> dict[str, dict[str, float]]:
    """The numbers of each run whose name begins so."""
    found: dict[str, dict[str, float]] = {}
    for row in evidence[stage].where(level="model").table.to_pylist():
        if row["run"].startswith(prefix):
            found.setdefault(row["run"].removeprefix(prefix), {})[row["quantity"]] = row["value"]
    if not found:
        raise InputError(f"the stage {stage} has nothing of {prefix.strip(': ')}")
    return found


def _saturation_limit(evidence: Evidence) -> dict[str, float]:
    limits = runs(evidence, "theory", "limit: ")
    tie = runs(evidence, "theory", "tie")[""]
    return {
        "networks": float(len(limits)),
        "largest distance from the limit": max(one["away"] for one in limits.values()),
        "at a tie: largest weight of the saturated network": tie["saturated"],
        "at a tie: the same as weights grow": tie["moved"],
    }


def _judge_saturation_limit(n: Numbers) -> Ruling:
    away = n["largest distance from the limit"]
    told = f"At c = 10⁴ {n['networks']:.0f} networks are within {away:.0e} of their exact limits"
    if away > 1e-3:
        return Ruling(FAILS, f"{told}: they do not come to them.")
    limit, moved = (
        n["at a tie: largest weight of the saturated network"],
        n["at a tie: the same as weights grow"],
    )
    if abs(limit - moved) > 1e-3:
        return Ruling(
            IN_PART,
            f"{told}; but where scores tie, growth that is uniform up to o(t) goes to weights of {moved:.2f} instead "
            f"of {limit:.2f}: the proposition needs that nothing ties.",
        )
    return Ruling(HOLDS, f"{told}, at a tie too.")


def _attention_power(evidence: Evidence) -> dict[str, float]:
    found = runs(evidence, "theory", "construction: ")
    return {
        "languages": float(len(found)),
        "strings": sum(one["strings"] for one in found.values()),
        "wrong, saturated": sum(one["wrong"] for one in found.values()),
        "wrong, soft with large weights": sum(one["wrong_soft"] for one in found.values()),
        "strings of aⁿbⁿcⁿ's alphabet": found["anbncn"]["strings"],
    }


def _judge_attention_power(n: Numbers) -> Ruling:
    wrong = n["wrong, saturated"] + n["wrong, soft with large weights"]
    told = (
        f"Networks built by hand for {n['languages']:.0f} languages, aⁿbⁿcⁿ among them, err on {wrong:.0f} of all "
        f"{n['strings']:,.0f} strings up to a length, saturated or with large weights"
    )
    return Ruling(FAILS if wrong else HOLDS, f"{told}.")


def _homogeneity_table(evidence: Evidence) -> dict[str, float]:
    rows = runs(evidence, "theory", "table1: ")
    printed = [row for row in rows.values() if np.isfinite(row["printed"])]
    return {
        "components": float(len(rows)),
        "printed": float(len(printed)),
        "printed as computed": float(sum(row["printed"] == row["degree"] for row in printed)),
        "largest difference of computed and measured": max(
            abs(row["degree"] - row["degree_measured"]) for row in rows.values()
        ),
    }


def _judge_homogeneity_table(n: Numbers) -> Ruling:
    if n["largest difference of computed and measured"] > SAME_DEGREE:
        return Ruling(FAILS, "Degrees measured by growing the weights are not those computed.")
    right, printed = n["printed as computed"], n["printed"]
    told = f"{right:.0f} of {printed:.0f} printed degrees are those computed and measured"
    if right == printed:
        return Ruling(HOLDS, f"{told}.")
    if right < printed / 2:
        return Ruling(FAILS, f"{told}.")
    return Ruling(IN_PART, f"{told}; a head has degree 2 and not 1 (Prop. 4), which the next norm resets.")


def _encoder_degree(evidence: Evidence) -> dict[str, float]:
    rows = runs(evidence, "theory", "table1: ")
    return {
        "paper's pre-norm without biases": rows["paper's encoder"]["degree_measured"],
        "with a linear classifier": rows["paper's with classifier"]["degree_measured"],
        "usual pre-norm": rows["usual pre-norm encoder"]["degree_measured"],
        "post-norm": rows["post-norm encoder"]["degree_measured"],
    }


def _judge_encoder_degree(n: Numbers) -> Ruling:
    own, classifier = n["paper's pre-norm without biases"], n["with a linear classifier"]
    usual, post = n["usual pre-norm"], n["post-norm"]
    told = f"The paper's pre-norm has degree {own:.3f}, with a classifier {classifier:.3f}"
    if abs(own - 1) > SAME_DEGREE or abs(classifier - 2) > SAME_DEGREE:
        return Ruling(FAILS, f"{told}, not 1 and 2.")
    return Ruling(
        HOLDS,
        f"{told}; the usual pre-norm has {usual:.0f}, and post-norm too has a degree, {post:.0f}, though terms of "
        "lower degree vanish on the way.",
    )


def _homogeneous_gradient(evidence: Evidence) -> dict[str, float]:
    rows = [row for row in runs(evidence, "theory", "table1: ").values() if "gradient_degree" in row]
    drifts, grown = [], []
    for model in trained(evidence, leaking=False):
        own = model.records.where(run=model.name)
        steps, sizes = own.series("step_size")
        at = {
            quantity: dict(zip(*own.series(quantity), strict=True)) for quantity in ("norm", "learning_rate")
        }
        kappa = np.array(
            [
                size / (at["learning_rate"][step] * at["norm"][step])
                for step, size in zip(steps, sizes, strict=True)
                if at["learning_rate"].get(step)
            ]
        )[len(steps) // 4 :]
        earlier, later = np.array_split(kappa, 2)
        drifts.append(float(later.mean() / earlier.mean()))
        grown.append(model.ends("norm")[1] / model.ends("norm")[0])
    return {
        "gradients": float(len(rows)),
        "largest error of their degree": max(
            abs(row["gradient_degree"] - (row["degree"] - 1)) for row in rows
        ),
        "κ, later half over earlier: least": min(drifts),
        "κ, later half over earlier: largest": max(drifts),
        "largest factor of growth": max(grown),
    }


def _judge_homogeneous_gradient(n: Numbers) -> Ruling:
    error, low, high = (
        n["largest error of their degree"],
        n["κ, later half over earlier: least"],
        n["κ, later half over earlier: largest"],
    )
    if error > 2 * SAME_DEGREE:
        return Ruling(FAILS, f"Degrees of gradients are not k − 1: they differ by {error:.1e}.")
    told = f"Gradients of {n['gradients']:.0f} networks have degree k − 1 (to {error:.0e})"
    steps = f"in training κ = ‖δ‖/(η‖θ‖) changes by {low:.2f} to {high:.2f}, where Assumption 1 says 1"
    if low <= 0.8 or high >= 1.25:
        return Ruling(IN_PART, f"{told}; but {steps}.")
    if (factor := n["largest factor of growth"]) < 2:
        return Ruling(
            IN_PART,
            f"{told}; {steps}, but norms grow by {factor:.2f} at most, too little to tell ‖θ‖ from a constant.",
        )
    return Ruling(HOLDS, f"{told}; {steps}.")


CLAIMS = [
    Claim(
        id="saturation-limit",
        where="Prop. 1 and 2",
        statement="Uniform growth makes a network converge to its saturated self.",
        published="proof",
        source="text",
        stages=("theory",),
        measure=_saturation_limit,
        rule=(
            "Networks at c = 10⁴ are within 10⁻³ of their exact limits; in part if growth that is uniform up to "
            "o(t) goes elsewhere at a tie."
        ),
        judge=_judge_saturation_limit,
    ),
    Claim(
        id="attention-power",
        where="§4.2",
        statement=(
            "Saturated attention computes argmax (ties averaged) and mean; with mean heads it counts, and recognises "
            "aⁿbⁿcⁿ."
        ),
        published="construction",
        source="text",
        stages=("theory",),
        measure=_attention_power,
        rule="Networks built by hand err on no string up to a length.",
        judge=_judge_attention_power,
    ),
    Claim(
        id="homogeneity-table",
        where="Table 1, §C",
        statement="The degree rules of a network's parts, which approximate homogeneity keeps.",
        published="Table 1; proofs in sections C and D",
        source="text",
        stages=("theory",),
        measure=_homogeneity_table,
        rule=(
            "Every printed degree is the one computed, which is the one measured (to 10⁻³); in part if more than "
            "half are."
        ),
        judge=_judge_homogeneity_table,
    ),
    Claim(
        id="encoder-degree",
        where="§D",
        statement=(
            "The pre-norm encoder without biases is 1-homogeneous, with a linear classifier 2-homogeneous; the "
            "argument fails for post-norm."
        ),
        published="proof",
        source="text",
        stages=("theory",),
        measure=_encoder_degree,
        rule="Measured degrees are 1 and 2 to 10⁻³.",
        judge=_judge_encoder_degree,
    ),
    Claim(
        id="homogeneous-gradient",
        where="§5.2",
        statement="Gradients of a k-homogeneous function have degree k − 1, so that ‖δ‖ goes as η‖θ‖.",
        published="Assumption 1",
        source="text",
        stages=("theory", "language_models"),
        measure=_homogeneous_gradient,
        rule=(
            "Gradients have degree k − 1 (to 2·10⁻³), and in training κ = ‖δ‖/(η‖θ‖) stays between 0.8 and 1.25 "
            "of what it was while a norm doubles; in part if the first only."
        ),
        judge=_judge_homogeneous_gradient,
    ),
]
