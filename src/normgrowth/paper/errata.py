"""Where the paper is wrong as printed, each with both sides measured; `departures` has where the authors' code is."""

from math import exp

import numpy as np

from normgrowth.paper.claim import Evidence
from normgrowth.paper.claims.homogeneity import runs
from normgrowth.paper.departures import DEPARTURES
from normgrowth.paper.erratum import Erratum

SMALL = 1e-3


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


def _pre_norm(evidence: Evidence) -> dict[str, float]:
    rows = runs(evidence, "theory", "table1: ")
    return {
        "degree, its pre-norm": rows["paper's encoder"]["degree_measured"],
        "degree, the usual one": rows["usual pre-norm encoder"]["degree_measured"],
    }


def _vanishing(evidence: Evidence) -> dict[str, float]:
    found = runs(evidence, "theory", "vanishing")[""]
    return {
        "1 − cosine without later attention, c = 1": found["turned"],
        "the same at c = 1000": found["turned_scaled"],
    }


PRINTED = [
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
        id="pre-norm",
        kind="erratum",
        where="§3, §A, Definitions 5 and 6",
        printed="Its pre-norm is the standard one (Xiong et al., 2020).",
        true="The standard one is x + f(LN(x)), of degree 3; its own is x + LN(f(x)), of degree 1.",
        stages=("theory",),
        measure=_pre_norm,
        fails=lambda n: abs(n["degree, its pre-norm"] - n["degree, the usual one"]) > SMALL,
    ),
    Erratum(
        id="vanishing",
        kind="erratum",
        where="§5.2, §D",
        printed="Transformers are almost homogeneous, encoders without biases of degree 1.",
        true=(
            "Where branches differ in degree those of lower degree vanish: in gated networks, such as Llama, all "
            "attention after the first layer."
        ),
        stages=("theory",),
        measure=_vanishing,
        fails=lambda n: (
            n["1 − cosine without later attention, c = 1"] > 0.01 and n["the same at c = 1000"] < 1e-6
        ),
    ),
]
ERRATA: dict[str, Erratum] = {one.id: one for one in [*PRINTED, *DEPARTURES]}
