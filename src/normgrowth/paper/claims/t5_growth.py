"""Claims of sections 3 and 5.5, judged by T5's numbers, published or traced: norm, direction, alignment, step size.

§A says that norms are of the encoder, but the total of Figure 1 covers encoder and decoder. So norm, alignment and step
size are judged on the total and on the encoder; the numbers of the decoder are also shown.
"""

from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np

from normgrowth.dynamics.observed.direction import direction
from normgrowth.fit import fit
from normgrowth.fit.result import Fits
from normgrowth.paper.claim import Claim, Ruling, fails, holds, in_part, not_shown, number
from normgrowth.paper.evidence import Evidence
from normgrowth.paper.published.t5_stacks import Stack
from normgrowth.paper.t5_series import FIGURE_1, FIGURE_5, T5Series

ROUNDS_TO_ONE = 0.995  # smallest r² that is printed as 1.00
NEARLY_ONE = 0.99  # smallest cosine that counts as 1
DOUBLINGS = 3  # least number of cosines between θ_t and θ_t/2 that decide
PREFERRED = 2.0  # ΔAICc above which one law is preferred to another
SCOPES: dict[str, Stack] = {"total": "both", "encoder": "encoder", "decoder": "decoder"}
JUDGED = ("total", "encoder")
STARTS = (0.3, 0.5, 0.6)  # shares of training at which "large t" may begin
BLOCKS = "blocks of T5-base without embeddings: encoder and decoder together, and the encoder alone"
LAYERS = "the 12 encoder layers of T5-base"
CLOSER = "Single optimizer steps, or closer checkpoints: cosines and shares of ‖δ‖² depend on the interval."
CHECKPOINTS = "Norms of the checkpoints themselves, if they differ from those read off the figure."


def listed(values: Mapping[str, float], form: str) -> str:
    """Values with their names, such as "0.56 total, 0.66 encoder"."""
    return ", ".join(f"{value:{form}} {name}" for name, value in values.items())


class NormSqrt(Claim):
    """Holds if a√t + b or √(b² + a²t) has r² of at least 0.995 on the total and on the encoder: both laws grow as √t,
    and the second is eq. (2) with constant steps. In part if that is true for one of the two.
    """

    id, where, figure = "norm-sqrt", "§1, §3, Fig. 1", "fig1"
    statement = "The parameter norm of T5-base grows as √t."
    published, source = "r² = 1.00, 104 checkpoints", FIGURE_1
    scope, would_change = BLOCKS, CHECKPOINTS
    r2_sqrt: Mapping[str, float] = number("r² of a√t + b: ")
    r2_sqrt2: Mapping[str, float] = number("r² of √(b² + a²t): ")
    power: Mapping[str, float] = number("p/2 of √(b² + a·t^p): ")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        fits = _fits(evidence)
        return cls(
            {name: own["sqrt"].r2 for name, own in fits.items()},
            {name: own["sqrt2"].r2 for name, own in fits.items()},
            {name: own["power2"].params["p"] / 2 for name, own in fits.items()},
        )

    def judge(self) -> Ruling:
        best = {name: max(self.r2_sqrt[name], self.r2_sqrt2[name]) for name in JUDGED}
        told = f"The better of the two √t laws has r² = {listed(best, '.4f')}"
        good = sum(r2 >= ROUNDS_TO_ONE for r2 in best.values())
        if good == len(best):
            powers = listed({name: self.power[name] for name in JUDGED}, ".2f")
            return holds(f"{told}; with a free exponent ‖θ‖ grows as t to the power {powers}.")
        return in_part(f"{told}: not 1.00 for both.") if good else fails(f"{told}: not 1.00.")


class NormIntercept(Claim):
    """Holds if, on the total and on the encoder, r² of a√t + b is at least 0.995 and √(b² + a²t) is not preferred by
    ΔAICc > 2; in part if only the first is true.
    """

    id, where, figure = "norm-intercept", "Fig. 1", "fig1"
    statement = "The norm of T5-base follows the line a√t + b of Figure 1, including the intercept."
    published, source = "r² = 1.00", FIGURE_1
    scope = BLOCKS
    would_change = "More runs: one run of 104 autocorrelated points has an effective sample size below 2."
    r2: Mapping[str, float] = number("r² of a√t + b: ")
    delta_aicc: Mapping[str, float] = number("ΔAICc in favor of √(b² + a²t): ")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        fits = _fits(evidence)
        return cls(
            {name: own["sqrt"].r2 for name, own in fits.items()},
            {name: own["sqrt"].aicc_effective - own["sqrt2"].aicc_effective for name, own in fits.items()},
        )

    def judge(self) -> Ruling:
        r2 = {name: self.r2[name] for name in JUDGED}
        evidence = {name: self.delta_aicc[name] for name in JUDGED}
        told = f"a√t + b has r² = {listed(r2, '.4f')}"
        if min(r2.values()) < ROUNDS_TO_ONE:
            return fails(f"{told}: not 1.00.")
        said = (
            f"ΔAICc in favor of √(b² + a²t), with the same number of parameters, is {listed(evidence, '.1f')}"
        )
        return (
            in_part(f"{told}; {said}.") if max(evidence.values()) > PREFERRED else holds(f"{told}; {said}.")
        )


def _fits(evidence: Evidence) -> dict[str, Fits]:
    norms = {name: evidence.t5.sums(stack).norms() for name, stack in SCOPES.items()}
    laws = ["sqrt", "sqrt2", "power2"]
    return {name: fit(own["step"], own["norm"], laws=laws, bootstrap=0) for name, own in norms.items()}


class NormLayers(Claim):
    """Holds if every layer grows with r² of at least 0.99 and slopes rise with depth (a positive rank correlation with
    p < 0.05); in part if every layer grows with r² of at least 0.9.
    """

    id, where, figure = "norm-layers", "§3, Fig. 1", "fig1"
    statement = "The norm grows in every layer as √t, generally faster in later layers."
    published, source = "figure", FIGURE_1
    scope = LAYERS
    would_change = "The decoder's layers, which are not published, or another run."
    least_factor: float = number("smallest factor of growth")
    least_r2: float = number("smallest r² of a√t + b")
    rank_correlation: float = number("rank correlation of slope and layer")
    p_value: float = number("its p-value")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        from scipy.stats import spearmanr

        factors = [own["norm"][-1] / own["norm"][0] for own in evidence.t5.encoder_norms().values()]
        laws = layer_slopes(evidence.t5)
        rank, p_value = map(float, spearmanr(list(laws), [slope for slope, _ in laws.values()]))
        return cls(min(factors), min(r2 for _, r2 in laws.values()), rank, p_value)

    def judge(self) -> Ruling:
        factor, r2, rank = self.least_factor, self.least_r2, self.rank_correlation
        if factor <= 1 or r2 < 0.9:
            return fails(
                f"The smallest growth factor of a layer is {factor:.2f}, the smallest r² is {r2:.3f}."
            )
        told = (
            f"All layers grow at least by a factor of {factor:.1f}, with r² ≥ {r2:.3f}; slope and depth have a rank "
            f"correlation of {rank:.2f} (p = {self.p_value:.2g})"
        )
        return holds(f"{told}.") if r2 >= 0.99 and rank > 0 and self.p_value < 0.05 else in_part(f"{told}.")


def layer_slopes(series: T5Series) -> dict[int, tuple[float, float]]:
    """The slope a and r² of a√t + b for each encoder layer."""
    found = {}
    for layer, own in series.encoder_norms().items():
        law = fit(own["step"], own["norm"], laws=["sqrt"], bootstrap=0)["sqrt"]
        found[layer] = law.params["a"], law.r2
    return found


class DirectionConsecutive(Claim):
    """Holds if the cosine rises to at least 0.99, in every layer, and layers end within 0.01 of each other; in part if
    only the total rises to 0.99.
    """

    id, where, figure = "direction-consecutive", "§3, Fig. 1", "fig1"
    statement = "The cosine between consecutive checkpoints converges to 1, in all layers alike."
    published, source = "figure", FIGURE_1
    scope = f"{BLOCKS.partition(':')[0]}, and {LAYERS}; checkpoints 5,100 steps apart"
    would_change = "Checkpoints at other distances: the cosine depends on the number of steps between them."
    first: float = number("cosine, first interval")
    last: float = number("cosine, last interval")
    least_layer: float = number("smallest of a layer, last interval")
    layer_spread: float = number("layers differ by, last interval")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        cosine, ends = evidence.t5.cosines()
        return cls(cosine[0], cosine[-1], ends.min(), ends.max() - ends.min())

    def judge(self) -> Ruling:
        told = (
            f"cos(θ_t, θ_t+1) rises from {self.first:.3f} to {self.last:.3f}; layers end at {self.least_layer:.3f} "
            "or more"
        )
        if self.last < 0.99 or self.last <= self.first:
            return fails(f"{told}: it does not approach 1.")
        if self.least_layer < 0.99 or self.layer_spread > 0.01:
            return in_part(f"{told} and differ by up to {self.layer_spread:.3f}: not all layers are alike.")
        return holds(f"{told} and differ by at most {self.layer_spread:.3f}.")


class DirectionConverges(Claim):
    """If a traced series has cosines between θ_t and θ_t/2 for at least 3 steps t: holds if they end at 0.99 or more;
    does not hold if they do not rise by more than 0.01 from their smallest value; else not shown. Other series have
    angles between neighbors, and the squared angle per step falls as t^−q: holds if the 95% interval of q is above 2,
    where the angles have a finite sum; does not hold if it is below 0, where angles do not fall; else not shown, since
    later turns may undo earlier ones.
    """

    id, where = "direction-converges", "§3, §4"
    statement = "The direction of the parameters converges."
    published, source = "suggested by the cosines of Figure 1", FIGURE_5
    scope = "all blocks of T5-base; exponents are fitted over the last decade of steps, and extrapolated"
    would_change = (
        "Cosines between distant checkpoints: cos(θ_t, θ_t/2) rises to 1 if the direction converges "
        "(`normgrowth trace --lags 1,2,4,8,16,32`, then --t5)."
    )
    q: float = number("q")
    q_low: float = number("q, at least")
    q_high: float = number("q, at most")
    total_degrees: float = number("angles summed, in degrees")
    doublings: float | None = number("cosines of θ_t and θ_t/2", default=None)
    doubled_least: float | None = number("cosine of θ_t and θ_t/2: smallest", default=None)
    doubled_last: float | None = number("cosine of θ_t and θ_t/2: last", default=None)

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        """Fit t^−q to the squared angles per step: see `normgrowth.dynamics.observed.direction`."""
        found = direction(evidence.t5.records)
        cosine = found.doubled.cosine
        angles = found.q, found.low, found.high, float(np.degrees(found.total[-1]))
        return (
            cls(*angles, len(cosine), min(cosine), cosine[-1]) if len(cosine) >= DOUBLINGS else cls(*angles)
        )

    def judge(self) -> Ruling:
        if self.doubled_least is not None and self.doubled_last is not None:
            return self._judge_distant(self.doubled_least, self.doubled_last)
        power, low, high = (f"{-q:.2f}".replace("-", "−") for q in (self.q, self.q_high, self.q_low))
        told = f"The squared angle per step changes as t^{power} [{low}, {high}]"
        if self.q_low > 2:
            return holds(f"{told}: the angles have a finite sum.")
        if self.q_high < 0:
            return fails(f"{told}: angles between checkpoints do not converge to 0.")
        return not_shown(
            f"{told}; a finite sum of angles needs an exponent above 2. The angles so far sum to "
            f"{self.total_degrees:.0f}°. Cosines near 1 do not show that the direction converges, since later turns "
            "may or may not undo earlier ones."
        )

    def _judge_distant(self, least: float, last: float) -> Ruling:
        told = (
            f"The cosine of θ_t and θ_t/2, of {self.doublings:.0f} steps t, is at least {least:.3f} and ends at "
            f"{last:.3f}"
        )
        if last >= NEARLY_ONE:
            return holds(f"{told}.")
        if last <= least + 1 - NEARLY_ONE:
            return fails(f"{told}: it does not rise, and the direction turns on with every doubling of t.")
        return not_shown(f"{told}: it rises, but is not near 1.")


class FallingAlignment(Claim):
    """Holds if, on the total and on the encoder, the alignment is never above 0.2 ("never high") and falls to 0.1 or
    less; in part if only the second is true. The claim `misaligned` judges the share of alignment in the growth.
    """

    id, where, figure = "alignment", "§5.5, Fig. 5", "fig5"
    statement = "cos(δ, θ) rises to about 0.15, then falls to near 0."
    published, source = "figure", FIGURE_5
    scope = f"{BLOCKS}; δ spans 5,100 optimizer steps"
    would_change = CLOSER
    largest: Mapping[str, float] = number("largest alignment: ")
    at_end: Mapping[str, float] = number("alignment at the end: ")
    rounding: float = number("largest effect of rounding on an alignment")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        steps = {name: evidence.t5.sums(stack).steps() for name, stack in SCOPES.items()}
        return cls(
            {name: own["alignment"].max() for name, own in steps.items()},
            {name: own["alignment"][-2] for name, own in steps.items()},
            max(own["alignment_rounding"].max() for own in steps.values()),
        )

    def judge(self) -> Ruling:
        told = f"cos(δ, θ) rises to {listed(self.largest, '.2f')} and falls to {listed(self.at_end, '.2f')}"
        if any(abs(self.at_end[name]) > 0.1 or self.at_end[name] >= self.largest[name] for name in JUDGED):
            return fails(f"{told}: it does not fall to near 0.")
        if max(self.largest[name] for name in JUDGED) > 0.2:
            return in_part(f"{told}: it is high for a while.")
        return holds(f"{told}.")


class MisalignedGrowth(Claim):
    """Under misalignment ‖θ‖² grows by the squared steps alone (§E.2; eq. (2) has ∝). Holds if ‖δ‖² contributes at
    least 90% of the growth of ‖θ‖² on the total and on the encoder; in part if it contributes at least half; else does
    not hold.
    """

    id, where, figure = "misaligned", "§5.5, eq. (2)", "fig5"
    statement = "T5's dynamics are misaligned: ‖θ‖² grows by the squared steps."
    published, source = "supported by low alignment", FIGURE_5
    scope = f"{BLOCKS}; δ spans 5,100 optimizer steps"
    would_change = CLOSER
    share_steps: Mapping[str, float] = number("share of growth by steps: ")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        steps = {name: evidence.t5.sums(stack).steps() for name, stack in SCOPES.items()}
        return cls({name: own["total_share_steps"][-1] for name, own in steps.items()})

    def judge(self) -> Ruling:
        told = (
            f"Between checkpoints ‖δ‖² contributes {listed(self.share_steps, '.0%')} of the growth of ‖θ‖², and "
            "2⟨θ,δ⟩ the rest: small cosines add up over many steps."
        )
        least = min(self.share_steps[name] for name in JUDGED)
        return holds(told) if least >= 0.9 else in_part(told) if least >= 0.5 else fails(told)


class StepSize(Claim):
    """Holds if, on the total and on the encoder and for large t from 30, 50 and 60% of training, ‖δ‖ changes by less
    than 20, and the last ‖δ‖ is within 5% of the value that its number of steps implies. Does not hold if every change
    is more than 20% of the mean ‖δ‖; else in part. The encoder and the decoder also have a verdict each.
    """

    id, where, figure = "step-size", "§5.5, Fig. 5", "fig5"
    statement = "For large t, ‖δ‖ grows gradually, by less than 20; the drop at the end is an artifact."
    published, source = "change of less than 20; a drop at the last checkpoint, an artifact", FIGURE_5
    scope = f"{BLOCKS}; the paper does not say where large t begins"
    would_change = "A definition of large t, or the decoder's checkpoints: ‖δ‖ grows in the decoder."
    measured: ClassVar[tuple[str, ...]] = tuple(SCOPES)
    judged: ClassVar[tuple[str, ...]] = JUDGED
    change: Mapping[str, float] = number("largest minus smallest: ")
    mean: Mapping[str, float] = number("mean of the later half: ")
    last: float = number("last")
    expected_last: float = number("last, expected of its fewer steps")
    rounding: float = number("largest effect of rounding on a step size")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        """`last` and `expected_last` are those of the first scope."""
        steps = {name: evidence.t5.sums(SCOPES[name]).steps() for name in cls.measured}
        sizes = {name: own["step_size"] for name, own in steps.items()}
        change, mean = {}, {}
        for name, size in sizes.items():
            for start in STARTS:
                later = size[int(start * len(size)) : -1]
                change[f"{name} from {start:.0%}"] = later.max() - later.min()
            mean[name] = size[len(size) // 2 : -1].mean()
        size, interval = sizes[cls.measured[0]], steps[cls.measured[0]]["interval"]
        return cls(
            change,
            mean,
            size[-1],
            size[-2] * np.sqrt(interval[-1] / interval[-2]),
            max(own["step_size_rounding"].max() for own in steps.values()),
        )

    def judge(self) -> Ruling:
        judged = {name: change for name, change in self.change.items() if name.startswith(self.judged)}
        told = f"‖δ‖ changes by {listed(judged, '.1f')} (means {listed(self.mean, '.0f')})"
        relative = [change / self.mean[name.split()[0]] for name, change in judged.items()]
        if min(relative) > 0.2:
            return fails(f"{told}.")
        drop = (
            f"the last ‖δ‖ drops to {self.last:.0f}, where the smaller number of steps implies "
            f"{self.expected_last:.0f}"
        )
        as_expected = abs(self.last - self.expected_last) <= 0.05 * self.expected_last
        if max(judged.values()) < 20 and as_expected:
            return holds(f"{told}; {drop}.")
        return in_part(f"{told}; the paper says less than 20; {drop}.")


class EncoderStepSize(StepSize):
    """The rule of step-size on the encoder alone: holds if ‖δ‖ changes by less than 20 from 30, 50 and 60% of training,
    and the last ‖δ‖ is within 5% of the value that its number of steps implies. Does not hold if every change is more
    than 20% of the mean ‖δ‖; else in part.
    """

    id = "step-size-encoder"
    statement = "On the encoder, which §A says is measured, ‖δ‖ is roughly constant for large t."
    scope = "the 12 encoder layers of T5-base together; the paper does not say where large t begins"
    would_change = CHECKPOINTS
    measured = judged = ("encoder",)


class DecoderStepSize(StepSize):
    """The rule of step-size on the decoder alone: holds if ‖δ‖ changes by less than 20 from 30, 50 and 60% of training,
    and the last ‖δ‖ is within 5% of the value that its number of steps implies. Does not hold if every change is more
    than 20% of the mean ‖δ‖; else in part.
    """

    id = "step-size-decoder"
    statement = "On the decoder, which the total of Figure 5 includes, ‖δ‖ is roughly constant for large t."
    scope = "the decoder of T5-base, whose norms follow from those of both stacks and of the encoder"
    would_change = CHECKPOINTS
    measured = judged = ("decoder",)


CLAIMS = (
    NormSqrt,
    NormIntercept,
    NormLayers,
    DirectionConsecutive,
    DirectionConverges,
    FallingAlignment,
    MisalignedGrowth,
    StepSize,
    EncoderStepSize,
    DecoderStepSize,
)
