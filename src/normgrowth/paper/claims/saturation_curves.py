"""Figures 2 and 4, judged by the stages `pretrained` and `scaling`: levels of saturation, and the way there."""

import numpy as np
from numpy.typing import NDArray

from normgrowth.network.scaling import Scaling
from normgrowth.paper.claim import (
    FAILS,
    HOLDS,
    IN_PART,
    WEIGHTS,
    Claim,
    Evidence,
    Numbers,
    Ruling,
)
from normgrowth.paper.claims.homogeneity import runs
from normgrowth.paper.published.figure4 import KINDS
from normgrowth.paper.published.tables import published

Floats = NDArray[np.float64]
EXCEPTION = "published, over random: "
PAIRS = [  # with biases, and without
    ("attention sublayer, biases", "attention sublayer (Prop. 5)"),
    ("feedforward sublayer, biases", "feedforward sublayer (Prop. 6)"),
    ("paper's encoder, biases", "paper's encoder"),
    ("paper's with classifier, biases", "paper's with classifier"),
    ("usual pre-norm encoder, biases", "usual pre-norm encoder"),
    ("post-norm encoder, biases", "post-norm encoder"),
]


def mean_curves(evidence: Evidence) -> dict[tuple[str, bool], tuple[Floats, Floats]]:
    """By kind and biases: scales, and the cosine to the saturated network, as in the figure; mean over seeds."""
    found = Scaling.from_records(evidence["scaling"]).curves
    return {(one.kind, bool(one.bias)): (one.scales, one.mean("cosine_flattened")) for one in found}


def _at(curve: tuple[Floats, Floats], c: float) -> float:
    return float(np.interp(np.log(c), np.log(curve[0]), curve[1]))


def _scaling_curves(evidence: Evidence) -> dict[str, float]:
    curves = mean_curves(evidence)
    theirs = published("scaling_curves")
    apart = []
    for position, kind in KINDS.items():
        rows = (theirs["norm_position"] == position) & (theirs["bias"] == "bias")
        pairs = zip(theirs["c"][rows], theirs["cosine_to_saturated"][rows], strict=True)
        apart += [abs(_at(curves[kind, True], c) - value) for c, value in pairs]
    own = [curve for (kind, _), curve in curves.items() if kind in KINDS.values()]
    return {
        "least cosine at c = 1": min(_at(curve, 1) for curve in own),
        "least cosine at c = 10": min(_at(curve, 10) for curve in own),
        "largest distance from the published curves": float(max(apart)),
    }


def _judge_scaling_curves(n: Numbers) -> Ruling:
    start, end = n["least cosine at c = 1"], n["least cosine at c = 10"]
    apart = n["largest distance from the published curves"]
    told = f"From c = 1 to 10 the cosine rises from {start:.2f} to {end:.2f} or more"
    if end < 0.9 or end <= start:
        return Ruling(FAILS, f"{told}: not quickly.")
    if apart > 0.1:
        return Ruling(IN_PART, f"{told}, and is up to {apart:.2f} from the published curves.")
    return Ruling(HOLDS, f"{told}, within {apart:.2f} of the published curves.")


def apart_by_biases(evidence: Evidence) -> float:
    """The largest distance of a curve with biases from the one without, all other weights the same."""
    curves = mean_curves(evidence)
    return max(
        abs(_at(curves[kind, True], c) - _at(curves[kind, False], c))
        for kind in KINDS.values()
        for c in curves[kind, True][0]
    )


def _biases(evidence: Evidence) -> dict[str, float]:
    last = mean_curves(evidence)["paper_pre_norm", True][0][-1]
    vanishing = [
        row["degree"] - bare["degree"]
        for row, bare in ((runs(evidence, "theory", "table1: ")[name] for name in pair) for pair in PAIRS)
    ]
    return {
        "largest difference of curves with and without biases": apart_by_biases(evidence),
        "largest scale": float(last),
        "networks whose degree biases change": float(sum(change != 0 for change in vanishing)),
        "networks": float(len(vanishing)),
    }


def _judge_biases(n: Numbers) -> Ruling:
    apart, changed = (
        n["largest difference of curves with and without biases"],
        n["networks whose degree biases change"],
    )
    told = f"Curves with and without biases differ by {apart:.2f} at most"
    if changed:
        return Ruling(FAILS, f"{told}, and biases change the degree of {changed:.0f} networks.")
    why = "biases of linear maps have a lower degree than what they are added to, and vanish in the limit: no puzzle"
    if apart > 0.05:
        return Ruling(IN_PART, f"{told}; {why}.")
    return Ruling(HOLDS, f"{told}; {why}.")


def _saturation_pretrained(evidence: Evidence) -> dict[str, float]:
    records = evidence["pretrained"]
    theirs = published("saturation_pretrained")
    closer, here = 0, 0
    numbers: dict[str, float] = {}
    for run in records.distinct("run"):
        rows = records.where(run=run, level="model").table.to_pylist()
        levels = {row["quantity"]: row["value"] for row in rows}
        own, random = levels["saturation_c1000"], levels["saturation_c1000_random"]
        if run in theirs["model"]:
            here += 1
            closer += own > random
        else:
            numbers |= {"another model, trained": own, "another model, random": random}
    return {
        "models of the paper that are here": float(here),
        "of these closer": float(closer),
        **numbers,
        **_published_exceptions(),
    }


def _published_exceptions() -> dict[str, float]:
    """Layers of Figure 2 whose trained weights are less saturated than random ones, and by how much."""
    trained, random = (
        {
            (model, layer): cosine
            for model, layer, cosine in zip(*(table[c].tolist() for c in table), strict=True)
        }
        for table in (published("saturation_pretrained"), published("saturation_random_init"))
    )
    return {
        f"{EXCEPTION}{model}, layer {layer}": cosine - random[model, layer]
        for (model, layer), cosine in trained.items()
        if cosine <= random[model, layer]
    }


def _judge_saturation_pretrained(n: Numbers) -> Ruling:
    here, closer = n["models of the paper that are here"], n["of these closer"]
    exceptions = [name.removeprefix(EXCEPTION) for name in n if name.startswith(EXCEPTION)]
    told = (
        f" In print these layers of trained models are not above random ones: {'; '.join(exceptions)}."
        if exceptions
        else ""
    )
    if "another model, trained" in n:
        own, random = n["another model, trained"], n["another model, random"]
        told += f" Of a trained model that is here the level is {own:.2f}, with random weights {random:.2f}."
    if not here:
        return Ruling(WEIGHTS, f"BERT, RoBERTa, T5 and XLNet are not here.{told}")
    reason = f"{closer:.0f} of {here:.0f} models are closer to saturation than random ones.{told}"
    return Ruling(HOLDS if closer == here else IN_PART if closer else FAILS, reason)


CLAIMS = [
    Claim(
        id="scaling-curves",
        where="§5.2, Fig. 4",
        statement="The cosine to the saturated network rises quickly with c, with and without biases alike.",
        published="figure",
        source="published (Figure 4)",
        stages=("scaling",),
        measure=_scaling_curves,
        rule="It is 0.9 or more at c = 10, and within 0.1 of the published curves; in part if the first only.",
        judge=_judge_scaling_curves,
    ),
    Claim(
        id="biases",
        where="§5.2, footnote 12",
        statement="Networks with biases look as homogeneous as those without: an interesting puzzle.",
        published="figure",
        source="published (Figure 4)",
        stages=("scaling", "theory"),
        measure=_biases,
        rule=(
            "Biases change no network's degree, and curves with and without them differ by 0.05 at most; in part "
            "if the first only."
        ),
        judge=_judge_biases,
    ),
    Claim(
        id="saturation-pretrained",
        where="§4.1, Fig. 2",
        statement="Pretrained BERT, RoBERTa, T5 and XLNet are closer to saturation than random ones.",
        published=(
            "last layer of T5 and XLNet at 0.9 or more, RoBERTa at 0.65 (0.94 before it); random ones near 0, except "
            "T5's"
        ),
        source="published (Figure 2)",
        stages=("pretrained",),
        measure=_saturation_pretrained,
        rule=(
            "The mean level over layers is larger than that of random weights, of every model; layers in print that "
            "are not are listed."
        ),
        judge=_judge_saturation_pretrained,
    ),
]
