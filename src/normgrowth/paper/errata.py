"""Where the paper is wrong as printed, and where the authors' code departs from its text: both sides measured.

Each has two numbers or more, the printed side and the true one, and a rule that says from them whether what is printed
(or the code) fails here. None is taken for granted: if the printed side held, the rule would say so.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp, isfinite
from typing import Literal

import numpy as np

from normgrowth.errors import InputError
from normgrowth.paper.claims.models import trained
from normgrowth.paper.claims.networks import runs
from normgrowth.paper.claims.verdicts import Evidence, Numbers, lacking

Kind = Literal["erratum", "departure"]
SMALL = 1e-3


@dataclass(frozen=True, kw_only=True)
class Erratum:
    """stages: whose records it is measured on. fails: whether the printed statement, or the code, does."""

    id: str
    kind: Kind
    where: str
    printed: str
    true: str
    stages: tuple[str, ...]
    measure: Callable[[Evidence], dict[str, float]]
    fails: Callable[[Numbers], bool]


@dataclass(frozen=True)
class Checked:
    erratum: Erratum
    numbers: dict[str, float]
    fails: bool | None  # None: not measured
    why: str = ""  # it was not


def checked(erratum: Erratum, evidence: Evidence, failed: Mapping[str, str] | None = None) -> Checked:
    if why := lacking(erratum.stages, evidence, failed):
        return Checked(erratum, {}, None, why)
    try:
        numbers = erratum.measure(evidence)
    except InputError as error:
        return Checked(erratum, {}, None, str(error))
    if not all(isfinite(value) for value in numbers.values()):
        return Checked(erratum, numbers, None, "the records have no number for it")
    return Checked(erratum, numbers, erratum.fails(numbers))


def _head_degree(evidence: Evidence) -> dict[str, float]:
    row = runs(evidence, "theory", "table1: ")["attention head (Prop. 4)"]
    return {"degree, printed": row["printed"], "degree, measured": row["degree_measured"]}


def _softmax_error(evidence: Evidence) -> dict[str, float]:
    """x = (M, M − 0.1), c = 100."""
    del evidence

    def error(size: float, gap: float) -> float:
        x = np.array([size, size - gap])
        weights = [np.exp(scale * (x - x.max())) for scale in (1.0, 100.0)]
        one, other = (w / w.sum() for w in weights)
        return float(np.abs(one - other).max())

    return {
        "error, ‖x‖ large (M = 10)": error(10.0, 0.1),
        "error, ‖x‖ larger (M = 10⁶)": error(1e6, 0.1),
        "error, the gap larger (M = 10, gap 10)": error(10.0, 10.0),
    }


def _scaling_error(evidence: Evidence) -> dict[str, float]:
    """f(θ) = θσ(θ), of degree 1, at θ = 20: |f(cθ) − c·f(θ)|, and the same over c; c = 10¹²."""
    del evidence
    theta, c = 20.0, 1e12
    short = theta / (
        1 + exp(theta)
    )  # θ(1 − σ(θ)): what f(θ) lacks; f(cθ) lacks nothing that a float can hold
    return {"error, printed": c * short, "error, divided by cᵏ": short}


def _norm_bound(evidence: Evidence) -> dict[str, float]:
    """Layer norm of (1, 0, −1) + ε(1, −1, 0), ε = 10⁻⁸: the last bound of the proof, and the error itself."""
    del evidence

    def layer_norm(x: np.ndarray) -> np.ndarray:
        centred = x - x.mean()
        return centred / np.linalg.norm(centred)

    base, small = np.array([1.0, 0.0, -1.0]), 1e-8 * np.array([1.0, -1.0, 0.0])
    value, size = layer_norm(base), np.linalg.norm(small)
    return {
        "bound, printed": float(np.abs(small - size * value).max() / size),
        "error": float(np.abs(layer_norm(base + small) - value).max()),
    }


def _tie(evidence: Evidence) -> dict[str, float]:
    found = runs(evidence, "theory", "tie")[""]
    return {"largest weight, saturated": found["saturated"], "largest weight as t grows": found["moved"]}


def _mask(evidence: Evidence) -> dict[str, float]:
    leaking = list(trained(evidence, leaking=True))
    losses = []
    for one in leaking:
        facts = {**one.facts, "leaking": False}
        (twin,) = trained(evidence, **facts)
        losses.append((twin.ends("dev_loss")[1], one.ends("dev_loss")[1]))
    true, theirs = min(losses, key=lambda pair: pair[1])
    return {"dev loss, true mask": true, "dev loss, their mask": theirs}


def _padding(evidence: Evidence) -> dict[str, float]:
    model = next(trained(evidence, leaking=True))
    real, window = model.heads("attended"), model.heads("attended_window")
    return {
        "positions attended, of real tokens": float(real.mean()),
        "with padding counted": float(window.mean()),
    }


ERRATA: dict[str, Erratum] = {
    one.id: one
    for one in (
        Erratum(
            id="prop-4",
            kind="erratum",
            where="Prop. 4",
            printed="An attention head AV has degree 1.",
            true="It has degree 2: A has 0, V has 2. The sublayer's degree stays, since the norm resets it.",
            stages=("theory",),
            measure=_head_degree,
            fails=lambda n: abs(n["degree, printed"] - n["degree, measured"]) > SMALL,
        ),
        Erratum(
            id="prop-2",
            kind="erratum",
            where="Prop. 2",
            printed="Growth that is uniform up to o(t) makes a network its saturated self.",
            true="Where scores tie, o(t) decides, and the limit is another.",
            stages=("theory",),
            measure=_tie,
            fails=lambda n: abs(n["largest weight, saturated"] - n["largest weight as t grows"]) > SMALL,
        ),
        Erratum(
            id="lemma-7",
            kind="erratum",
            where="Lemma 7",
            printed="The scaling error of softmax vanishes as ‖x‖ grows.",
            true="It vanishes as the gap between the largest entry and the next grows.",
            stages=(),
            measure=_softmax_error,
            fails=lambda n: n["error, ‖x‖ larger (M = 10⁶)"] > 0.9 * n["error, ‖x‖ large (M = 10)"],
        ),
        Erratum(
            id="definition-3",
            kind="erratum",
            where="Definition 3, Lemma 4",
            printed="The scaling error is ‖f(cθ) − cᵏf(θ)‖.",
            true="It must be ‖f(cθ)/cᵏ − f(θ)‖: without the division θσ(θ) has an error that grows with c.",
            stages=(),
            measure=_scaling_error,
            fails=lambda n: n["error, printed"] > 1 and n["error, divided by cᵏ"] < SMALL,
        ),
        Erratum(
            id="lemma-5",
            kind="erratum",
            where="Lemma 5",
            printed="The scaling error of layer norm is bounded by something that vanishes.",
            true="The last bound printed does not vanish; 2‖ε‖/‖f − μ‖ does, and bounds it.",
            stages=(),
            measure=_norm_bound,
            fails=lambda n: n["bound, printed"] > 0.1 and n["error"] < SMALL,
        ),
        Erratum(
            id="mask",
            kind="departure",
            where="code of the language models",
            printed="The causal mask multiplies scores by 0.",
            true="They must be −∞: a score of 0 is seen, and the next word with it.",
            stages=("lab",),
            measure=_mask,
            fails=lambda n: n["dev loss, their mask"] < n["dev loss, true mask"] - 0.1,
        ),
        Erratum(
            id="padding",
            kind="departure",
            where="code of Figure 3",
            printed="Attended positions are counted with padding, which asks and is asked.",
            true="Padding is no position.",
            stages=("lab",),
            measure=_padding,
            fails=lambda n: (
                abs(n["with padding counted"] / n["positions attended, of real tokens"] - 1) > 0.1
            ),
        ),
    )
}
