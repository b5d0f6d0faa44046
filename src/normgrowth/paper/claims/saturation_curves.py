"""Claims of Figures 2 and 4, judged by the stages `pretrained` and `scaling`: saturation, and its curve against c."""

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Self

from normgrowth.paper.claim import Claim, Ruling, fails, holds, in_part, not_measured, number
from normgrowth.paper.claims.t5_growth import listed
from normgrowth.paper.evidence import Evidence, MissingEvidence, mean_curves
from normgrowth.paper.published.figure4 import KINDS
from normgrowth.paper.published.tables import published
from normgrowth.paper.stages.pretrained_models import AS_PUBLISHED, DECODER

PAIRS = [  # components with biases, and the same without
    ("attention sublayer, biases", "attention sublayer (Prop. 5)"),
    ("feedforward sublayer, biases", "feedforward sublayer (Prop. 6)"),
    ("paper's encoder, biases", "paper's encoder"),
    ("paper's with classifier, biases", "paper's with classifier"),
    ("usual pre-norm encoder, biases", "usual pre-norm encoder"),
    ("post-norm encoder, biases", "post-norm encoder"),
]


class RisesWithScale(Claim):
    """Holds if the cosine rises to at least 0.95 at c = 10 in both kinds of network of the figure, with and without
    biases; in part if to at least 0.9. The distance from the published curves is shown but not judged: the inputs of
    the figure are unknown.
    """

    id, where, figure, needs = "scaling-curves", "§5.2, Fig. 4", "fig4", ("scaling",)
    statement = "The cosine to the saturated network rises quickly with c, both with and without biases."
    published, source = "figure", "published (Figure 4)"
    scope = "random encoders of 12 layers of 768, inputs of one sentence"
    would_change = "The authors' inputs and initialization, which their figure does not state."
    at_1: float = number("smallest cosine at c = 1")
    at_10: float = number("smallest cosine at c = 10")
    distance: float = number("largest distance from the published curves")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        theirs = published("scaling_curves")
        apart = []
        for position, kind in KINDS.items():
            curve = evidence.curve(kind, bias=True)
            rows = (theirs["norm_position"] == position) & (theirs["bias"] == "bias")
            pairs = zip(theirs["c"][rows], theirs["cosine_to_saturated"][rows], strict=True)
            apart += [abs(curve.at(c) - value) for c, value in pairs]
        own = [curve for (kind, _), curve in mean_curves(evidence.scaling).items() if kind in KINDS.values()]
        return cls(min(curve.at(1) for curve in own), min(curve.at(10) for curve in own), max(apart))

    def judge(self) -> Ruling:
        told = (
            f"From c = 1 to 10 the cosine rises from {self.at_1:.2f} to {self.at_10:.2f} or more; it differs by up to "
            f"{self.distance:.2f} from the published curves"
        )
        if self.at_10 < 0.9 or self.at_10 <= self.at_1:
            return fails(f"{told}.")
        return holds(f"{told}.") if self.at_10 >= 0.95 else in_part(f"{told}.")


def bias_effect(evidence: Evidence) -> float:
    """The largest difference between curves with and without biases, with all other weights equal."""
    pairs = [(evidence.curve(kind, bias=True), evidence.curve(kind, bias=False)) for kind in KINDS.values()]
    return max(abs(biased.at(c) - bare.at(c)) for biased, bare in pairs for c in biased.scales)


class Biases(Claim):
    """Holds if biases change the degree of no network, and curves with and without biases differ by at most 0.05; in
    part if only the first is true.
    """

    id, where, needs = "biases", "§5.2, footnote 12", ("scaling", "theory")
    statement = "Networks with biases look as homogeneous as those without: an interesting puzzle."
    published, source = "figure", "published (Figure 4)"
    scope = "random encoders of 12 layers of 768, and 6 small networks"
    would_change = "Trained biases that are large compared with the weights."
    difference: float = number("largest difference of curves with and without biases")
    largest_scale: float = number("largest scale")
    changed: float = number("networks whose degree biases change")
    networks: float = number("networks")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        rows = evidence.theory.table1
        changed = sum(rows[biased].computed != rows[bare].computed for biased, bare in PAIRS)
        scales = evidence.curve("paper_pre_norm", bias=True).scales
        return cls(bias_effect(evidence), scales[-1], changed, len(PAIRS))

    def judge(self) -> Ruling:
        told = f"Curves with and without biases differ by at most {self.difference:.2f}"
        if self.changed:
            return fails(f"{told}, and biases change the degree of {self.changed:.0f} networks.")
        why = (
            "this is no puzzle, since biases of linear maps have a lower degree than the terms they are added to and "
            "vanish in the limit"
        )
        return in_part(f"{told}; {why}.") if self.difference > 0.05 else holds(f"{told}; {why}.")


class PretrainedSaturation(Claim):
    """Holds if the mean saturation over layers of every model is larger than with random weights; in part if that is
    true for some models. Where none of the four models was measured, the published means decide. The reason lists
    published layers for which the statement is not true.
    """

    id, where, figure, needs = "saturation-pretrained", "§4.1, Fig. 2", "fig2", ("pretrained",)
    statement = "Pretrained BERT, RoBERTa, T5 and XLNet are closer to saturation than with random weights."
    published = (
        "last layer of T5 and XLNet at 0.9 or more, RoBERTa at 0.65 (0.94 before it); random ones near 0, except "
        "T5's"
    )
    source = "published (Figure 2)"
    scope = (
        "mean over layers at c = 1000; the authors' T5 line is the decoder's, their XLNet line ends one layer early, "
        "and T5's random weights may have been measured with dropout (caveat t5-dropout)"
    )
    would_change = "The weights of the four models (--scale paper, or --models FOLDER)."
    here: float = number("models of the paper that are here")
    closer: float = number("of these closer")
    other_trained: float | None = number("another model, trained", default=None)
    other_random: float | None = number("another model, random", default=None)
    exceptions: Mapping[str, float] = field(
        default_factory=dict, metadata={"label": "published, over random: "}
    )
    measured: Mapping[str, float] = field(default_factory=dict, metadata={"label": "here, over random: "})
    trained: Mapping[str, float] = number("published mean, trained: ", default_factory=dict)
    random: Mapping[str, float] = number("published mean, random: ", default_factory=dict)

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        trained, random = (means(table) for table in ("saturation_pretrained", "saturation_random_init"))
        levels = evidence.pretrained if evidence.has("pretrained") else {}
        own = {run: one for run, one in levels.items() if model_of(run) in trained}
        others = [levels[run] for run in levels if form_of(run) == "" and model_of(run) not in trained]
        closer = {run: one.trained - one.random for run, one in own.items()}
        whole = [difference for run, difference in closer.items() if form_of(run) == ""]
        return cls(
            len(whole),
            sum(difference > 0 for difference in whole),
            others[0].trained if others else None,
            others[0].random if others else None,
            published_exceptions(),
            closer,
            trained,
            random,
        )

    def judge(self) -> Ruling:
        told = ""
        if self.exceptions:
            layers = "; ".join(self.exceptions)
            told = f" In Figure 2 these layers of trained models are not above random weights: {layers}."
        if self.other_trained is not None:
            told += (
                f" Another trained model has a level of {self.other_trained:.2f}, and {self.other_random:.2f} with "
                "random weights."
            )
        if not self.here:
            return self._judge_published(told)
        reason = (
            f"{self.closer:.0f} of {self.here:.0f} models are closer to saturation than with random weights"
        )
        if self.measured:
            reason += f" (trained minus random: {listed(self.measured, '.2f')})"
        reason += f".{told}"
        if self.closer == self.here:
            return holds(reason)
        return in_part(reason) if self.closer else fails(reason)

    def _judge_published(self, told: str) -> Ruling:
        if not self.trained:
            return not_measured(f"The weights of BERT, RoBERTa, T5 and XLNet are not available.{told}")
        closer = [name for name, level in self.trained.items() if level > self.random[name]]
        pairs = ", ".join(
            f"{name} {level:.2f} against {self.random[name]:.2f}" for name, level in self.trained.items()
        )
        reason = (
            "None of the four models was measured here, so the published means over layers decide: "
            f"{len(closer)} of {len(self.trained)} models are closer to saturation than with random weights ({pairs}). "
            f"That T5 is above its random weights may depend on dropout: see the caveat t5-dropout.{told}"
        )
        if len(closer) == len(self.trained):
            return holds(reason)
        return in_part(reason) if closer else fails(reason)


class SmallVariants(Claim):
    """Holds if, in every pair of a small and a base variant that was measured, the small one has the larger mean
    saturation over layers, each measured in the same form; in part if in some pairs.
    """

    id, where, needs = "saturation-small", "§4.1, footnote 7", ("pretrained",)
    statement = "Small variants are more saturated than base ones."
    published, source = "a qualitative remark without numbers", "the paper's text"
    scope = "mean over layers at c = 1000, trained weights; models whose names end in -small and -base"
    would_change = "The weights of both variants of a model: --models FOLDER/t5-small FOLDER/t5-base."
    pairs: float = number("pairs")
    above: float = number("pairs in which the small one is more saturated")
    difference: Mapping[str, float] = number("small minus base: ", default_factory=dict)

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        levels = {f"{model_of(run)}{form_of(run)}": one.trained for run, one in evidence.pretrained.items()}
        pairs = {name: name.replace("-small", "-base") for name in levels if "-small" in name}
        found = {name: levels[name] - levels[base] for name, base in pairs.items() if base in levels}
        if not found:
            raise MissingEvidence("pretrained", "no small and base variant of one model were measured")
        return cls(len(found), sum(one > 0 for one in found.values()), found)

    def judge(self) -> Ruling:
        told = (
            f"In {self.above:.0f} of {self.pairs:.0f} pairs the small variant is more saturated (small minus base: "
            f"{listed(self.difference, '.2f')})."
        )
        if self.above == self.pairs:
            return holds(told)
        return in_part(told) if self.above else fails(told)


def model_of(run: str) -> str:
    """The model of a run of the stage `pretrained`; a local folder is the model of its name."""
    return Path(run.removesuffix(form_of(run))).name


def form_of(run: str) -> str:
    """The ending of a run that says how the model was measured; empty for the encoder or the whole model."""
    return next((ending for ending in (DECODER, AS_PUBLISHED) if run.endswith(ending)), "")


def means(table: str) -> dict[str, float]:
    """The mean over layers of each line of Figure 2, by model."""
    columns = published(table)
    names, levels = columns["model"], columns["cosine"]
    return {name: float(levels[names == name].mean()) for name in dict.fromkeys(names.tolist())}


def published_exceptions() -> dict[str, float]:
    """Layers of Figure 2 whose trained weights are less saturated than random weights, with the difference."""
    trained, random = (
        {
            f"{model}, layer {layer}": cosine
            for model, layer, cosine in zip(*(table[column].tolist() for column in table), strict=True)
        }
        for table in (published("saturation_pretrained"), published("saturation_random_init"))
    )
    return {name: level - random[name] for name, level in trained.items() if level <= random[name]}


CLAIMS = (RisesWithScale, Biases, PretrainedSaturation, SmallVariants)
