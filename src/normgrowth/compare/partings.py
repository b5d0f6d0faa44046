"""Find the first step and tensor at which each stage differs by more than rounding explains."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normgrowth.compare.alignment import Aligned
from normgrowth.compare.kinks import gradients_may_jump
from normgrowth.compare.noise import LIMIT, OF_SUMS, UNMEASURED, Floor, only_rounding
from normgrowth.compare.result import Noise, Parting
from normgrowth.compare.step_stages import STAGES

Floats = NDArray[np.float64]
# Stages that depend on the weights or the step of the tensor itself, so rounding alone may decide them.
AMPLIFIED = ("decay_part", "gradient_part", "step", "weights_before", "weights_after")


@dataclass(frozen=True)
class Judged:
    """Differences and their floors. differences, beyond: stage -> steps × items. floors: stage -> value per step."""

    differences: Mapping[str, Floats]
    floors: Mapping[str, Floats]
    beyond: Mapping[str, NDArray[np.bool_]]
    partings: tuple[Parting, ...]
    first: int | None  # index of the first step at which any stage differs


def judge(
    pair: Aligned, differences: Mapping[str, Floats], unjudged: NDArray[np.bool_], floor: Floor
) -> Judged:
    """Compare the differences of every step with the floor, in the order of steps."""
    steps = pair.a.steps.tolist()
    stages = [stage for stage in STAGES if stage in differences]
    counted = {
        stage: np.where(unjudged, np.nan, values) if stage in AMPLIFIED else values
        for stage, values in differences.items()
    }
    if "gradient" in counted:
        counted["gradient"] = np.where(only_rounding(pair.a, pair.b), np.nan, counted["gradient"])
    floors = {stage: np.zeros(len(steps)) for stage in stages}
    beyond = {stage: np.zeros(values.shape, bool) for stage, values in counted.items()}
    first: int | None = None
    agreed = 0.0  # the largest difference of gradients so far, while the runs agree
    jumps = gradients_may_jump(pair, counted) & floor.has_kinks
    for place, step in enumerate(steps):
        gap = step - (steps[place - 1] if place else 0)
        at = floor.at(place, gap, kinks=bool(jumps[place]))
        earlier = max(agreed, UNMEASURED if gap > 1 and jumps[place] else 0.0)
        if first is None and "gradient" in counted:
            now = _largest(counted["gradient"][place])
            agreed = max(agreed, now if now <= at["gradient"] else 0.0)
        for stage, value in floor.passed_on(at, earlier, max(agreed, earlier)).items():
            floors[stage][place] = value
            with np.errstate(invalid="ignore"):
                beyond[stage][place] = counted[stage][place] > value
        if first is None and any(beyond[stage][place].any() for stage in stages):
            first = place
        if first is None:
            floor.learn({stage: _largest(counted[stage][place]) for stage in stages}, step)
    partings = [
        _parting(pair, stage, counted[stage], beyond[stage], floors[stage], steps)
        for stage in stages
        if beyond[stage].any()
    ]
    partings.sort(key=lambda parting: parting.step)  # stable: stages of one step stay in causal order
    return Judged(differences, floors, beyond, tuple(partings), first)


def _parting(
    pair: Aligned,
    stage: str,
    differences: Floats,
    beyond: NDArray[np.bool_],
    floors: Floats,
    steps: Sequence[int],
) -> Parting:
    place = int(np.flatnonzero(beyond.any(axis=1))[0])
    item = int(np.nanargmax(np.where(beyond[place], differences[place], -1.0)))
    a, b = (float(run.values[stage][place, item]) for run in (pair.a, pair.b))
    return Parting(
        stage,
        steps[place],
        pair.names[item],
        a if np.isfinite(a) else None,
        b if np.isfinite(b) else None,
        float(differences[place, item]),
        float(floors[place]),
        int(beyond[place].sum()),
        steps[place - 1] if place else None,
    )


def noise_before(judged: Judged, unjudged: NDArray[np.bool_], steps: NDArray[np.int64], source: str) -> Noise:
    """Return the largest difference of the weights at the steps before the runs diverge, and its growth factor."""
    if "weights_after" not in judged.differences:
        return Noise(source)
    judging = [stage for stage in ("gradient", "weights_after") if stage in judged.floors]
    high = [judged.floors[stage] >= LIMIT[stage] for stage in judging]
    blind = np.flatnonzero(np.logical_or.reduce(high))
    blind_from = int(steps[blind[0]]) if len(blind) else None
    until = len(steps) if judged.first is None else judged.first
    values = judged.differences["weights_after"][:until]
    largest = np.array([_largest(row[~unjudged]) for row in values])
    seen = np.flatnonzero(largest > OF_SUMS)
    if not len(seen):
        return Noise(source, blind_from=blind_from)
    first, last = int(seen[0]), int(seen[-1])
    growth = None
    if len(seen) > 2:
        growth = float(np.exp(np.polyfit(steps[seen].astype(float), np.log(largest[seen]), 1)[0]))
    return Noise(
        source,
        int(steps[first]),
        float(largest[first]),
        int(steps[last]),
        float(largest[last]),
        growth,
        blind_from,
    )


def _largest(values: Floats) -> float:
    return float(np.nanmax(values)) if np.isfinite(values).any() else 0.0
