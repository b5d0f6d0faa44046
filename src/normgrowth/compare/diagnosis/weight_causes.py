"""Why the weights of two runs differ: values that are not finite, other initial weights, or changes between steps."""

import numpy as np

from normgrowth.compare.diagnosis.case import Case, common_factor, common_group
from normgrowth.compare.result import Diagnosis


def nonfinite(case: Case) -> Diagnosis | None:
    """Match if one run has NaN or infinite weights."""
    a, b = (run.infinite[case.place] for run in (case.pair.a, case.pair.b))
    chosen = np.flatnonzero(a ^ b).tolist()
    return case.diagnosis("nonfinite", chosen, run="b" if b.any() else "a") if chosen else None


def initialization(case: Case) -> Diagnosis | None:
    """Match if weights differ at the first common step."""
    if case.place > 0 and not (case.place == 1 and case.parting.stage == "weights_before"):
        return None
    if case.place == 1 and np.isfinite(case.judged.differences["weights_after"][0]).any():
        return None  # the runs have measurements at the step before, where they agreed
    if case.parting.step > 1:
        return case.diagnosis("earlier")
    factor, group = common_factor(case, case.tensors), common_group(case.pair, case.tensors)
    return case.diagnosis("initialization", factor=factor, group=group)


def between(case: Case) -> Diagnosis | None:
    """Match if weights agreed after one measured step but not at the next, for no reason that was measured.

    If settings of the optimizers differ, their effect on the steps may be below the noise floor of the steps.
    """
    gap = case.parting.step - (case.parting.previous or 0)
    tracked = case.pair.a.tracked and case.pair.b.tracked
    outside = tracked and gap == 1 and case.parting.stage == "weights_before"
    if case.settings and not outside:
        return case.diagnosis("optimizer")
    return case.diagnosis("outside" if outside else "between")
