"""Sections 5.3, 5.4, 5.6, E and F: what a schedule predicts for T5, and what weight decay does."""

import numpy as np

from normgrowth import schedules
from normgrowth.dynamics import dynamics
from normgrowth.dynamics.prediction import predict_norm
from normgrowth.errors import InputError
from normgrowth.paper.claim import FAILS, HOLDS, IN_PART, Claim, Evidence, Numbers, Ruling
from normgrowth.paper.published.figure1 import SCHEDULE, t5_records
from normgrowth.records import Records

DEFAULT_RATE, DEFAULT_DECAY = 1e-3, 1e-2  # PyTorch's AdamW


def _dynamics(evidence: Evidence) -> dict[str, float]:
    del evidence
    rate = schedules.parse("inverse_sqrt:lr=1,hold=1")
    steps = np.array([1e4, 4e6])

    def power(kappa: float) -> float:
        norms = predict_norm(rate, kappa, steps, norm0=1.0, model="misaligned")
        return float(np.log(norms[1] / norms[0]) / np.log(steps[1] / steps[0]))

    found = dynamics(t5_records(), SCHEDULE)
    assert found.aligned is not None
    assert found.misaligned is not None
    return {
        "misaligned, κ = 1: norm as t to the power": power(1.0),
        "misaligned, κ = ½: norm as t to the power": power(0.5),
        "T5: κ": found.misaligned.kappa,
        "T5: norm at the end": found.norms[-1],
        "T5: misaligned dynamics end at": found.misaligned.predicted[-1],
        "T5: log10 of where aligned dynamics end": float(np.log10(found.aligned.predicted[-1])),
    }


def _judge_dynamics(n: Numbers) -> Ruling:
    power, half = (n[f"misaligned, κ = {k}: norm as t to the power"] for k in ("1", "½"))
    end, misaligned = n["T5: norm at the end"], n["T5: misaligned dynamics end at"]
    if abs(power - 0.5) > 0.02:
        return Ruling(FAILS, f"Misaligned dynamics with η = 1/√t give t^{power:.2f}, not √t.")
    told = (
        f"Misaligned dynamics give t^{power:.2f} for κ = 1 only (t^{half:.3f} for κ = ½); with T5's {n['T5: κ']:.2f} "
        f"they end at {misaligned:,.0f}, T5 ended at {end:,.0f}"
    )
    if abs(half - 0.5) < 0.02 and abs(misaligned / end - 1) < 0.2:
        return Ruling(HOLDS, f"{told}.")
    return Ruling(
        IN_PART, f"{told}, and aligned ones at 10^{n['T5: log10 of where aligned dynamics end']:.1f}."
    )


def _weight_decay(evidence: Evidence) -> dict[str, float]:
    records = evidence["decay"]
    edge = _column(records, "edge")
    rates = _column(records, "lr")
    there = np.isfinite(edge) & (edge > 0)
    if there.sum() < 3:
        raise InputError("growth ends within the grid in fewer than three columns")
    slope = np.polyfit(np.log(rates[there]), np.log(edge[there]), 1)[0]
    ratio = edge[there] / _column(records, "edge_predicted")[there]
    at_default = np.interp(np.log(DEFAULT_RATE), np.log(rates[there]), np.log(edge[there]))
    return {
        "growth ends at λ, least": float(edge[there].min()),
        "growth ends at λ, largest": float(edge[there].max()),
        "as a power of η": float(slope),
        "at η = 0.001": float(np.exp(at_default)),
        "over λ*, median": float(np.median(ratio)),
    }


def _column(records: Records, quantity: str) -> np.ndarray:
    return records.where(level="column", quantity=quantity).table["value"].to_numpy()


def _judge_weight_decay(n: Numbers) -> Ruling:
    low, high = n["growth ends at λ, least"], n["growth ends at λ, largest"]
    power, default = n["as a power of η"], n["at η = 0.001"]
    told = (
        f"At η = 0.001 growth ends at λ = {default:.2g}; over the grid between {low:.1g} and {high:.1g}, moving as "
        f"η^{power:.2f}, at {n['over λ*, median']:.2f} times λ* of random gradients"
    )
    grows, fixed = default > DEFAULT_DECAY, abs(power) < 0.2
    if grows and fixed and low >= 1e-3 and high <= 1e-2:
        return Ruling(HOLDS, f"{told}.")
    if grows:
        return Ruling(
            IN_PART, f"{told}: the norm grows at PyTorch's λ = 0.01, but there is no threshold of λ alone."
        )
    return Ruling(FAILS, f"{told}: the norm does not grow at PyTorch's λ = 0.01.")


CLAIMS = [
    Claim(
        id="dynamics",
        where="§5.3, §5.4, §E",
        statement="With η = 1/√t, aligned dynamics give exp(√t) and misaligned ones √t.",
        published="derivation",
        source="text",
        stages=(),
        measure=_dynamics,
        rule=(
            "Misaligned dynamics give √t whatever the constant κ in ‖δ‖ = κη‖θ‖, and end within a fifth of T5's "
            "norm; in part if they give it for κ = 1."
        ),
        judge=_judge_dynamics,
    ),
    Claim(
        id="weight-decay",
        where="§5.6, §F, Fig. 6",
        statement=(
            "The norm grows unless λ is large, with a threshold between 0.001 and 0.01; growth is probable at λ ="
            " 0.01."
        ),
        published="figure: AdamW on WikiText-2, one epoch, 20 × 20 values from 10⁻⁵ to 10⁻¹",
        source="text; the grid from the authors' code",
        stages=("decay",),
        measure=_weight_decay,
        rule=(
            "At PyTorch's η growth ends above λ = 0.01, and the threshold lies between 0.001 and 0.01 at all η; "
            "in part if the first only."
        ),
        judge=_judge_weight_decay,
    ),
]
