"""Diagnose why two runs diverge: rules on the first differences, which separate causes from consequences.

A stage is a cause if none of its inputs differs at its step or earlier. The first matching rule of the stage names the
cause.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from normgrowth.compare.alignment import Aligned
from normgrowth.compare.clipping import same_threshold
from normgrowth.compare.diagnosis.case import Case, judged_gradients
from normgrowth.compare.diagnosis.gradient_causes import (
    averaging,
    clipping,
    data,
    gradient_factor,
    part_of_model,
    precision,
    still,
    untied,
)
from normgrowth.compare.diagnosis.update_causes import decay, learning_rate, optimizer, rounding
from normgrowth.compare.diagnosis.weight_causes import between, initialization, nonfinite
from normgrowth.compare.noise import gradient_differences, only_rounding
from normgrowth.compare.partings import Judged
from normgrowth.compare.result import Diagnosis, Parting, Setting
from normgrowth.compare.step_stages import UPSTREAM

Rule = Callable[[Case], Diagnosis | None]
RULES: dict[str, tuple[Rule, ...]] = {
    "weights_before": (nonfinite, initialization, between),
    "gradient": (*(still, untied, precision, clipping, gradient_factor, part_of_model, averaging, data),),
    "learning_rate": (learning_rate,),
    "decay_part": (decay,),
    "gradient_part": (still, rounding, optimizer, between),
    "step": (nonfinite, still, rounding, optimizer, between),
    "weights_after": (nonfinite, initialization, still, rounding, between),
}


def diagnose(pair: Aligned, judged: Judged, settings: tuple[Setting, ...] = ()) -> tuple[Diagnosis, ...]:
    """Return the causes of the first differences, earliest first."""
    found: list[Diagnosis] = []
    for parting in judged.partings:
        if not _is_cause(parting, judged.partings):
            continue
        explained = frozenset(name for one in found for name in one.tensors if one.cause == "still")
        case = without_clipping(Case(pair, judged, parting, explained, settings))
        if case.tensors:
            found += next(said for rule in RULES[parting.stage] if (said := _as_list(rule(case))))
    return tuple(found)


def _as_list(said: Diagnosis | None) -> list[Diagnosis]:
    return [] if said is None else [said]


def _is_cause(parting: Parting, partings: Sequence[Parting]) -> bool:
    """Whether no input of the stage differs at this step or before. Weights depend on all earlier steps."""
    if parting.stage in ("weights_before", "weights_after") and any(
        other.step < parting.step for other in partings
    ):
        return False
    if parting.stage == "weights_before" and parting.previous is not None:
        # Learning rates of the steps between two measured ones are not recorded, but are likely to differ as well.
        between = parting.step - parting.previous > 1
        if between and any(one.stage == "learning_rate" and one.step <= parting.step for one in partings):
            return False
    return not any(
        other.stage in UPSTREAM[parting.stage] and other.step <= parting.step for other in partings
    )


def without_clipping(case: Case) -> Case:
    """Return the case with gradients of b divided by the factor by which clipping to one norm changed most of them.

    If a part of the gradients differs, clipping scales those that agree.
    """
    if case.parting.stage != "gradient" or not same_threshold(case.pair):
        return case
    a, b = case.values()
    chosen = judged_gradients(case) & (a > 0) & (b > 0)
    if not chosen.any():
        return case
    factor = float(np.median(b[chosen] / a[chosen]))
    values = gradient_differences(case.pair.a, case.pair.b, factor)
    values[only_rounding(case.pair.a, case.pair.b)] = np.nan
    beyond = values[case.place] > case.judged.floors["gradient"][case.place]
    if abs(factor - 1) <= case.judged.floors["gradient"][case.place] or not beyond.any():
        return case
    rows = {"differences": values[case.place], "beyond": beyond}
    changed = {}
    for name, row in rows.items():
        stages = getattr(case.judged, name)
        grid = stages["gradient"].copy()
        grid[case.place] = row
        changed[name] = {**stages, "gradient": grid}
    return replace(case, judged=replace(case.judged, **changed), clipped=factor)
