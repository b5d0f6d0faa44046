"""Claims on saturated language models trained here: what they predict, and how far their heads look."""

from typing import Self

import numpy as np

from normgrowth.paper.claim import Claim, Ruling, fails, holds, in_part, not_shown, number
from normgrowth.paper.claims.trained_models import ONE, PAPER_LAYERS, SATURATED, largest_size, too_small
from normgrowth.paper.evidence import Evidence, TrainedModel

UNCHANGED = 0.9  # least share of equal top predictions of a converted model; not from the paper
NEAR = 0.5  # largest ratio of attended to visible distance of a head that focuses locally


class Conversion(Claim):
    """Only models that learned more than word frequencies and have a saturation of 0.98 or more are judged, because
    those of the paper have 1.00. A model is converted if its saturated network is not significantly less accurate (the
    intervals overlap) and keeps at least 90% of the top predictions; the paper states no share, the 90% are ours. Holds
    if each of these models is converted; in part if some are, or if some are not significantly less accurate. If none
    is, it does not hold for models of the paper's size and training (12 layers, 5 epochs), and is not shown by smaller
    ones or if no model is that saturated.
    """

    id, where, needs = "conversion", "§4.3, §6", ("language_models",)
    statement = (
        "Language models of saturation 1.00 can be saturated without significantly shifting their states."
    )
    published, source = "inferred from saturation levels of 1.00", "the paper's text"
    scope = (
        "top predictions for dev sentences, of models with a true mask and a loss below that of word frequencies; the "
        "paper speaks of cosines of states, which are the saturation levels themselves"
    )
    would_change = "The paper's size and 5 epochs (--scale paper): levels rise with training."
    models: float = number("models that learned")
    saturated: float = number("of these at a saturation of 0.98 or more")
    accurate: float = number("of these not significantly less accurate")
    converted: float = number("of these converted")
    level: float = number("largest saturation")
    least: float = number("smallest agreement")
    largest: float = number("largest agreement")
    random: float = number("largest agreement of random networks")
    lost: float = number("largest loss of accuracy")
    kept: float = number("smallest loss of accuracy")
    layers: float | None = number("layers of the saturated models, at most", default=None)
    epochs: float | None = number("epochs, at most", default=None)

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        learned = [model for model in evidence.language_models.where(leaking=False) if model.learned]
        pairs = [(model.predictions("soft"), model.predictions("saturated")) for model in learned]
        levels = [model.last("saturation") for model in learned]
        agreement = [saturated.agreement for _, saturated in pairs]
        lost = [soft.accuracy.value - saturated.accuracy.value for soft, saturated in pairs]
        places = [place for place, level in enumerate(levels) if level >= SATURATED]
        judged = [pairs[place] for place in places]
        accurate = [saturated for soft, saturated in judged if saturated.accuracy.high >= soft.accuracy.low]
        return cls(
            len(learned),
            len(judged),
            len(accurate),
            sum(saturated.agreement.value >= UNCHANGED for saturated in accurate),
            max(levels, default=0.0),
            min((one.value for one in agreement), default=0.0),
            max((one.value for one in agreement), default=0.0),
            max((one.random for one in agreement), default=0.0),
            max(lost, default=0.0),
            min(lost, default=0.0),
            *largest_size([learned[place] for place in places]),
        )

    def judge(self) -> Ruling:
        if not self.models:
            return not_shown("No model learned more than word frequencies.")
        told = (
            f"In {self.models:.0f} models that learned, with levels up to {self.level:.2f}, the saturated network "
            f"keeps {self.least:.0%} to {self.largest:.0%} of the top predictions (in random networks at most "
            f"{self.random:.0%}), and its accuracy changes by {-100 * self.lost:+.1f} to {-100 * self.kept:+.1f} "
            "percentage points"
        )
        if not self.saturated:
            return not_shown(f"{told}. No level is 0.98 or more.")
        told += (
            f". Models at 0.98 or more: {self.saturated:.0f}; of these, not significantly less accurate: "
            f"{self.accurate:.0f}; of these, keeping 90% of the top predictions, a limit that is ours: "
            f"{self.converted:.0f}."
        )
        if self.converted == self.saturated:
            return holds(told)
        if self.accurate:
            return in_part(told)
        small = too_small(self.layers, self.epochs)
        return not_shown(f"{told} {small}") if small else fails(told)


class LocalHeads(Claim):
    """A head that attends to one position focuses locally if the mean distance of that position is at most half of the
    mean distance of the visible positions. Holds if at least a tenth of these heads do ("some"); in part if any does.
    If none does, it does not hold for models of the paper's 12 layers, and is not shown by smaller ones.
    """

    id, where, needs = "heads-local", "Abstract, §1", ("language_models",)
    statement = "Some saturated heads focus locally on a small number of positions."
    published, source = "distances are not published", "the paper's text"
    scope = "saturated heads of models with a true mask, 200 dev sentences; a query sees itself and all earlier tokens"
    would_change = "Larger or longer trained models, and longer sentences."
    heads: float = number("heads at one position")
    local: float = number("share that focuses locally")
    closer: float = number("share closer than visible positions on average")
    untrained: float = number("the same before training")
    least: float = number("smallest ratio of attended to visible distance")
    median: float = number("median ratio")
    layers: float | None = number("layers", default=None)

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        models = evidence.language_models.where(leaking=False)
        trained, before = (
            np.concatenate([distance_ratios(model, first=first) for model in models])
            for first in (False, True)
        )
        layers = max(model.layers for model in models)
        return cls(
            len(trained),
            (trained <= NEAR).mean(),
            (trained < 1).mean(),
            (before < 1).mean(),
            trained.min(),
            np.median(trained),
            layers,
        )

    def judge(self) -> Ruling:
        told = (
            f"{self.local:.0%} of {self.heads:.0f} heads that attend to one position do so at half the distance of the "
            f"visible positions or closer; the median ratio is {self.median:.2f}, the least {self.least:.2f}. "
            f"{self.closer:.0%} are closer than the visible positions on average, {self.untrained:.0%} before training"
        )
        if self.local >= 0.1:
            return holds(f"{told}.")
        if self.local:
            return in_part(f"{told}.")
        if (self.layers or 0) < PAPER_LAYERS:
            return not_shown(f"{told}. The models are smaller than the paper's, which have 12 layers.")
        return fails(f"{told}.")


def distance_ratios(model: TrainedModel, *, first: bool) -> np.ndarray:
    """Attended over visible distance of the heads that attend to one position, at the first or the last step."""
    near, seen, spread = (
        model.of_heads(quantity, first=first)
        for quantity in ("attended_distance", "visible_distance", "attended_spread")
    )
    return (near / seen)[spread <= ONE]


CLAIMS = (Conversion, LocalHeads)
