"""Statements that are wrong as printed, each with the numbers of both sides; `departures` has the authors' code.

None is taken for granted: if the printed statement held, `differs` would be False. `CAVEATS` are true statements with
a limit that readers should know.
"""

from dataclasses import dataclass
from math import exp
from typing import Self

import numpy as np

from normgrowth.paper.claim import Discrepancy, number
from normgrowth.paper.evidence import Evidence

SMALL = 1e-3


@dataclass(frozen=True)
class HeadDegree(Discrepancy):
    id, where, needs = "prop-4", "Prop. 4", ("theory",)
    stated = "An attention head AV has degree 1."
    correct = "It has degree 2: A has 0, V has 2. The sublayer's degree stays, since the norm resets it."
    degree_printed: float = number("degree, printed")
    degree_measured: float = number("degree, measured")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        row = evidence.theory.table1["attention head (Prop. 4)"]
        return cls(row.printed, row.measured)

    def differs(self) -> bool:
        return abs(self.degree_printed - self.degree_measured) > SMALL


@dataclass(frozen=True)
class TiedScores(Discrepancy):
    id, where, needs = "prop-2", "Prop. 2", ("theory",)
    stated = "Growth that is uniform up to o(t) makes a network its saturated self."
    correct = "Where scores tie, o(t) decides, and the limit is another."
    saturated: float = number("largest weight, saturated")
    moved: float = number("largest weight as t grows")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        return cls(evidence.theory.tie.saturated, evidence.theory.tie.moved)

    def differs(self) -> bool:
        return abs(self.saturated - self.moved) > SMALL


@dataclass(frozen=True)
class SoftmaxError(Discrepancy):
    """x = (M, M − gap), c = 100."""

    id, where = "lemma-7", "Lemma 7"
    stated = "The scaling error of softmax vanishes as ‖x‖ grows."
    correct = "It vanishes as the gap between the largest entry and the next grows."
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


@dataclass(frozen=True)
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
        # θ(1 − σ(θ)) is missing from f(θ); nothing that a float can hold is missing from f(cθ).
        missing = theta / (1 + exp(theta))
        return cls(c * missing, missing)

    def differs(self) -> bool:
        return self.error > 1 and self.divided < SMALL


@dataclass(frozen=True)
class NormBound(Discrepancy):
    """Layer norm of (1, 0, −1) + ε(1, −1, 0), ε = 10⁻⁸: the last bound of the proof, and the error itself."""

    id, where = "lemma-5", "Lemma 5"
    stated = "The scaling error of layer norm is bounded by something that vanishes."
    correct = "The last bound printed does not vanish; 2‖ε‖/‖f − μ‖ does, and bounds it."
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


@dataclass(frozen=True)
class PreNorm(Discrepancy):
    id, where, needs = "pre-norm", "§3, §A, Definitions 5 and 6", ("theory",)
    stated = "Its pre-norm is the standard one (Xiong et al., 2020)."
    correct = "The standard one is x + f(LN(x)), of degree 3; its own is x + LN(f(x)), of degree 1."
    paper: float = number("degree, its pre-norm")
    usual: float = number("degree, the usual one")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        rows = evidence.theory.table1
        return cls(rows["paper's encoder"].measured, rows["usual pre-norm encoder"].measured)

    def differs(self) -> bool:
        return abs(self.paper - self.usual) > SMALL


@dataclass(frozen=True)
class VanishingAttention(Discrepancy):
    """A caveat: the paper claims a degree for its own definitions, which have it; gated networks are outside."""

    id, where, needs = "vanishing", "§5.2, §D", ("theory",)
    stated = "Transformer encoders without biases, as the paper defines them, have degree 1."
    correct = (
        "So they do. In other transformers branches differ in degree, and those of lower degree vanish: in gated "
        "networks, such as Llama, all attention after the first layer."
    )
    turned: float = number("1 − cosine without later attention, c = 1")
    turned_scaled: float = number("the same at c = 1000")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        found = evidence.theory.vanishing
        return cls(found.turned, found.turned_scaled)

    def differs(self) -> bool:
        return self.turned > 0.01 and self.turned_scaled < 1e-6


ERRATA: dict[str, type[Discrepancy]] = {
    one.id: one for one in (HeadDegree, TiedScores, SoftmaxError, ScalingError, NormBound, PreNorm)
}
CAVEATS: dict[str, type[Discrepancy]] = {one.id: one for one in (VanishingAttention,)}
