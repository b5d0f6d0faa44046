"""Sections 3, 4 and 5.2, judged by language models trained here: growth, uniformity, saturation, heads."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.dynamics.uniformity import uniformity
from normgrowth.errors import InputError
from normgrowth.paper.claim import FAILS, HOLDS, IN_PART, Claim, Evidence, Numbers, Ruling
from normgrowth.paper.published.figure1 import t5_records
from normgrowth.records import Records

Floats = NDArray[np.float64]
ONE, ALL = 0.1, 0.9  # of attended_spread: a head that attends to one position, and one that attends to all


@dataclass(frozen=True)
class Trained:
    """One model of the lab."""

    name: str
    facts: dict[str, Any]
    records: Records

    def ends(self, quantity: str) -> tuple[float, float]:
        values = self.records.where(run=self.name).series(quantity)[1]
        return float(values[0]), float(values[-1])

    @cached_property
    def layers(self) -> Records:
        return self.records.where(run=f"{self.name}, checkpoints")

    def heads(self, quantity: str) -> Floats:
        """At the last step."""
        rows = self.records.where(run=f"{self.name}, heads", level="head", quantity=quantity).table
        if not len(rows):
            raise InputError(f"{self.name} has no {quantity} of heads")
        steps = rows["step"].to_numpy()
        return rows["value"].to_numpy()[steps == steps.max()]


def trained(evidence: Evidence, **facts: Any) -> Iterator[Trained]:
    """The models with these facts."""
    records = evidence["language_models"]
    found = [
        Trained(name, known, records)
        for name, known in records.made_by["models"].items()
        if all(known.get(key) == value for key, value in facts.items())
    ]
    if not found:
        raise InputError(f"no model was trained with {facts}")
    yield from found


def _uniform_growth(evidence: Evidence) -> dict[str, float]:
    spreads = [uniformity(model.layers, level="layer").spread for model in trained(evidence, leaking=False)]
    t5 = uniformity(t5_records(), level="layer")
    return {
        "T5: least factor of a layer": float(min(t5.factor)),
        "T5: largest": float(max(t5.factor)),
        "models here: least ratio of factors": float(min(spreads)),
        "models here: largest ratio": float(max(spreads)),
    }


def _judge_uniform_growth(n: Numbers) -> Ruling:
    t5 = n["T5: largest"] / n["T5: least factor of a layer"]
    least, largest = n["models here: least ratio of factors"], n["models here: largest ratio"]
    told = (
        f"Layers of T5 grew by {n['T5: least factor of a layer']:.1f} to {n['T5: largest']:.1f}, {t5:.2f} apart; those "
        f"of models trained here {least:.2f} to {largest:.2f}"
    )
    worst = max(t5, largest)
    if worst <= 1.1:
        return Ruling(HOLDS, f"{told}: the same up to a tenth.")
    if min(t5, least) > 2:
        return Ruling(FAILS, f"{told}.")
    return Ruling(IN_PART, f"{told}: every layer grows, not all alike.")


def _lm_growth(evidence: Evidence) -> dict[str, float]:
    factors = [end / start for start, end in (m.ends("norm") for m in trained(evidence, leaking=False))]
    return {
        "models": float(len(factors)),
        "that grew": float(sum(factor > 1 for factor in factors)),
        "least factor": min(factors),
        "largest factor": max(factors),
    }


def _judge_lm_growth(n: Numbers) -> Ruling:
    least, largest = n["least factor"], n["largest factor"]
    told = f"{n['that grew']:.0f} of {n['models']:.0f} models grew, by {least:.3f} to {largest:.3f}"
    if n["that grew"] == n["models"]:
        return Ruling(HOLDS, f"{told}.")
    return Ruling(IN_PART if n["that grew"] else FAILS, f"{told}.")


def _saturation_lm(evidence: Evidence) -> dict[str, float]:
    levels, others = [], []
    for model in trained(evidence, leaking=False, optimizer="adamw"):
        levels.append(model.ends("saturation")[1])
        others.append(model.ends("saturation_others")[1])
    return {
        "models": float(len(levels)),
        "at 0.98 or more": float(sum(level >= 0.98 for level in levels)),
        "least level": min(levels),
        "largest level": max(levels),
        "to other tokens, at the largest level": others[int(np.argmax(levels))],
    }


def _judge_saturation_lm(n: Numbers) -> Ruling:
    near = n["at 0.98 or more"]
    told = (
        f"{near:.0f} of {n['models']:.0f} models trained with AdamW reach 0.98 (levels {n['least level']:.2f} to "
        f"{n['largest level']:.2f}; the most saturated has {n['to other tokens, at the largest level']:.2f} to other "
        "tokens)"
    )
    if near == n["models"]:
        return Ruling(HOLDS, f"{told}.")
    return Ruling(IN_PART if near else FAILS, f"{told}.")


def _heads_bimodal(evidence: Evidence) -> dict[str, float]:
    spread = np.concatenate([m.heads("attended_spread") for m in trained(evidence, leaking=False)])
    leaking = np.concatenate([m.heads("attended_spread") for m in trained(evidence, leaking=True)])
    return {
        "heads": float(len(spread)),
        "at one position": float((spread <= ONE).mean()),
        "at all": float((spread >= ALL).mean()),
        "leaking mask: heads": float(len(leaking)),
        "leaking mask: at one position": float((leaking <= ONE).mean()),
    }


def _judge_heads_bimodal(n: Numbers) -> Ruling:
    one, everything = n["at one position"], n["at all"]
    leaking = n["leaking mask: at one position"]
    told = (
        f"With a true mask {one:.0%} of {n['heads']:.0f} saturated heads attend to one position and {everything:.0%} "
        f"to all; with the authors' mask, which shows the future, {leaking:.0%} are left at one"
    )
    if one >= 0.1 and everything >= 0.1 and one + everything >= 0.8:
        return Ruling(HOLDS, f"{told}.")
    if everything >= 0.02:
        return Ruling(IN_PART, f"{told}.")
    return Ruling(FAILS, f"{told}: the second mode is the future.")


CLAIMS = [
    Claim(
        id="uniform-growth",
        where="Prop. 1, §4",
        statement="Every parameter grows at the same rate up to a constant.",
        published="called reasonable",
        source="text; T5 published (Figure 1)",
        stages=("language_models",),
        measure=_uniform_growth,
        rule=(
            "Factors of growth of layers differ by a tenth at most, in T5 and in models trained here; it does not"
            " hold if they differ by more than 2 in all of them."
        ),
        judge=_judge_uniform_growth,
    ),
    Claim(
        id="lm-growth",
        where="§3",
        statement="Pre-norm and post-norm language models on WikiText-2 and PTB all grow.",
        published="every model",
        source="text",
        stages=("language_models",),
        measure=_lm_growth,
        rule="The norm of every model is larger at the end than at the start; in part if of some.",
        judge=_judge_lm_growth,
    ),
    Claim(
        id="saturation-lm",
        where="§4.1",
        statement="Small language models reach a saturation of 1.00.",
        published="1.00; small pretrained ones more than base ones (footnote 7)",
        source="text",
        stages=("language_models",),
        measure=_saturation_lm,
        rule=(
            "Every model trained with AdamW ends at 0.98 or more (fewer epochs here than the paper's five); in "
            "part if some do. Footnote 7 is not judged: its models are not here."
        ),
        judge=_judge_saturation_lm,
    ),
    Claim(
        id="heads-bimodal",
        where="§4.3, Fig. 3",
        statement="Saturated heads attend to about one position, or to all of them.",
        published="modes at 1 and at 41 of 83 positions, a few pre-norm heads in between; 200 dev sentences",
        source="published (Figure 3)",
        stages=("language_models",),
        measure=_heads_bimodal,
        rule=(
            "With a true mask at least a tenth of the heads attends to one position and a tenth to all, and four "
            "fifths to one or all; in part if a fiftieth attends to all."
        ),
        judge=_judge_heads_bimodal,
    ),
]
