"""Why the steps of two runs differ although their gradients agree: settings of the optimizer, or rounding."""

import numpy as np

from normgrowth.compare.diagnosis.case import Case, common_factor, common_group, is_lost
from normgrowth.compare.noise import coarsest, epsilon
from normgrowth.compare.result import Diagnosis


def learning_rate(case: Case) -> Diagnosis | None:
    return case.diagnosis(
        "learning_rate", factor=common_factor(case, case.tensors), group=common_group(case.pair, case.tensors)
    )


def decay(case: Case) -> Diagnosis | None:
    """Match if decay is missing for some tensors of one run, has another strength, or is part of the gradient."""
    a, b = case.values()
    if any(np.isnan(a[i]) ^ np.isnan(b[i]) for i in case.tensors):
        return case.diagnosis("decay_kind", run="b" if np.isnan(b[case.tensors]).any() else "a")
    only_a = tuple(case.pair.names[i] for i in case.tensors if b[i] == 0)
    only_b = tuple(case.pair.names[i] for i in case.tensors if a[i] == 0)
    factor = None if only_a or only_b else common_factor(case, case.tensors)
    return case.diagnosis(
        "decay", only_a=only_a, only_b=only_b, factor=factor, group=common_group(case.pair, case.tensors)
    )


def rounding(case: Case) -> Diagnosis | None:
    """Match if steps are below the resolution of one run's dtype."""
    units = [epsilon(run) for run in (case.pair.a, case.pair.b)]
    chosen = [i for i in case.tensors if is_lost(case, i)]
    if units[0] == units[1] or not chosen:
        return None
    run, values = ("a", case.pair.a) if units[0] > units[1] else ("b", case.pair.b)
    return case.diagnosis("rounding", chosen, run=run, dtype=coarsest(values))


def optimizer(case: Case) -> Diagnosis | None:
    """Match if gradients, learning rates and decay agree but steps do not."""
    if not (case.pair.a.tracked and case.pair.b.tracked):
        return None
    return case.diagnosis(
        "optimizer", factor=common_factor(case), group=common_group(case.pair, case.tensors)
    )
