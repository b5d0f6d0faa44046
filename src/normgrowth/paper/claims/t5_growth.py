"""Sections 3 and 5.5, judged by the published numbers of T5: norm, layers, directions, alignment, step size."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from normgrowth.dynamics.direction import direction
from normgrowth.fit import fit
from normgrowth.paper.claim import Claim, Ruling, fails, holds, in_part, number, undecided
from normgrowth.paper.evidence import Evidence
from normgrowth.paper.published.figure1 import t5_trace
from normgrowth.paper.published.tables import published

FIGURE_1, FIGURE_5 = "published (Figure 1)", "derived from Figure 1"
ROUNDS_TO_ONE = 0.995  # r² that is printed as 1.00
PREFERRED = 2.0  # ΔAICc from which on one law is preferred to another


@dataclass(frozen=True)
class NormSqrt(Claim):
    """r² of a√t + b is at least 0.995; in part if √(b² + a²t) is preferred to it by ΔAICc > 2."""

    id, where, figure = "norm-sqrt", "§3, Fig. 1", "fig1"
    statement = "The parameter norm of T5-base follows a√t + b."
    published, source = "r² = 1.00, 104 checkpoints", FIGURE_1
    r2_sqrt: float = number("r2 of a√t + b")
    r2_sqrt2: float = number("r2 of √(b² + a²t)")
    delta_aicc: float = number("evidence for √(b² + a²t)")

    @classmethod
    def measure(cls, _: Evidence) -> Self:
        t5 = published("t5_norm")
        fits = fit(t5["step"], t5["norm"], bootstrap=0)
        sqrt, sqrt2 = fits["sqrt"], fits["sqrt2"]
        return cls(sqrt.r2, sqrt2.r2, sqrt.aicc_effective - sqrt2.aicc_effective)

    def judge(self) -> Ruling:
        if self.r2_sqrt < ROUNDS_TO_ONE:
            return fails(f"a√t + b has r² = {self.r2_sqrt:.4f}, which is not 1.00.")
        if self.delta_aicc > PREFERRED:
            return in_part(
                f"a√t + b has r² = {self.r2_sqrt:.4f}, as printed; √(b² + a²t), with as many parameters, has "
                f"{self.r2_sqrt2:.4f} and is preferred by {self.delta_aicc:.1f} (AICc, residuals correlated)."
            )
        return holds(f"a√t + b has r² = {self.r2_sqrt:.4f}, and √(b² + a²t) is not preferred to it.")


@dataclass(frozen=True)
class NormLayers(Claim):
    """Every layer grows with r² of at least 0.99, and slopes rise with depth (rank correlation 0.9); in part if every
    layer grows with r² of at least 0.9.
    """

    id, where, figure = "norm-layers", "§3, Fig. 1", "fig1"
    statement = "The norm grows in every layer as √t, faster in later layers."
    published, source = "figure", FIGURE_1
    least_factor: float = number("least factor of growth")
    least_r2: float = number("least r2 of a√t + b")
    rank_correlation: float = number("rank correlation of slope and layer")

    @classmethod
    def measure(cls, _: Evidence) -> Self:
        from scipy.stats import rankdata

        table = published("t5_norm_by_layer")
        factors, slopes, r2 = [], [], []
        numbers = np.unique(table["layer"]).tolist()
        for layer in numbers:
            own = table.layer(layer)
            law = fit(own["step"], own["norm"], laws=["sqrt"], bootstrap=0)["sqrt"]
            factors.append(own["norm"][-1] / own["norm"][0])
            slopes.append(law.params["a"])
            r2.append(law.r2)
        ranks = np.corrcoef(rankdata(slopes), numbers)[0, 1]  # layers are their own ranks
        return cls(min(factors), min(r2), float(ranks))

    def judge(self) -> Ruling:
        factor, r2, rank = self.least_factor, self.least_r2, self.rank_correlation
        if factor <= 1 or r2 < 0.9:
            return fails(f"A layer grows by {factor:.2f} only, or its r² is {r2:.3f}.")
        if r2 >= 0.99 and rank >= 0.9:
            return holds(
                f"All layers follow a√t + b (r² ≥ {r2:.3f}), the later the faster (rank {rank:.2f})."
            )
        return in_part(
            f"All layers grow, by {factor:.1f} or more, with r² ≥ {r2:.3f}; slope and depth agree in rank by "
            f"{rank:.2f}."
        )


@dataclass(frozen=True)
class DirectionConsecutive(Claim):
    """It rises to 0.99 or more, in every layer, and layers end within 0.01 of each other."""

    id, where, figure = "direction-consecutive", "§3, Fig. 1", "fig1"
    statement = "The cosine between consecutive checkpoints goes to 1, in all layers alike."
    published, source = "figure", FIGURE_1
    first: float = number("cosine, first interval")
    last: float = number("cosine, last interval")
    least_layer: float = number("least of a layer, last interval")
    layer_spread: float = number("layers differ by, last interval")

    @classmethod
    def measure(cls, _: Evidence) -> Self:
        cosine, layers = published("t5_direction")["cosine_to_previous"], published("t5_direction_by_layer")
        ends = layers["cosine_to_previous"][layers["step"] == layers["step"].max()]
        return cls(cosine[0], cosine[-1], ends.min(), ends.max() - ends.min())

    def judge(self) -> Ruling:
        told = (
            f"cos(θ_t, θ_t+1) goes from {self.first:.3f} to {self.last:.3f}; layers end at {self.least_layer:.3f} "
            "or more"
        )
        if self.last < 0.99 or self.last <= self.first:
            return fails(f"{told}: it does not come near 1.")
        if self.least_layer < 0.99 or self.layer_spread > 0.01:
            return in_part(f"{told}, {self.layer_spread:.3f} apart: not all layers alike.")
        return holds(f"{told}, {self.layer_spread:.3f} apart.")


@dataclass(frozen=True)
class DirectionConverges(Claim):
    """With angle² per step falling as t^−q, all of the 95 % interval of q is above 2, where angles have a finite sum;
    it does not hold if all of it is below 1, where not even their squares have.
    """

    id, where = "direction-converges", "§3, §4"
    statement = "The direction of the parameters converges."
    published, source = "inferred from the cosines", FIGURE_5
    q: float = number("q")
    q_low: float = number("q, at least")
    q_high: float = number("q, at most")
    total_degrees: float = number("angles summed, in degrees")

    @classmethod
    def measure(cls, _: Evidence) -> Self:
        """angle²/h falls as t^−q: see `normgrowth.dynamics.direction`."""
        found = direction(t5_trace().records)
        return cls(found.q, found.low, found.high, float(np.degrees(found.total[-1])))

    def judge(self) -> Ruling:
        told = (
            f"The squared angle of an interval falls as t^−{self.q:.2f} [{self.q_low:.2f}, {self.q_high:.2f}]"
        )
        if self.q_low > 2:
            return holds(f"{told}: the angles have a finite sum.")
        if self.q_high < 1:
            return fails(
                f"{told}: even squared angles have no finite sum ({self.total_degrees:.0f}° so far). Cosines near 1 do "
                "not show that it converges."
            )
        return undecided(f"{told}: it converges only if later turns undo earlier ones.")


@dataclass(frozen=True)
class Alignment(Claim):
    """It falls to 0.1 or less, and ‖δ‖² makes at least 90 % of the growth of ‖θ‖²; in part if it falls only."""

    id, where, figure = "alignment", "§5.5, Fig. 5", "fig5"
    statement = "cos(δ, θ) rises to about 0.15, then falls to near 0: dynamics are misaligned."
    published, source = "figure", FIGURE_5
    largest: float = number("largest alignment")
    at_end: float = number("alignment at the end")
    share_steps: float = number("share of growth by steps")

    @classmethod
    def measure(cls, _: Evidence) -> Self:
        steps = published("t5_steps")
        by_steps = steps["growth_steps"].sum()
        growth = by_steps + steps["growth_alignment"].sum()
        return cls(steps["alignment"].max(), steps["alignment"][-2], by_steps / growth)

    def judge(self) -> Ruling:
        told = f"cos(δ, θ) rises to {self.largest:.2f} and falls to {self.at_end:.2f}"
        if abs(self.at_end) > 0.1 or self.at_end >= self.largest:
            return fails(f"{told}: it does not fall to near 0.")
        if self.share_steps < 0.9:
            return in_part(
                f"{told}, as printed; but between checkpoints ‖δ‖² makes {self.share_steps:.0%} of the growth and "
                "2⟨θ,δ⟩ the rest, so the dynamics are not misaligned."
            )
        return holds(f"{told}, and ‖δ‖² makes {self.share_steps:.0%} of the growth.")


@dataclass(frozen=True)
class StepSize(Claim):
    """Over the later half ‖δ‖ changes by less than 20, and the last one is what its number of steps implies, to 5 %; in
    part if by less than 20 %.
    """

    id, where, figure = "step-size", "§5.5, Fig. 5", "fig5"
    statement = "‖δ‖ is roughly constant for large t; the drop at the end is an artifact."
    published, source = "change of less than 20; a drop at the last checkpoint, an artifact", FIGURE_5
    change: float = number("largest minus least, later half")
    mean: float = number("mean, later half")
    last: float = number("last")
    expected_last: float = number("last, expected of its fewer steps")

    @classmethod
    def measure(cls, _: Evidence) -> Self:
        steps = published("t5_steps")
        size, interval = steps["step_size"], steps["interval"]
        later = size[len(size) // 2 : -1]
        expected = later[-1] * np.sqrt(interval[-1] / interval[-2])
        return cls(later.max() - later.min(), later.mean(), size[-1], expected)

    def judge(self) -> Ruling:
        told = f"‖δ‖ changes by {self.change:.0f} of {self.mean:.0f} over the later half"
        if self.change > 0.2 * self.mean:
            return fails(f"{told}.")
        drop = (
            f"the drop to {self.last:.0f} at the end is that of an interval with fewer steps "
            f"({self.expected_last:.0f})"
        )
        if self.change >= 20 or abs(self.last - self.expected_last) > 0.05 * self.expected_last:
            return in_part(f"{told}, where less than 20 is printed; {drop}.")
        return holds(f"{told}; {drop}.")


CLAIMS = (NormSqrt, NormLayers, DirectionConsecutive, DirectionConverges, Alignment, StepSize)
