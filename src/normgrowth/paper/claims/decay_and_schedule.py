"""Claims of sections 5.3, 5.4, 5.6, E and F: growth predicted from a schedule, and weight decay."""

from collections.abc import Mapping
from itertools import combinations
from typing import Self

import numpy as np

from normgrowth import schedules
from normgrowth.dynamics import dynamics
from normgrowth.dynamics.prediction import predict_norm
from normgrowth.paper.claim import Claim, Ruling, fails, holds, in_part, not_shown, number
from normgrowth.paper.claims.t5_growth import listed
from normgrowth.paper.claims.trained_models import local_exponents
from normgrowth.paper.evidence import Evidence, MissingEvidence, TrainedModel
from normgrowth.paper.published.figure1 import SCHEDULE

APART = 0.1  # least difference of exponents that depend heavily on the schedule
SEVERAL = 3  # least number of pairs of schedules that decide
DEFAULT_RATE, DEFAULT_DECAY = 1e-3, 1e-2  # PyTorch's AdamW


class MisalignedDynamics(Claim):
    """Holds if misaligned dynamics give √t for any constant κ in ‖δ‖ = κη‖θ‖, and end within a fifth of T5's norm; in
    part if they give √t for κ = 1.
    """

    id, where = "dynamics", "§5.3, §5.4, §E"
    statement = "With η = 1/√t, aligned dynamics give exp(√t) and misaligned ones √t."
    published, source = "derivation", "the paper's text; T5 published (Figure 1)"
    scope = "the derivation for any κ, and T5's published norms and steps between checkpoints"
    would_change = "κ of T5's single optimizer steps."
    power: float = number("misaligned, κ = 1: norm as t to the power")
    power_half: float = number("misaligned, κ = ½: norm as t to the power")
    t5_kappa: float = number("T5: κ")
    t5_end: float = number("T5: norm at the end")
    t5_misaligned: float = number("T5: misaligned dynamics end at")
    t5_aligned: float = number("T5: log10 of where aligned dynamics end")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        t5 = dynamics(evidence.t5.records, SCHEDULE)
        assert t5.aligned is not None
        assert t5.misaligned is not None
        return cls(
            growth_power(kappa=1.0),
            growth_power(kappa=0.5),
            t5.misaligned.kappa,
            t5.norms[-1],
            t5.misaligned.predicted[-1],
            float(np.log10(t5.aligned.predicted[-1])),
        )

    def judge(self) -> Ruling:
        if abs(self.power - 0.5) > 0.02:
            return fails(f"Misaligned dynamics with η = 1/√t give t^{self.power:.2f}, not √t.")
        told = (
            f"Misaligned dynamics give t^{self.power:.2f} for κ = 1 and t^{self.power_half:.3f} for κ = ½. With T5's "
            f"κ = {self.t5_kappa:.2f} they end at a norm of {self.t5_misaligned:,.0f}, T5 at {self.t5_end:,.0f}"
        )
        if abs(self.power_half - 0.5) < 0.02 and abs(self.t5_misaligned / self.t5_end - 1) < 0.2:
            return holds(f"{told}.")
        return in_part(f"{told}, and aligned dynamics at 10^{self.t5_aligned:.1f}.")


class ScheduleDecides(Claim):
    """The exponent of growth is the slope of log‖θ‖ against log t over the later half of training, compared in pairs of
    runs of the same network with two schedules. With at least 3 pairs: holds if the exponents differ by at least 0.1 in
    every pair; in part if by at least 0.05 in some pair; else it does not hold. With fewer pairs: in part if they
    differ by at least 0.1 in every pair, else not shown.
    """

    id, where, needs = "schedule-decides", "§4, §5", ("language_models",)
    statement = "The growth trend depends heavily on the learning rate schedule."
    published, source = "expected", "the paper's text"
    scope = "models trained here with one architecture and optimizer and two schedules, each with its own base rate"
    would_change = "More schedules and seeds, with one base rate, and longer runs."
    exponents: Mapping[str, float] = number("exponent: ")
    pairs: float = number("pairs")
    same_rate: float = number("of these with one base rate")
    seeds: float = number("seeds")
    least: float = number("smallest difference in a pair")
    largest: float = number("largest difference in a pair")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        exponents, differences = dict[str, float](), list[float]()
        same_rate, seeds = 0, set[int]()
        models = evidence.language_models.where(leaking=False)
        for one, other in combinations(models, 2):
            if one.schedule == other.schedule or _network(one) != _network(other):
                continue
            own = {model.name: exponent(model) for model in (one, other)}
            differences.append(abs(own[one.name] - own[other.name]))
            same_rate += _base_rate(one) is not None and _base_rate(one) == _base_rate(other)
            seeds.add(one.seed)
            exponents |= {f"{model.name}, {model.schedule}": own[model.name] for model in (one, other)}
        if not differences:
            raise MissingEvidence("language_models", "no model was trained with two schedules")
        return cls(exponents, len(differences), same_rate, len(seeds), min(differences), max(differences))

    def judge(self) -> Ruling:
        found = (
            f"the two exponents differ by {self.largest:.2f}"
            if self.pairs == 1
            else f"the exponents of {self.pairs:.0f} pairs differ by {self.least:.2f} to {self.largest:.2f}"
        )
        told = (
            f"Over the later half of training norms grow as t to the power {listed(self.exponents, '.2f')}: {found}. "
            f"Pairs that also differ in the base rate: {self.pairs - self.same_rate:.0f} of {self.pairs:.0f}; seeds: "
            f"{self.seeds:.0f}."
        )
        if self.pairs < SEVERAL:
            told += (
                f" Fewer than {SEVERAL} pairs do not show that the trend depends on the schedule in general."
            )
            return in_part(told) if self.least >= APART else not_shown(told)
        if self.least >= APART:
            return holds(told)
        return in_part(told) if self.largest >= APART / 2 else fails(told)


def exponent(model: TrainedModel) -> float:
    """The slope of log‖θ‖ against log t over the later half of training."""
    return float(local_exponents(model.measured.matrix("norm", level="model"))[0])


def _base_rate(model: TrainedModel) -> float | None:
    return None if model.rate is None else model.rate.lr


def _network(model: TrainedModel) -> tuple[object, ...]:
    return model.kind, model.optimizer, model.corpus, model.seed


def growth_power(kappa: float) -> float:
    """The power of t by which the norm grows under misaligned dynamics with η = 1/√t."""
    steps = np.array([1e4, 4e6])
    rate = schedules.parse("inverse_sqrt:lr=1,hold=1")
    norms = predict_norm(rate, kappa, steps, norm0=1.0, model="misaligned")
    return float(np.log(norms[1] / norms[0]) / np.log(steps[1] / steps[0]))


class WeightDecay(Claim):
    """Holds if growth ends above λ = 0.01 at PyTorch's η, and the threshold is between 0.001 and 0.01 and nearly
    constant over η; in part if only the first is true.
    """

    id, where, figure, needs = "weight-decay", "§5.6, §F, Fig. 6", "fig6", ("decay",)
    statement = (
        "The norm grows unless λ is large, with a threshold between 0.001 and 0.01; growth is probable at λ = "
        "0.01."
    )
    published = "figure: AdamW on WikiText-2, one epoch, 20 × 20 values from 10⁻⁵ to 10⁻¹"
    source = "the paper's text; the grid from the authors' code"
    scope = "AdamW with a constant rate, one epoch; the models of the grid"
    would_change = "The paper's model size, other optimizers or schedules."
    least: float = number("growth ends at λ, smallest")
    largest: float = number("growth ends at λ, largest")
    power: float = number("as a power of η")
    at_default: float = number("at η = 0.001")
    over_prediction: float = number("over λ*, median")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        known = evidence.decay
        there = np.isfinite(known.edges) & (known.edges > 0)
        if there.sum() < 3:
            raise MissingEvidence("decay", "growth ends within the grid in fewer than three columns")
        edges, rates = known.edges[there], known.learning_rates[there]
        return cls(
            edges.min(),
            edges.max(),
            np.polyfit(np.log(rates), np.log(edges), 1)[0],
            float(np.exp(np.interp(np.log(DEFAULT_RATE), np.log(rates), np.log(edges)))),
            float(np.median(edges / known.predicted[there])),
        )

    def judge(self) -> Ruling:
        told = (
            f"At η = 0.001 growth ends at λ = {self.at_default:.2g}. Over the grid the threshold is between "
            f"{self.least:.1g} and {self.largest:.1g}, scales as η^{self.power:.2f}, and is "
            f"{self.over_prediction:.2f} times λ* of random gradients (median)"
        )
        if self.at_default <= DEFAULT_DECAY:
            return fails(f"{told}: the norm does not grow at PyTorch's λ = 0.01.")
        if abs(self.power) < 0.2 and self.least >= 1e-3 and self.largest <= 1e-2:
            return holds(f"{told}.")
        return in_part(f"{told}: the norm grows at PyTorch's λ = 0.01, but the threshold depends on η.")


CLAIMS = (ScheduleDecides, MisalignedDynamics, WeightDecay)
