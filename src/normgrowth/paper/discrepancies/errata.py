"""Statements that are wrong as printed, each with the numbers of both sides.

Each erratum is computed: if the printed statement were right, `differs` would be False. `departures` covers the
authors' code, `caveats` the limits of true statements.
"""

from math import exp, sqrt
from typing import Self

import numpy as np

from normgrowth.paper.claim import Discrepancy, number
from normgrowth.paper.claims.decay_and_schedule import WeightDecay
from normgrowth.paper.evidence import Evidence

SMALL = 1e-3


class HeadDegree(Discrepancy):
    id, where, needs = "prop-4", "Prop. 4", ("theory",)
    stated = "An attention head AV has degree 1."
    correct = "It has degree 2: A has 0, V has 2. The degree of the sublayer is unchanged, since the norm resets it."
    degree_printed: float = number("degree, printed")
    degree_measured: float = number("degree, measured")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        row = evidence.theory.table1["attention head (Prop. 4)"]
        return cls(row.printed, row.measured)

    def differs(self) -> bool:
        return abs(self.degree_printed - self.degree_measured) > SMALL


class UniformGrowthWithTies(Discrepancy):
    id, where, needs = "prop-2", "Prop. 2", ("theory",)
    stated = "If θ_t → θ′·c(t), a network converges to its saturated network."
    correct = (
        "If scores tie, a vanishing difference of θ_t and θ′·c(t) decides, and the limit is another network."
    )
    saturated: float = number("largest weight, saturated")
    moved: float = number("largest weight as t grows")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        return cls(evidence.theory.tie.saturated, evidence.theory.tie.moved)

    def differs(self) -> bool:
        return abs(self.saturated - self.moved) > SMALL


class SoftmaxError(Discrepancy):
    """The error of softmax at x = (M, M − gap), c = 100."""

    id, where = "lemma-7", "Lemma 7"
    stated = "The scaling error of softmax vanishes as ‖x‖ grows."
    correct = "It vanishes as the gap between the two largest entries grows."
    large: float = number("error, ‖x‖ large (M = 10)")
    larger: float = number("error, ‖x‖ larger (M = 10⁶)")
    wide_gap: float = number("error, the gap larger (M = 10, gap 10)")

    @classmethod
    def measure(cls, _: Evidence) -> Self:
        def error(size: float, gap: float) -> float:
            x = np.array([size, size - gap])
            weights = [np.exp(scale * (x - x.max())) for scale in (1.0, 100.0)]
            one, other = (w / w.sum() for w in weights)
            return float(np.abs(one - other).max())

        return cls(error(10.0, 0.1), error(1e6, 0.1), error(10.0, 10.0))

    def differs(self) -> bool:
        return self.larger > 0.9 * self.large


class ScalingError(Discrepancy):
    """f(θ) = θσ(θ), of degree 1, at θ = 20: |f(cθ) − c·f(θ)|, and the same divided by c; c = 10¹²."""

    id, where = "definition-3", "Definition 3, Lemma 4"
    stated = "The scaling error is ‖f(cθ) − cᵏf(θ)‖."
    correct = "It must be ‖f(cθ)/cᵏ − f(θ)‖: without the division θσ(θ) has an error that grows with c."
    error: float = number("error, printed")
    divided: float = number("error, divided by cᵏ")

    @classmethod
    def measure(cls, _: Evidence) -> Self:
        theta, c = 20.0, 1e12
        # f(θ) = θ − θ(1 − σ(θ)), and f(cθ) = cθ in float64.
        missing = theta / (1 + exp(theta))
        return cls(c * missing, missing)

    def differs(self) -> bool:
        return self.error > 1 and self.divided < SMALL


class NormBound(Discrepancy):
    """Layer norm of (1, 0, −1) + ε(1, −1, 0), ε = 10⁻⁸: the last bound of the proof, and the error itself."""

    id, where = "lemma-5", "Lemma 5"
    stated = "The scaling error of layer norm has a bound that vanishes."
    correct = "The last printed bound does not vanish. The bound 2‖ε‖/‖f − μ‖ does."
    bound: float = number("bound, printed")
    error: float = number("error")

    @classmethod
    def measure(cls, _: Evidence) -> Self:
        def layer_norm(x: np.ndarray) -> np.ndarray:
            centered = x - x.mean()
            return centered / np.linalg.norm(centered)

        base, small = np.array([1.0, 0.0, -1.0]), 1e-8 * np.array([1.0, -1.0, 0.0])
        value, size = layer_norm(base), np.linalg.norm(small)
        bound = np.abs(small - size * value).max() / size
        return cls(bound, np.abs(layer_norm(base + small) - value).max())

    def differs(self) -> bool:
        return self.bound > 0.1 and self.error < SMALL


class PreNorm(Discrepancy):
    id, where, needs = "pre-norm", "§3, §A, Definitions 5 and 6", ("theory",)
    stated = "The paper's pre-norm is the standard one (Xiong et al., 2020)."
    correct = "The standard one is x + f(LN(x)), of degree 3; the paper's is x + LN(f(x)), of degree 1."
    paper: float = number("degree, its pre-norm")
    usual: float = number("degree, the usual one")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        rows = evidence.theory.table1
        return cls(rows["paper's encoder"].measured, rows["usual pre-norm encoder"].measured)

    def differs(self) -> bool:
        return abs(self.paper - self.usual) > SMALL


class LiteralLimit(Discrepancy):
    """The degree of the paper's encoder, and the distance of f(x; cθ)/cᵏ from its limit at c = 10⁴."""

    id, where, needs = "definition-1", "Definition 1", ("theory",)
    stated = "The saturated network is the limit of f(x; cθ), undefined where there is none."
    correct = (
        "For k > 0, f(x; cθ) diverges as cᵏ: the saturated network of an encoder would be undefined. f(x; cθ)/cᵏ "
        "converges; the paper compares its direction."
    )
    degree: float = number("k of the paper's encoder")
    away: float = number("largest relative distance of f(x; cθ)/cᵏ from its limit")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        theory = evidence.theory
        return cls(theory.table1["paper's encoder"].measured, max(one.away for one in theory.limits.values()))

    def differs(self) -> bool:
        return self.degree > SMALL and self.away < SMALL


class ZeroFunction(Discrepancy):
    """f(θ) = ReLU(−θ²) at θ = 1, c = 100: |f(cθ) − cᵏf(θ)| for k = 1 and k = 2."""

    id, where = "lemma-1", "Lemma 1"
    stated = "A function has at most one degree."
    correct = "The function f = 0 has every degree: the proof divides by f."
    first: float = number("scaling error for k = 1")
    second: float = number("scaling error for k = 2")

    @classmethod
    def measure(cls, _: Evidence) -> Self:
        def f(theta: float) -> float:
            return max(-(theta**2), 0.0)

        c = 100.0
        return cls(*(abs(f(c) - c**k * f(1.0)) for k in (1, 2)))

    def differs(self) -> bool:
        return max(self.first, self.second) < SMALL


class ScaleInvariance(Discrepancy):
    """σ(θ₁ + θ₂) at θ = (M, gap − M): |σ at cθ − σ at θ|, c = 100."""

    id, where = "prop-3", "Proposition 3"
    stated = "σ, softmax and tanh of a homogeneous function become scale-invariant as ‖θ‖ grows."
    correct = "They do if the value of the function grows, which a growing ‖θ‖ does not imply: θ₁ + θ₂ can stay small."
    large: float = number("error, M = 10, gap 0.1")
    larger: float = number("error, M = 10⁶, gap 0.1")
    far: float = number("error, M = 10, gap 10")

    @classmethod
    def measure(cls, _: Evidence) -> Self:
        def error(size: float, gap: float) -> float:
            one, other = (1 / (1 + exp(-(c * size + c * (gap - size)))) for c in (1.0, 100.0))
            return abs(one - other)

        return cls(error(10.0, 0.1), error(1e6, 0.1), error(10.0, 10.0))

    def differs(self) -> bool:
        return self.larger > 0.9 * self.large


class LossGradient(Discrepancy):
    """The gradient norm of the logistic loss of a logit θ₁θ₂ of degree 2, at c = 10 divided by that at c = 1."""

    id, where = "assumption-1", "Assumption 1, §5.2"
    stated = "If gradients of the classifier's output have degree 1, steps of gradient descent go as η‖θ‖."
    correct = (
        "The gradient of the loss also contains the derivative of the loss, which is nearly constant for wrong answers "
        "only. For right answers it vanishes exponentially, and the step with it."
    )
    assumed: float = number("assumed")
    wrong: float = number("a wrong answer")
    right: float = number("a right answer")

    @classmethod
    def measure(cls, _: Evidence) -> Self:
        def gradient(c: float, label: int) -> float:
            """The norm at θ = (c, c): the gradient of log(1 + exp(−label·θ₁θ₂)) is −label·σ(−label·c²)·(c, c)."""
            return sqrt(2) * c / (1 + exp(label * c * c))

        return cls(10.0, *(gradient(10.0, label) / gradient(1.0, label) for label in (-1, 1)))

    def differs(self) -> bool:
        return self.right < 0.1 * self.assumed


class MissingFactor(Discrepancy):
    """θ = (1, 0), δ = (1, 1)."""

    id, where = "section-e2", "§E.2"
    stated = "‖θ + δ‖² = ‖θ‖² + ⟨θ,δ⟩ + ‖δ‖²."
    correct = "‖θ‖² + 2⟨θ,δ⟩ + ‖δ‖². The conclusions are unchanged, since ⟨θ,δ⟩ is assumed to be 0."
    squared: float = number("‖θ + δ‖²")
    printed: float = number("right-hand side, printed")
    doubled: float = number("right-hand side, with the factor 2")

    @classmethod
    def measure(cls, _: Evidence) -> Self:
        theta, delta = np.array([1.0, 0.0]), np.array([1.0, 1.0])
        rest, dot = float(theta @ theta + delta @ delta), float(theta @ delta)
        return cls(float(np.sum((theta + delta) ** 2)), rest + dot, rest + 2 * dot)

    def differs(self) -> bool:
        return abs(self.squared - self.printed) > SMALL and abs(self.squared - self.doubled) < SMALL


class TwoThresholds(Discrepancy):
    id, where, needs = "thresholds", "§F", ("decay",)
    stated = "Growth ends at a threshold of λ between 0.001 and 0.01, and is probable at λ = 0.01."
    correct = (
        "At PyTorch's η the measured threshold is above the printed range, so the norm grows at λ = 0.01, as the next "
        "sentence of §F says. The threshold depends on η."
    )
    at_default: float = number("growth ends at λ, for η = 0.001")
    printed: float = number("largest threshold, printed")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        return cls(WeightDecay.measure(evidence).at_default, 1e-2)

    def differs(self) -> bool:
        return self.at_default > self.printed


ERRATA: dict[str, type[Discrepancy]] = {
    one.id: one
    for one in (
        *(LiteralLimit, UniformGrowthWithTies, ScalingError, LossGradient, ZeroFunction, NormBound),
        *(SoftmaxError, ScaleInvariance, HeadDegree, PreNorm, MissingFactor, TwoThresholds),
    )
}
