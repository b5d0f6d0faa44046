"""Claims of sections 4.2, 5.2, C and D, judged by the stage `theory`: limits, degrees, gradients, constructions."""

from math import isfinite
from typing import Self

import numpy as np

from normgrowth.paper.claim import Claim, Ruling, fails, holds, in_part, number
from normgrowth.paper.evidence import Evidence, TrainedModel

SAME_DEGREE = 1e-3  # tolerance between a measured and a computed degree


class SaturationLimit(Claim):
    """Holds if networks at c = 10⁴ are within 10⁻³ of their exact limits; in part if growth that is uniform up to o(t)
    has another limit at a tie.
    """

    id, where, needs = "saturation-limit", "Prop. 1 and 2", ("theory",)
    statement = "Uniform growth makes a network converge to the saturated network."
    published, source = "proof", "the paper's text"
    scope = "4 networks in float64, and a head whose scores tie"
    would_change = "A proof that excludes ties."
    networks: float = number("networks")
    distance: float = number("largest distance from the limit")
    tie_saturated: float = number("at a tie: largest weight of the saturated network")
    tie_moved: float = number("at a tie: the same weight as the network grows")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        limits, tie = evidence.theory.limits.values(), evidence.theory.tie
        return cls(len(limits), max(one.away for one in limits), tie.saturated, tie.moved)

    def judge(self) -> Ruling:
        told = f"At c = 10⁴ {self.networks:.0f} networks are within {self.distance:.0e} of their exact limits"
        if self.distance > 1e-3:
            return fails(f"{told}: they do not converge.")
        if abs(self.tie_saturated - self.tie_moved) > 1e-3:
            return in_part(
                f"{told}. But where scores tie, growth that is uniform up to o(t) leads to attention weights of "
                f"{self.tie_moved:.2f} instead of {self.tie_saturated:.2f}: the proposition must exclude ties."
            )
        return holds(f"{told}, also at a tie.")


class AttentionPower(Claim):
    """Holds if networks built by hand misjudge no string up to a given length."""

    id, where, needs = "attention-power", "§4.2", ("theory",)
    statement = (
        "Saturated attention computes argmax (ties averaged) and mean; with mean heads it counts, and recognizes "
        "aⁿbⁿcⁿ."
    )
    published, source = "construction", "the paper's text"
    scope = "networks built by hand, on all strings up to a given length"
    would_change = "A string that a hand-built network classifies wrongly."
    languages: float = number("languages")
    strings: float = number("strings")
    wrong: float = number("wrong, saturated")
    wrong_soft: float = number("wrong, soft with large weights")
    strings_abc: float = number("strings of aⁿbⁿcⁿ's alphabet")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        built = evidence.theory.constructions
        strings, wrong, soft = (
            sum(getattr(one, name) for one in built.values()) for name in ("strings", "wrong", "wrong_soft")
        )
        return cls(len(built), strings, wrong, soft, built["anbncn"].strings)

    def judge(self) -> Ruling:
        wrong = self.wrong + self.wrong_soft
        told = (
            f"Networks built by hand for {self.languages:.0f} languages, including aⁿbⁿcⁿ, misjudge {wrong:.0f} of all "
            f"{self.strings:,.0f} strings up to a given length, saturated or with large weights."
        )
        return fails(told) if wrong else holds(told)


class HomogeneityTable(Claim):
    """Holds if every printed degree equals the computed and (to 10⁻³) the measured degree; in part if at least half
    do.
    """

    id, where, figure, needs = "homogeneity-table", "Table 1, §C", "table1", ("theory",)
    statement = "The rules for the degrees of a network's parts also hold for approximate homogeneity."
    published, source = "Table 1; proofs in sections C and D", "the paper's text"
    scope = "the parts that Table 1, §C.3 and §D name, with and without biases"
    would_change = "A part whose measured degree differs from the computed one."
    components: float = number("components")
    printed: float = number("printed")
    correct: float = number("printed as computed")
    difference: float = number("largest difference of computed and measured")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        rows = evidence.theory.table1.values()
        printed = [row for row in rows if isfinite(row.printed)]
        difference = max(abs(row.computed - row.measured) for row in rows)
        correct = sum(row.printed == row.computed for row in printed)
        return cls(len(rows), len(printed), correct, difference)

    def judge(self) -> Ruling:
        if self.difference > SAME_DEGREE:
            return fails("The degrees measured by scaling the weights differ from the computed degrees.")
        told = f"{self.correct:.0f} of {self.printed:.0f} printed degrees equal the computed and measured degrees"
        if self.correct == self.printed:
            return holds(f"{told}.")
        if self.correct < self.printed / 2:
            return fails(f"{told}.")
        return in_part(f"{told}. A head has degree 2, not 1 (Prop. 4), which the next norm resets.")


class EncoderDegree(Claim):
    """Holds if the measured degrees are 1 and 2 (to 10⁻³)."""

    id, where, needs = "encoder-degree", "§D", ("theory",)
    statement = (
        "The pre-norm encoder without biases is 1-homogeneous, with a linear classifier 2-homogeneous; the argument "
        "fails for post-norm."
    )
    published, source = "proof", "the paper's text"
    scope = "the paper's Definitions 4 to 6, with 2 and 4 layers"
    would_change = "Another definition of pre-norm: the usual one has degree 3."
    paper_pre_norm: float = number("paper's pre-norm without biases")
    classifier: float = number("with a linear classifier")
    usual_pre_norm: float = number("usual pre-norm")
    post_norm: float = number("post-norm")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        rows = evidence.theory.table1
        return cls(
            rows["paper's encoder"].measured,
            rows["paper's with classifier"].measured,
            rows["usual pre-norm encoder"].measured,
            rows["post-norm encoder"].measured,
        )

    def judge(self) -> Ruling:
        told = f"The paper's pre-norm has degree {self.paper_pre_norm:.3f}, with a classifier {self.classifier:.3f}"
        if abs(self.paper_pre_norm - 1) > SAME_DEGREE or abs(self.classifier - 2) > SAME_DEGREE:
            return fails(f"{told}, not 1 and 2.")
        return holds(
            f"{told}. The usual pre-norm has degree {self.usual_pre_norm:.0f}. Post-norm also has a degree, "
            f"{self.post_norm:.0f}, although some of its terms have a lower degree and vanish."
        )


class HomogeneousGradient(Claim):
    """Holds if gradients have degree k − 1 (to 2·10⁻³), and in training κ = ‖δ‖/(η‖θ‖) changes by a factor between 0.8
    and 1.25 while a norm doubles; in part if only the first is true.
    """

    id, where, needs = "homogeneous-gradient", "§5.2", ("theory", "language_models")
    statement = (
        "Gradients of a k-homogeneous function have degree k − 1, so that ‖δ‖ is proportional to η‖θ‖."
    )
    published, source = "Assumption 1", "the paper's text"
    scope = "gradients of small networks; steps of language models trained here"
    would_change = "Runs in which the norm doubles: only they distinguish ‖θ‖ from a constant."
    gradients: float = number("gradients")
    degree_error: float = number("largest error of their degree")
    least_drift: float = number("κ, later half over earlier: smallest")
    largest_drift: float = number("κ, later half over earlier: largest")
    largest_growth: float = number("largest factor of growth")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        rows = [row for row in evidence.theory.table1.values() if isfinite(row.gradient)]
        error = max(abs(row.gradient - (row.computed - 1)) for row in rows)
        models = evidence.language_models.where(leaking=False)
        drifts = [kappa_drift(model) for model in models]
        norms = [model.first_and_last("norm") for model in models]
        return cls(len(rows), error, min(drifts), max(drifts), max(last / first for first, last in norms))

    def judge(self) -> Ruling:
        if self.degree_error > 2 * SAME_DEGREE:
            return fails(f"The degrees of gradients differ from k − 1 by up to {self.degree_error:.1e}.")
        told = f"Gradients of {self.gradients:.0f} networks have degree k − 1 (to {self.degree_error:.0e})"
        steps = (
            f"in training κ = ‖δ‖/(η‖θ‖) changes by factors of {self.least_drift:.2f} to {self.largest_drift:.2f} "
            "(1 under Assumption 1)"
        )
        if self.least_drift <= 0.8 or self.largest_drift >= 1.25:
            return in_part(f"{told}; but {steps}.")
        if self.largest_growth < 2:
            return in_part(
                f"{told}; {steps}, but norms grow at most by a factor of {self.largest_growth:.2f}, too little to "
                "distinguish ‖θ‖ from a constant."
            )
        return holds(f"{told}; {steps}.")


def kappa_drift(model: TrainedModel) -> float:
    """The mean κ = ‖δ‖/(η‖θ‖) of the later half of a run divided by that of the earlier, without the first quarter."""
    steps, sizes = model.measured.series("step_size")
    norm, rate = (
        dict(zip(*model.measured.series(quantity), strict=True)) for quantity in ("norm", "learning_rate")
    )
    kappa = [
        size / (rate[step] * norm[step]) for step, size in zip(steps, sizes, strict=True) if rate.get(step)
    ]
    earlier, later = np.array_split(kappa[len(steps) // 4 :], 2)
    return float(later.mean() / earlier.mean())


CLAIMS = (SaturationLimit, AttentionPower, HomogeneityTable, EncoderDegree, HomogeneousGradient)
