"""Claims of sections 3 and 4, judged by language models trained here: growth, uniformity, saturation, heads."""

from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np

from normgrowth.paper.claim import Claim, Ruling, fails, holds, in_part, not_shown, number
from normgrowth.paper.evidence import Evidence, Floats, TrainedModel
from normgrowth.paper.published import lm_runs
from normgrowth.paper.published.figure3 import WINDOWS
from normgrowth.paper.published.tables import published
from normgrowth.records import Matrix
from normgrowth.trace.result import MATRICES

ONE, ALL = 0.1, 0.9  # attended_spread of a head that attends to one position (at most) and to all (at least)
SATURATED = 0.98  # smallest level that counts as the printed 1.00
STEADY = 0.1  # largest relative change of a ratio of norms
PAPER_LAYERS, PAPER_EPOCHS = 12, 5  # of the paper's language models
GROWN = 5.9  # factor by which the norm of every encoder layer of T5 grew
DOUBLED = 2  # least growth of a model's matrices for its layers to be able to differ


class UniformGrowth(Claim):
    """Holds if, in T5 and in every model trained here whose matrices at least doubled their norm, the ratio of each
    layer's norm to that of all layers changes by at most 10% over the later half of training; in part if that is true
    for T5 or for some of these models. Models that grew less are left out: their ratios can hardly change.
    """

    id, where, needs = "uniform-growth", "Prop. 1, §4", ("language_models",)
    statement = "Every layer grows at the same rate up to a constant."
    published, source = "called reasonable", "the paper's text; T5 published (Figure 1)"
    scope = "layers, not single parameters: scalar-growth judges those"
    would_change = (
        "Longer runs: local exponents of T5's layers differ by 0.15, which would change ratios by 40% over a tenfold "
        "number of steps."
    )
    t5_least: float = number("T5: smallest factor of a layer, whole training")
    t5_largest: float = number("T5: largest factor")
    t5_move: float = number("T5: largest move of a layer's ratio, later half")
    t5_least_power: float = number("T5: smallest local exponent of a layer, later half")
    t5_largest_power: float = number("T5: largest local exponent")
    models: float = number("models here whose matrices at least doubled")
    steady: float = number("of these with ratios that move by 10% at most")
    left_out: float = number("models here that grew less, left out")
    largest_growth: float = number("models here: largest growth of the matrices")
    largest_move: float | None = number("models here: largest move", default=None)

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        t5 = evidence.t5.encoder_matrix()
        factors, powers = t5.values[-1] / t5.values[0], local_exponents(t5)
        models = evidence.language_models.where(leaking=False)
        growth = [matrix_growth(model) for model in models]
        grown = [model for model, factor in zip(models, growth, strict=True) if factor >= DOUBLED]
        moves = [ratio_move(model.trace.matrix("norm")) for model in grown]
        return cls(
            factors.min(),
            factors.max(),
            ratio_move(t5),
            powers.min(),
            powers.max(),
            len(grown),
            sum(move <= STEADY for move in moves),
            len(models) - len(grown),
            max(growth),
            max(moves, default=None),
        )

    def judge(self) -> Ruling:
        told = (
            f"Over the later half of training, ratios of T5's layers change by at most {self.t5_move:.1%}, with local "
            f"exponents from {self.t5_least_power:.2f} to {self.t5_largest_power:.2f} (growth factors from "
            f"{self.t5_least:.1f} to {self.t5_largest:.1f} over all of training). "
        )
        if self.largest_move is None:
            told += "No model trained here doubled the norm of its matrices"
        else:
            told += (
                f"In {self.steady:.0f} of {self.models:.0f} models trained here whose matrices at least doubled their "
                f"norm they change by at most 10% (largest change {self.largest_move:.1%})"
            )
        left_out = f"{self.left_out:.0f} models that grew less are left out"
        told += f"; {left_out}. The largest factor is {self.largest_growth:.2f}."
        uniform = self.t5_move <= STEADY
        if uniform and self.steady == self.models:
            return holds(told)
        return in_part(told) if uniform or self.steady else fails(told)


def matrix_growth(model: TrainedModel) -> float:
    """The factor by which the norm of a model's matrices grew; of all parameters in records of earlier versions."""
    rows = model.trace.records.where(level="part", name=MATRICES)
    norms = (
        rows.matrix("norm", level="part") if len(rows) else model.trace.records.matrix("norm", level="model")
    )
    return float(norms.values[-1, 0] / norms.values[0, 0])


def largest_size(models: Sequence[TrainedModel]) -> tuple[float | None, float | None]:
    """Layers and epochs of the model with the most layers, then epochs; None if unknown, as in earlier records."""
    known = [(one.layers, one.epochs) for one in models if one.layers is not None and one.epochs is not None]
    return max(known, default=(None, None))


def too_small(layers: float | None, epochs: float | None) -> str:
    """Why models of this size cannot refute a claim about the paper's models; empty if they can."""
    if (layers or 0) >= PAPER_LAYERS and (epochs or 0) >= PAPER_EPOCHS:
        return ""
    trained = "" if layers is None or epochs is None else f": {layers:.0f} layers, {epochs:.2g} epochs"
    return f"The models are too small to judge{trained}; the paper's have 12 layers and 5 epochs."


def later_half(norms: Matrix) -> tuple[Floats, Floats]:
    """Steps and norms (steps × parts) from half of the last step on; at least the last two steps."""
    first = min(int(np.searchsorted(norms.steps, norms.steps[-1] / 2)), len(norms.steps) - 2)
    return norms.steps[first:].astype(np.float64), norms.values[first:]


def ratio_move(norms: Matrix) -> float:
    """The largest change over the later half of a part's norm divided by the norm of all parts: 1 − least/largest."""
    values = later_half(norms)[1]
    ratios = values / np.sqrt((values**2).sum(axis=1, keepdims=True))
    return float(1 - (ratios.min(axis=0) / ratios.max(axis=0)).min())


def local_exponents(norms: Matrix) -> Floats:
    """The exponent p of norm ∝ t^p over the later half, for each part."""
    steps, values = later_half(norms)
    return np.polyfit(np.log(steps), np.log(values), 1)[0]


class ScalarGrowth(Claim):
    """Holds if in every model trained here at least 99% of the scalars grow in magnitude and at most 1% change sign;
    in part if at least 90% grow. Else it does not hold if the norm of a model grew by as much as every layer of T5
    (5.9 times), and is not shown by models that grew less, since the assumption is about t → ∞.
    """

    id, where, needs = "scalar-growth", "Prop. 1, §4", ("language_models",)
    statement = "Every scalar parameter grows."
    published, source = "an assumption", "the paper's text"
    scope = "single weights of the blocks, last checkpoint against the first, of models with a true mask"
    would_change = "Runs in which the norm grows much more."
    models: float = number("models")
    least: float = number("smallest share of scalars that grew")
    largest: float = number("largest share that grew")
    sign_changed: float = number("largest share that changed its sign")
    growth: float = number("largest factor of a norm")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        models = evidence.language_models.where(leaking=False)
        grown, changed = (
            [model.against_first(quantity) for model in models]
            for quantity in ("share_grown", "share_sign_changed")
        )
        norms = [model.first_and_last("norm") for model in models]
        factor = max(last / first for first, last in norms)
        return cls(len(models), min(grown), max(grown), max(changed), factor)

    def judge(self) -> Ruling:
        told = (
            f"In {self.models:.0f} models {self.least:.0%} to {self.largest:.0%} of the scalars grew in magnitude, and "
            f"at most {self.sign_changed:.0%} changed sign, while norms grew at most by a factor of {self.growth:.2f}"
        )
        if self.least >= 0.99 and self.sign_changed <= 0.01:
            return holds(f"{told}.")
        if self.least >= 0.9:
            return in_part(f"{told}.")
        if self.growth < GROWN:
            return not_shown(f"{told}: too little to judge what happens as t → ∞.")
        return fails(f"{told}.")


class LanguageModelGrowth(Claim):
    """Holds if every model trained here, and every run whose norms the authors published, ends with a larger norm than
    it began with; in part if some models trained here do. Runs that fall below their first norm in between are shown.
    """

    id, where, needs = "lm-growth", "§3, footnote 18", ("language_models",)
    statement = "Pre-norm and post-norm language models on WikiText-2 and PTB all grow."
    published, source = (
        "every model",
        "the paper's text; norms of the authors' runs, published with their code",
    )
    scope = "blocks of models trained here; norms logged by the authors' code, with embeddings or a mean over columns"
    would_change = "Norms of the authors' runs without embeddings."
    models: float = number("models")
    grew: float = number("that grew")
    least: float = number("smallest factor")
    largest: float = number("largest factor")
    runs: float = number("the authors' runs")
    fell: Mapping[str, float] = number("the authors' runs that fell, last norm over the first: ")
    dipped: Mapping[str, float] = number(
        "the authors' runs that grew after a fall, smallest norm over the first: "
    )

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        norms = [model.first_and_last("norm") for model in evidence.language_models.where(leaking=False)]
        factors = [last / first for first, last in norms]
        runs = lm_runs.norms()
        fell = {run: norm[-1] / norm[0] for run, norm in runs.items() if norm[-1] < norm[0]}
        dipped = {run: norm.min() / norm[0] for run, norm in runs.items() if norm.min() < norm[0] <= norm[-1]}
        grew = sum(factor > 1 for factor in factors)
        return cls(len(factors), grew, min(factors), max(factors), len(runs), fell, dipped)

    def judge(self) -> Ruling:
        told = f"{self.grew:.0f} of {self.models:.0f} models grew (factors {self.least:.3f} to {self.largest:.3f})"
        for some, what in (
            (self.fell, "ended below their first norm"),
            (self.dipped, "fell below it in between, and grew"),
        ):
            if some:
                runs = "; ".join(f"{run} to {factor:.3f} times it" for run, factor in some.items())
                told += f"; of the authors' {self.runs:.0f} runs {len(some)} {what}: {runs}"
        if self.grew == self.models and not self.fell:
            return holds(f"{told}.")
        return in_part(f"{told}.") if self.grew else fails(f"{told}.")


class LanguageModelSaturation(Claim):
    """Models that did not learn more than word frequencies are left out. Holds if every other model trained with AdamW
    ends at 0.98 or more; in part if some do. If none does, it does not hold for models of the paper's size and training
    (12 layers, 5 epochs), and is not shown by smaller ones or if no model learned.
    """

    id, where, needs = "saturation-lm", "§4.1", ("language_models",)
    statement = "Small language models reach a saturation of 1.00."
    published, source = "1.00", "the paper's text; levels of the authors' runs, published with their code"
    scope = "language models with a true causal mask, trained here with AdamW to a loss below that of word frequencies"
    would_change = "The paper's size and 5 epochs (--scale paper): levels rise with training."
    models: float = number("models that learned")
    saturated: float = number("at 0.98 or more")
    left_out: float = number("models that learned only word frequencies, left out")
    least: float = number("smallest level")
    largest: float = number("largest level")
    others: float = number("to other tokens, at the largest level")
    theirs: float = number("the authors' runs with AdamW, smallest level at the end")
    layers: float | None = number("layers", default=None)
    epochs: float | None = number("epochs, at most", default=None)

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        trained = evidence.language_models.where(leaking=False, optimizer="adamw")
        models = [model for model in trained if model.learned]
        levels = [model.last("saturation") for model in models]
        others = [model.last("saturation_others") for model in models]
        return cls(
            len(models),
            sum(level >= SATURATED for level in levels),
            len(trained) - len(models),
            min(levels, default=0.0),
            max(levels, default=0.0),
            others[int(np.argmax(levels))] if levels else 0.0,
            min(level[-1] for run, level in lm_runs.levels().items() if "sgd" not in run),
            *largest_size(models),
        )

    def judge(self) -> Ruling:
        if not self.models:
            return not_shown(
                f"None of {self.left_out:.0f} models with AdamW learned more than word frequencies."
            )
        told = (
            f"{self.saturated:.0f} of {self.models:.0f} models trained with AdamW reach 0.98 (levels {self.least:.2f} "
            f"to {self.largest:.2f}; the most saturated has {self.others:.2f} to other tokens); the authors' runs with "
            f"AdamW and a mask that leaks end at {self.theirs:.3f} or more"
        )
        if self.left_out:
            told += f"; {self.left_out:.0f} models that learned only word frequencies are left out"
        if self.saturated:
            return holds(f"{told}.") if self.saturated == self.models else in_part(f"{told}.")
        small = too_small(self.layers, self.epochs)
        return not_shown(f"{told}. {small}") if small else fails(f"{told}.")


class BimodalHeads(Claim):
    """Holds if, with a true mask, at least a tenth of the heads attends to one position, a tenth to all positions, and
    four fifths to one or all; in part if at least a fiftieth attends to all. Else it does not hold if the published
    second mode is nearer to the mean number of future positions, which a true mask hides, than to that of visible ones,
    and is not shown otherwise.
    """

    id, where, figure, needs = "heads-bimodal", "§4.3, Fig. 3", "fig3", ("language_models",)
    statement = "Saturated heads attend to about one position, or to all of them."
    published = "modes at 1 and at 41 of 83 positions, a few pre-norm heads in between; 200 dev sentences"
    source = "published (Figure 3)"
    scope = "saturated heads of language models trained here, positions of real tokens"
    would_change = (
        "The authors' models with a true mask, or longer training, in which heads may learn to average."
    )
    heads: float = number("heads")
    at_one: float = number("at one position")
    at_all: float = number("at all")
    leaking_heads: float = number("leaking mask: heads")
    leaking_at_one: float = number("leaking mask: at one position")
    published_one: float = number("published: share near one position")
    published_most: float = number("published: share near the second mode")
    published_largest: float = number("published: most positions of a head")
    visible: float = number("mean number of visible positions")
    future: float = number("mean number of future positions")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        true, leaking = (
            np.concatenate(
                [model.of_heads("attended_spread") for model in evidence.language_models.where(leaking=leaks)]
            )
            for leaks in (False, True)
        )
        at_one, at_all = (true <= ONE).mean(), (true >= ALL).mean()
        table, window = published("attention_positions"), WINDOWS["penn"]
        rows = table["data"] == "penn"
        first, last, heads = (table[name][rows] for name in ("positions_from", "positions_to", "heads"))
        near_one, near_most = (first + last) / 2 <= ONE * last.max(), (first + last) / 2 >= ALL * last.max()
        return cls(
            len(true),
            at_one,
            at_all,
            len(leaking),
            (leaking <= ONE).mean(),
            heads[near_one].sum() / heads.sum(),
            heads[near_most].sum() / heads.sum(),
            last.max(),
            np.arange(1, window + 1).mean(),
            # The last position has no future and attends to one position.
            np.maximum(np.arange(window), 1).mean(),
        )

    def judge(self) -> Ruling:
        told = (
            f"With a true mask {self.at_one:.0%} of {self.heads:.0f} saturated heads attend to one position and "
            f"{self.at_all:.0%} to all; with the authors' mask, which leaks the future, {self.leaking_at_one:.0%} "
            f"attend to one. In Figure 3 {self.published_one:.0%} of the heads attend to few positions, "
            f"{self.published_most:.0%} to about {self.published_largest:.1f}; a token has {self.visible:.1f} visible "
            f"and {self.future:.1f} future positions on average"
        )
        if self.at_one >= 0.1 and self.at_all >= 0.1 and self.at_one + self.at_all >= 0.8:
            return holds(f"{told}.")
        if self.at_all >= 0.02:
            return in_part(f"{told}.")
        of_future = abs(self.published_largest - self.future) < abs(self.published_largest - self.visible)
        if not of_future:
            return not_shown(f"{told}.")
        return fails(f"{told}: the second mode comes from attending to the future.")


class MaximalMargin(Claim):
    """A normalized margin is the logit of the right token minus the largest other logit, divided by ‖θ‖ᵏ, k the degree
    of the logits. A maximal margin exists only where a model ranks all its training tokens first. Holds if the least
    normalized margin of each such model rises over the later half of training; in part if that of some does; does not
    hold if that of none does. Not shown if there is no such model; the reason then gives the medians.
    """

    id, where, needs = "max-margin", "§2.1", ("language_models",)
    statement = "Gradient descent diverges toward a solution with maximal margin."
    published, source = "cited from work on other networks", "the paper's text"
    scope = "200 training sentences of each language model with a true mask; θ are all parameters"
    would_change = (
        "A task that a model can fit without errors: in a language, one beginning has several continuations."
    )
    models: float = number("models")
    separating: float = number("that rank all training tokens first")
    rising: float = number("of these with a rising least margin")
    separated: float = number("largest share of training tokens ranked first")
    medians_rise: float = number("models with a rising median")
    median_first: float = number("largest median, half of training")
    median_last: float = number("largest median, end")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        models = evidence.language_models.where(leaking=False)
        separating = [model for model in models if model.last("share_separated") >= 1]
        least = [model.over_later_half("normalized_margin_least") for model in separating]
        medians = [model.over_later_half("normalized_margin") for model in models]
        return cls(
            len(models),
            len(separating),
            sum(last > first for first, last in least),
            max(model.last("share_separated") for model in models),
            sum(last > first for first, last in medians),
            max(first for first, _ in medians),
            max(last for _, last in medians),
        )

    def judge(self) -> Ruling:
        told = (
            f"{self.separating:.0f} of {self.models:.0f} models rank all training tokens first (at most "
            f"{self.separated:.0%} of them). The median normalized margin of training tokens rises over the later half "
            f"of training in {self.medians_rise:.0f} of {self.models:.0f} models"
        )
        if not self.separating:
            return not_shown(
                f"{told}, but without a model that fits its training tokens there is no maximal margin."
            )
        told += f", the least one in {self.rising:.0f} of the {self.separating:.0f}."
        if self.rising == self.separating:
            return holds(told)
        return in_part(told) if self.rising else fails(told)


CLAIMS = (
    UniformGrowth,
    ScalarGrowth,
    LanguageModelGrowth,
    LanguageModelSaturation,
    BimodalHeads,
    MaximalMargin,
)
