"""Claims of section 4.1 on the layers of Figure 2, judged on the published levels."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from normgrowth.paper.claim import Claim, Ruling, fails, holds, in_part, not_shown, number
from normgrowth.paper.claims.t5_growth import layer_slopes, listed
from normgrowth.paper.evidence import Evidence, Floats
from normgrowth.paper.published.tables import published
from normgrowth.paper.t5_series import PublishedT5

T5, XLNET, ROBERTA, BERT = "t5-base", "xlnet-base-cased", "roberta-base", "bert-base-cased"
SIGNIFICANT = 0.05
FIGURE_2 = "published (Figure 2)"
FIGURES = ("saturation_pretrained", "saturation_random_init")
WEIGHTS = "The weights of the models (`normgrowth saturation MODEL --stack decoder`)."


def lines(table: str = "saturation_pretrained") -> dict[str, Floats]:
    """The published levels of each model, from the first layer on."""
    columns = published(table)
    return {
        model: columns["cosine"][columns["model"] == model]
        for model in dict.fromkeys(columns["model"].tolist())
    }


def rank_correlation(x: NDArray[Any], y: Floats) -> tuple[float, float]:
    """Spearman's rank correlation and its p-value."""
    from scipy.stats import spearmanr

    rank, p_value = map(float, spearmanr(x, y))
    return rank, p_value


class FinalLayers(Claim):
    """Holds if in Figure 2 T5 and XLNet end at 0.9 or more, RoBERTa falls from 0.94 to 0.65, BERT is lowest
    in its last layer and in its mean over layers, and every line has as many layers as that of random weights; in part
    if a line has fewer.
    """

    id, where, figure = "saturation-final", "§4.1, Fig. 2", "fig2"
    statement = "The last layers of T5 and XLNet reach 0.9, RoBERTa falls from 0.94 to 0.65; BERT is lower."
    published, source = "0.9, 0.9, 0.65 (0.94 before it)", FIGURE_2
    scope = "published levels at c = 1000; T5's are those of the decoder; a last layer can differ much from the mean"
    would_change = WEIGHTS
    last: Mapping[str, float] = number("last published layer: ")
    mean: Mapping[str, float] = number("mean over layers: ")
    before_last: float = number("RoBERTa, layer before the last")
    missing: Mapping[str, float] = number("layers missing at the end: ")

    @classmethod
    def measure(cls, _: Evidence) -> Self:
        trained, random = lines(), lines("saturation_random_init")
        short = {name: len(random[name]) - len(own) for name, own in trained.items()}
        return cls(
            {name: own[-1] for name, own in trained.items()},
            {name: own.mean() for name, own in trained.items()},
            trained[ROBERTA][-2],
            {name: count for name, count in short.items() if count},
        )

    def judge(self) -> Ruling:
        told = (
            f"The last published layers are at {listed(self.last, '.2f')} (RoBERTa {self.before_last:.2f} before it); "
            f"means over layers are {listed(self.mean, '.2f')}"
        )
        printed = (
            min(self.last[T5], self.last[XLNET]) >= 0.9
            and abs(self.last[ROBERTA] - 0.65) <= 0.005
            and abs(self.before_last - 0.94) <= 0.005
            and all(min(levels, key=levels.__getitem__) == BERT for levels in (self.last, self.mean))
        )
        if not printed:
            return fails(f"{told}.")
        if self.missing:
            return in_part(f"{told}. Layers missing at the end of a line: {listed(self.missing, '.0f')}.")
        return holds(f"{told}.")


class RisesWithDepth(Claim):
    """Holds if the published levels of T5 and of XLNet rise with depth (a positive rank correlation with p < 0.05); in
    part if those of one do.
    """

    id, where, figure = "saturation-depth", "§4.1, Fig. 2", "fig2"
    statement = "For T5 and XLNet, saturation is higher in later layers."
    published, source = "figure", FIGURE_2
    scope = "published levels at c = 1000; T5's are those of the decoder, XLNet's end at layer 11 of 12"
    would_change = WEIGHTS
    rank: Mapping[str, float] = number("rank correlation of level and layer: ")
    p_value: Mapping[str, float] = number("its p-value: ")
    random: Mapping[str, float] = number("rank correlation with random weights: ")
    first: Mapping[str, float] = number("first layer: ")
    least: Mapping[str, float] = number("smallest of a layer: ")

    @classmethod
    def measure(cls, _: Evidence) -> Self:
        trained, random = ({name: table[name] for name in (T5, XLNET)} for table in map(lines, FIGURES))
        ranks = {name: rank_correlation(np.arange(len(own)), own) for name, own in trained.items()}
        return cls(
            {name: rank for name, (rank, _) in ranks.items()},
            {name: p_value for name, (_, p_value) in ranks.items()},
            {name: rank_correlation(np.arange(len(own)), own)[0] for name, own in random.items()},
            {name: own[0] for name, own in trained.items()},
            {name: own.min() for name, own in trained.items()},
        )

    def judge(self) -> Ruling:
        rise = [self.rank[name] > 0 and self.p_value[name] < SIGNIFICANT for name in self.rank]
        told = (
            f"Level and layer have a rank correlation of {listed(self.rank, '.2f')} "
            f"(p = {listed(self.p_value, '.2g')}), with random weights {listed(self.random, '.2f')}; "
            f"first layers are at {listed(self.first, '.2f')}, the lowest at {listed(self.least, '.2f')}."
        )
        return holds(told) if all(rise) else in_part(told) if any(rise) else fails(told)


class LinkToGrowth(Claim):
    """Holds if layers that grow more are more saturated in T5 (rank correlation of published slope and level, p < 0.05)
    and in significantly more than half of the models trained here (sign test, p < 0.05); in part if one of the two is
    true. Does not hold if the correlation in T5 is negative (p < 0.05) and the second is not true; else not shown.
    """

    id, where, needs = "saturation-growth", "§4.1", ("language_models",)
    statement = "Higher saturation in later layers may relate to their faster growth."
    published, source = "called possible", "published (Figures 1 and 2)"
    scope = (
        "T5: growth of encoder layers, levels of decoder layers; models trained here: both of the same layers"
    )
    would_change = "T5's checkpoints: growth and levels of the same stack."
    rank: float = number("T5: rank correlation of slope and level")
    p_value: float = number("T5: its p-value")
    models: float = number("models here")
    positive: float = number("of these with a positive rank correlation")
    sign_p: float = number("p-value of the sign test")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        from scipy.stats import binomtest

        slopes = np.array([slope for slope, _ in layer_slopes(PublishedT5()).values()])
        rank, p_value = rank_correlation(slopes, lines()[T5])
        ranks = []
        for model in evidence.language_models.where(leaking=False):
            norms = model.trace.matrix("norm").values
            ranks.append(rank_correlation(norms[-1] / norms[0], model.level_of_layers())[0])
        positive = sum(one > 0 for one in ranks)
        sign_p = binomtest(positive, len(ranks), alternative="greater").pvalue
        return cls(rank, p_value, len(ranks), positive, float(sign_p))

    def judge(self) -> Ruling:
        told = (
            f"In T5 the slope of an encoder layer and the level of the decoder layer have a rank correlation of "
            f"{self.rank:.2f} (p = {self.p_value:.2g}). In {self.positive:.0f} of {self.models:.0f} models trained "
            f"here, layers that grew more are more saturated (p = {self.sign_p:.2g})."
        )
        in_t5, here = self.rank > 0 and self.p_value < SIGNIFICANT, self.sign_p < SIGNIFICANT
        if in_t5 and here:
            return holds(told)
        if in_t5 or here:
            return in_part(told)
        return fails(told) if self.p_value < SIGNIFICANT else not_shown(told)


CLAIMS = (FinalLayers, RisesWithDepth, LinkToGrowth)
