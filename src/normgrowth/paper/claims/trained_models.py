"""Sections 3 and 4, judged by language models trained here: growth, uniformity, saturation, heads."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from normgrowth.dynamics.uniformity import uniformity
from normgrowth.paper.claim import Claim, Ruling, fails, holds, in_part, number
from normgrowth.paper.evidence import Evidence
from normgrowth.paper.published.figure1 import t5_trace

ONE, ALL = 0.1, 0.9  # of attended_spread: a head that attends to one position, and one that attends to all
SATURATED = 0.98  # a level that is printed as 1.00


@dataclass(frozen=True)
class UniformGrowth(Claim):
    """Factors of growth of layers differ by a tenth at most, in T5 and in models trained here; it does not hold if they
    differ by more than 2 in all of them.
    """

    id, where, needs = "uniform-growth", "Prop. 1, §4", ("language_models",)
    statement = "Every parameter grows at the same rate up to a constant."
    published, source = "called reasonable", "text; T5 published (Figure 1)"
    t5_least: float = number("T5: least factor of a layer")
    t5_largest: float = number("T5: largest")
    least_spread: float = number("models here: least ratio of factors")
    largest_spread: float = number("models here: largest ratio")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        models = evidence.language_models.where(leaking=False)
        spreads = [uniformity(model.trace.records, level="layer").spread for model in models]
        t5 = uniformity(t5_trace().records, level="layer")
        return cls(min(t5.factor), max(t5.factor), min(spreads), max(spreads))

    def judge(self) -> Ruling:
        t5 = self.t5_largest / self.t5_least
        told = (
            f"Layers of T5 grew by {self.t5_least:.1f} to {self.t5_largest:.1f}, {t5:.2f} apart; those of models "
            f"trained here {self.least_spread:.2f} to {self.largest_spread:.2f}"
        )
        if max(t5, self.largest_spread) <= 1.1:
            return holds(f"{told}: the same up to a tenth.")
        if min(t5, self.least_spread) > 2:
            return fails(f"{told}.")
        return in_part(f"{told}: every layer grows, not all alike.")


@dataclass(frozen=True)
class LanguageModelGrowth(Claim):
    """The norm of every model is larger at the end than at the start; in part if of some."""

    id, where, needs = "lm-growth", "§3", ("language_models",)
    statement = "Pre-norm and post-norm language models on WikiText-2 and PTB all grow."
    published, source = "every model", "text"
    models: float = number("models")
    grew: float = number("that grew")
    least: float = number("least factor")
    largest: float = number("largest factor")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        norms = [model.first_and_last("norm") for model in evidence.language_models.where(leaking=False)]
        factors = [last / first for first, last in norms]
        return cls(len(factors), sum(factor > 1 for factor in factors), min(factors), max(factors))

    def judge(self) -> Ruling:
        told = f"{self.grew:.0f} of {self.models:.0f} models grew, by {self.least:.3f} to {self.largest:.3f}."
        if self.grew == self.models:
            return holds(told)
        return in_part(told) if self.grew else fails(told)


@dataclass(frozen=True)
class LanguageModelSaturation(Claim):
    """Every model trained with AdamW ends at 0.98 or more (fewer epochs here than the paper's five); in part if some
    do. Footnote 7 is not judged: its models are not here.
    """

    id, where, needs = "saturation-lm", "§4.1", ("language_models",)
    statement = "Small language models reach a saturation of 1.00."
    published, source = "1.00; small pretrained ones more than base ones (footnote 7)", "text"
    models: float = number("models")
    saturated: float = number("at 0.98 or more")
    least: float = number("least level")
    largest: float = number("largest level")
    others: float = number("to other tokens, at the largest level")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        models = evidence.language_models.where(leaking=False, optimizer="adamw")
        levels = [model.last("saturation") for model in models]
        others = [model.last("saturation_others") for model in models]
        saturated = sum(level >= SATURATED for level in levels)
        return cls(len(levels), saturated, min(levels), max(levels), others[int(np.argmax(levels))])

    def judge(self) -> Ruling:
        told = (
            f"{self.saturated:.0f} of {self.models:.0f} models trained with AdamW reach 0.98 (levels {self.least:.2f} "
            f"to {self.largest:.2f}; the most saturated has {self.others:.2f} to other tokens)."
        )
        if self.saturated == self.models:
            return holds(told)
        return in_part(told) if self.saturated else fails(told)


@dataclass(frozen=True)
class BimodalHeads(Claim):
    """With a true mask at least a tenth of the heads attends to one position and a tenth to all, and four fifths to one
    or all; in part if a fiftieth attends to all.
    """

    id, where, figure, needs = "heads-bimodal", "§4.3, Fig. 3", "fig3", ("language_models",)
    statement = "Saturated heads attend to about one position, or to all of them."
    published = "modes at 1 and at 41 of 83 positions, a few pre-norm heads in between; 200 dev sentences"
    source = "published (Figure 3)"
    heads: float = number("heads")
    at_one: float = number("at one position")
    at_all: float = number("at all")
    leaking_heads: float = number("leaking mask: heads")
    leaking_at_one: float = number("leaking mask: at one position")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        true, leaking = (
            np.concatenate(
                [model.of_heads("attended_spread") for model in evidence.language_models.where(leaking=leaks)]
            )
            for leaks in (False, True)
        )
        at_one, at_all = (true <= ONE).mean(), (true >= ALL).mean()
        return cls(len(true), at_one, at_all, len(leaking), (leaking <= ONE).mean())

    def judge(self) -> Ruling:
        told = (
            f"With a true mask {self.at_one:.0%} of {self.heads:.0f} saturated heads attend to one position and "
            f"{self.at_all:.0%} to all; with the authors' mask, which shows the future, {self.leaking_at_one:.0%} are "
            "left at one"
        )
        if self.at_one >= 0.1 and self.at_all >= 0.1 and self.at_one + self.at_all >= 0.8:
            return holds(f"{told}.")
        if self.at_all >= 0.02:
            return in_part(f"{told}.")
        return fails(f"{told}: the second mode is the future.")


CLAIMS = (UniformGrowth, LanguageModelGrowth, LanguageModelSaturation, BimodalHeads)
