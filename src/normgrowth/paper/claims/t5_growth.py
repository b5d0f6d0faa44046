"""Sections 3 and 5.5, judged by the published numbers of T5: norm, layers, directions, alignment, step size."""

import numpy as np

from normgrowth.dynamics.direction import direction
from normgrowth.fit import fit
from normgrowth.paper.claim import (
    FAILS,
    HOLDS,
    IN_PART,
    UNDECIDED,
    Claim,
    Evidence,
    Numbers,
    Ruling,
)
from normgrowth.paper.published.figure1 import t5_records
from normgrowth.paper.published.tables import published

FIGURE1, FIGURE5 = "published (Figure 1)", "derived from Figure 1"
ROUNDS_TO_ONE = 0.995  # r² that is printed as 1.00
EVIDENCE = 2.0  # ΔAICc from which on one law is preferred to another


def _norm_sqrt(evidence: Evidence) -> dict[str, float]:
    del evidence
    t5 = published("t5_norm")
    fits = fit(t5["step"], t5["norm"], bootstrap=0)
    ours, theirs = fits["sqrt2"], fits["sqrt"]
    return {
        "r2 of a√t + b": theirs.r2,
        "r2 of √(b² + a²t)": ours.r2,
        "evidence for √(b² + a²t)": theirs.aicc_effective - ours.aicc_effective,
    }


def _judge_norm_sqrt(n: Numbers) -> Ruling:
    r2, other, evidence = n["r2 of a√t + b"], n["r2 of √(b² + a²t)"], n["evidence for √(b² + a²t)"]
    if r2 < ROUNDS_TO_ONE:
        return Ruling(FAILS, f"a√t + b has r² = {r2:.4f}, which is not 1.00.")
    if evidence > EVIDENCE:
        return Ruling(
            IN_PART,
            f"a√t + b has r² = {r2:.4f}, as printed; √(b² + a²t), with as many parameters, has {other:.4f} and is "
            f"preferred by {evidence:.1f} (AICc, residuals correlated).",
        )
    return Ruling(HOLDS, f"a√t + b has r² = {r2:.4f}, and √(b² + a²t) is not preferred to it.")


def _norm_layers(evidence: Evidence) -> dict[str, float]:
    del evidence
    table = published("t5_norm_by_layer")
    factors, slopes, r2 = [], [], []
    for number in np.unique(table["layer"]).tolist():
        own = table.layer(number)
        law = fit(own["step"], own["norm"], laws=["sqrt"], bootstrap=0)["sqrt"]
        factors.append(own["norm"][-1] / own["norm"][0])
        slopes.append(law.params["a"])
        r2.append(law.r2)
    return {
        "least factor of growth": min(factors),
        "least r2 of a√t + b": min(r2),
        "rank correlation of slope and layer": _rank_correlation(slopes),
    }


def _rank_correlation(values: list[float]) -> float:
    """Of values with their order."""
    ranks = np.argsort(np.argsort(values)).astype(float)
    return float(np.corrcoef(ranks, np.arange(len(values)))[0, 1])


def _judge_norm_layers(n: Numbers) -> Ruling:
    factor, r2, order = (
        n["least factor of growth"],
        n["least r2 of a√t + b"],
        n["rank correlation of slope and layer"],
    )
    if factor <= 1 or r2 < 0.9:
        return Ruling(FAILS, f"A layer grows by {factor:.2f} only, or its r² is {r2:.3f}.")
    if r2 >= 0.99 and order >= 0.9:
        return Ruling(
            HOLDS, f"All layers follow a√t + b (r² ≥ {r2:.3f}), the later the faster (rank {order:.2f})."
        )
    return Ruling(
        IN_PART,
        f"All layers grow, by {factor:.1f} or more, with r² ≥ {r2:.3f}; slope and depth agree in rank by {order:.2f}.",
    )


def _direction_consecutive(evidence: Evidence) -> dict[str, float]:
    del evidence
    model, layers = published("t5_direction"), published("t5_direction_by_layer")
    last = layers["step"] == layers["step"].max()
    ends = layers["cosine_to_previous"][last]
    cosine = model["cosine_to_previous"]
    return {
        "cosine, first interval": float(cosine[0]),
        "cosine, last interval": float(cosine[-1]),
        "least of a layer, last interval": float(ends.min()),
        "layers differ by, last interval": float(ends.max() - ends.min()),
    }


def _judge_direction_consecutive(n: Numbers) -> Ruling:
    first, last = n["cosine, first interval"], n["cosine, last interval"]
    least, spread = n["least of a layer, last interval"], n["layers differ by, last interval"]
    told = f"cos(θ_t, θ_t+1) goes from {first:.3f} to {last:.3f}; layers end at {least:.3f} or more"
    if last < 0.99 or last <= first:
        return Ruling(FAILS, f"{told}: it does not come near 1.")
    if least < 0.99 or spread > 0.01:
        return Ruling(IN_PART, f"{told}, {spread:.3f} apart: not all layers alike.")
    return Ruling(HOLDS, f"{told}, {spread:.3f} apart.")


def _direction_converges(evidence: Evidence) -> dict[str, float]:
    """angle²/h falls as t^−q: see `normgrowth.dynamics.direction`."""
    del evidence
    found = direction(t5_records())
    return {
        "q": found.q,
        "q, at least": found.low,
        "q, at most": found.high,
        "angles summed, in degrees": float(np.degrees(found.total[-1])),
    }


def _judge_direction_converges(n: Numbers) -> Ruling:
    told = f"The squared angle of an interval falls as t^−{n['q']:.2f} [{n['q, at least']:.2f}, {n['q, at most']:.2f}]"
    if n["q, at least"] > 2:
        return Ruling(HOLDS, f"{told}: the angles have a finite sum.")
    if n["q, at most"] < 1:
        total = n["angles summed, in degrees"]
        return Ruling(
            FAILS,
            f"{told}: even squared angles have no finite sum ({total:.0f}° so far). Cosines near 1 do not show that it "
            "converges.",
        )
    return Ruling(UNDECIDED, f"{told}: it converges only if later turns undo earlier ones.")


def _alignment(evidence: Evidence) -> dict[str, float]:
    del evidence
    steps = published("t5_steps")
    growth = steps["growth_steps"].sum() + steps["growth_alignment"].sum()
    return {
        "largest alignment": float(steps["alignment"].max()),
        "alignment at the end": float(steps["alignment"][-2]),
        "share of growth by steps": float(steps["growth_steps"].sum() / growth),
    }


def _judge_alignment(n: Numbers) -> Ruling:
    largest, end = n["largest alignment"], n["alignment at the end"]
    share = n["share of growth by steps"]
    told = f"cos(δ, θ) rises to {largest:.2f} and falls to {end:.2f}"
    if abs(end) > 0.1 or end >= largest:
        return Ruling(FAILS, f"{told}: it does not fall to near 0.")
    if share < 0.9:
        return Ruling(
            IN_PART,
            f"{told}, as printed; but between checkpoints ‖δ‖² makes {share:.0%} of the growth and 2⟨θ,δ⟩ the rest, so "
            "the dynamics are not misaligned.",
        )
    return Ruling(HOLDS, f"{told}, and ‖δ‖² makes {share:.0%} of the growth.")


def _step_size(evidence: Evidence) -> dict[str, float]:
    del evidence
    steps = published("t5_steps")
    size, interval = steps["step_size"], steps["interval"]
    later = size[len(size) // 2 : -1]
    expected = later[-1] * np.sqrt(interval[-1] / interval[-2])
    return {
        "largest minus least, later half": float(later.max() - later.min()),
        "mean, later half": float(later.mean()),
        "last": float(size[-1]),
        "last, expected of its fewer steps": float(expected),
    }


def _judge_step_size(n: Numbers) -> Ruling:
    change, mean = n["largest minus least, later half"], n["mean, later half"]
    last, expected = n["last"], n["last, expected of its fewer steps"]
    told = f"‖δ‖ changes by {change:.0f} of {mean:.0f} over the later half"
    if change > 0.2 * mean:
        return Ruling(FAILS, f"{told}.")
    drop = f"the drop to {last:.0f} at the end is that of an interval with fewer steps ({expected:.0f})"
    if change >= 20 or abs(last - expected) > 0.05 * expected:
        return Ruling(IN_PART, f"{told}, where less than 20 is printed; {drop}.")
    return Ruling(HOLDS, f"{told}; {drop}.")


CLAIMS = [
    Claim(
        id="norm-sqrt",
        where="§3, Fig. 1",
        statement="The parameter norm of T5-base follows a√t + b.",
        published="r² = 1.00, 104 checkpoints",
        source=FIGURE1,
        stages=(),
        measure=_norm_sqrt,
        rule="r² of a√t + b at least 0.995; in part if √(b² + a²t) is preferred to it by more than 2.",
        judge=_judge_norm_sqrt,
    ),
    Claim(
        id="norm-layers",
        where="§3, Fig. 1",
        statement="The norm grows in every layer as √t, faster in later layers.",
        published="figure",
        source=FIGURE1,
        stages=(),
        measure=_norm_layers,
        rule=(
            "Every layer grows with r² of at least 0.99, and slopes rise with depth (rank correlation 0.9); in "
            "part if every layer grows with r² of at least 0.9."
        ),
        judge=_judge_norm_layers,
    ),
    Claim(
        id="direction-consecutive",
        where="§3, Fig. 1",
        statement="The cosine between consecutive checkpoints goes to 1, in all layers alike.",
        published="figure",
        source=FIGURE1,
        stages=(),
        measure=_direction_consecutive,
        rule="It rises to 0.99 or more, in every layer, and layers end within 0.01 of each other.",
        judge=_judge_direction_consecutive,
    ),
    Claim(
        id="direction-converges",
        where="§3, §4",
        statement="The direction of the parameters converges.",
        published="inferred from the cosines",
        source=FIGURE5,
        stages=(),
        measure=_direction_converges,
        rule=(
            "With angle² per step falling as t^−q, all of the 95 % interval of q is above 2, where angles have a "
            "finite sum; it does not hold if all of it is below 1, where not even their squares have."
        ),
        judge=_judge_direction_converges,
    ),
    Claim(
        id="alignment",
        where="§5.5, Fig. 5",
        statement="cos(δ, θ) rises to about 0.15, then falls to near 0: dynamics are misaligned.",
        published="figure",
        source=FIGURE5,
        stages=(),
        measure=_alignment,
        rule="It falls to 0.1 or less, and ‖δ‖² makes at least 90 % of the growth of ‖θ‖²; in part if it falls only.",
        judge=_judge_alignment,
    ),
    Claim(
        id="step-size",
        where="§5.5, Fig. 5",
        statement="‖δ‖ is roughly constant for large t; the drop at the end is an artefact.",
        published="change of less than 20; a drop at the last checkpoint, an artefact",
        source=FIGURE5,
        stages=(),
        measure=_step_size,
        rule=(
            "Over the later half ‖δ‖ changes by less than 20, and the last one is as its number of steps says, to"
            " 5 %; in part if by less than 20 %."
        ),
        judge=_judge_step_size,
    ),
]
