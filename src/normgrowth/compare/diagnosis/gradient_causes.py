"""Why the gradients of two runs differ: parts of the model, factors, precision, clipping, averaging or data."""

from math import exp, log, sqrt

import numpy as np

from normgrowth.compare.clipping import same_threshold, threshold, whole_gradient
from normgrowth.compare.diagnosis.case import (
    Case,
    common_factor,
    common_group,
    is_lost,
    judged_gradients,
)
from normgrowth.compare.diagnosis.one_factor import MOST, SAME_FACTOR
from normgrowth.compare.noise import EPSILON, base, compute_epsilon, epsilon
from normgrowth.compare.result import Diagnosis

WELL_BELOW = 0.25  # other tensors differ at most by this fraction of those that are said to differ first
LARGER = 0.05  # mean log ratio of gradient norms above which one run averages over less data
STANDARD_ERRORS = 3.0
ENDS = {"embedding", "head"}
TIED_ROLES = {"embedding", "head", "other", None}  # tensors of these roles may be tied to each other


def still(case: Case) -> Diagnosis | None:
    """Return the diagnosis that some tensors change in only one of the two runs."""
    for run, (own, other) in (("b", (1, 0)), ("a", (0, 1))):
        steps = case.values("step")
        chosen = [i for i in case.tensors if steps[own][i] == 0 and steps[other][i] > 0]
        if case.parting.stage != "gradient":
            chosen = [i for i in chosen if not is_lost(case, i)]
        if chosen:
            return case.diagnosis("still", chosen, run=run, group=common_group(case.pair, chosen))
    return None


def untied(case: Case) -> Diagnosis | None:
    """Match if one run has an extra tensor that is tied to another one in the other run.

    If only the gradient of that other one differs, both have the same values. With other values all gradients differ,
    from the first step on; then both must be embeddings or heads of the same size.
    """
    only_a, only_b = tuple(case.pair.only_a), tuple(case.pair.only_b)
    if bool(only_a) == bool(only_b):
        return None
    items, tensors = case.pair.a.items, case.tensors
    if len(tensors) > 1:
        extra = {item.size for item in case.pair.extra if item.role in ENDS and item.size}
        tied = [i for i in tensors if items[i].role in ENDS and items[i].size in extra]
        tensors = tied + [i for i in tensors if i not in tied]
        if len(tied) != 1 or case.place > first_gradient(case):
            return None
    elif items[tensors[0]].role not in TIED_ROLES:
        return None
    return case.diagnosis("untied", tensors, run="a" if only_a else "b", only_a=only_a, only_b=only_b)


def clipping(case: Case) -> Diagnosis | None:
    """Match if the gradient norm of the model is constant in one run, or in both with different values."""
    a, b = (threshold(run) for run in (case.pair.a, case.pair.b))
    if (a is None and b is None) or same_threshold(case.pair):
        return None
    if a is None or b is None:
        return case.diagnosis("clipping", run="b" if a is None else "a", a=a, b=b)
    run, ratio = ("b", b / a) if b > a else ("a", a / b)
    ranks = case.pair.b.ranks if run == "b" else case.pair.a.ranks
    local = ranks > 1 and abs(ratio / sqrt(ranks) - 1) < 0.02
    cause = "local_clipping" if local else "clipping"
    return case.diagnosis(cause, run=run, a=a, b=b, factor=b / a)


def gradient_factor(case: Case) -> Diagnosis | None:
    """Match if one factor fits the gradients of all tensors."""
    factor = common_factor(case)
    if factor is None:
        return None
    a, b = (values[case.tensors] for values in case.values())
    with np.errstate(divide="ignore", invalid="ignore"):
        near = np.abs(np.log(b / a) - log(factor)) <= SAME_FACTOR * abs(log(factor))
    chosen = [i for i, fits in zip(case.tensors, near.tolist(), strict=True) if fits]
    outliers = tuple(case.pair.names[i] for i in case.tensors if i not in chosen)
    return case.diagnosis("gradient_factor", chosen, factor=factor, outliers=outliers)


def part_of_model(case: Case) -> Diagnosis | None:
    """Match if the gradients of some tensors differ while others agree: of a group, or of at most half of all.

    If both runs are clipped, the others have a common factor.
    """
    judged, group = judged_gradients(case), common_group(case.pair, case.tensors)
    count = judged.sum()
    if len(case.tensors) >= MOST * count or (not group and len(case.tensors) > count / 2):
        return None
    values = case.judged.differences["gradient"][case.place]
    others = np.delete(np.where(judged, values, 0.0), case.tensors)
    if np.nanmax(others, initial=0.0) > WELL_BELOW * np.median(values[case.tensors]):
        return None  # a noise floor hides differences of the others
    return case.diagnosis("part", group=group, factor=None if case.clipped == 1 else case.clipped)


def precision(case: Case) -> Diagnosis | None:
    """Match if forward passes compute in another dtype, whose rounding explains the differences."""
    units = [compute_epsilon(run) for run in (case.pair.a, case.pair.b)]
    if units[0] == units[1] or epsilon(case.pair.a) != epsilon(case.pair.b):
        return None
    run, coarse = ("a", case.pair.a) if units[0] > units[1] else ("b", case.pair.b)
    if np.nanmax(case.judged.differences["gradient"][case.place, case.tensors]) > base(
        "gradient", max(units)
    ):
        return None
    return case.diagnosis(
        "precision", run=run, dtype=max(coarse.compute_dtypes, key=lambda dtype: EPSILON.get(dtype, 0.0))
    )


def averaging(case: Case) -> Diagnosis | None:
    """Match if the gradients of one run are consistently larger: a mean over less data has a larger norm.

    Ranks that do not average differ from the first step on, and the norm is at most √ranks times as large.
    """
    if case.place > first_gradient(case):
        return None
    a, b = (whole_gradient(run)[case.place :] for run in (case.pair.a, case.pair.b))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = np.log(b / a)
    ratios = ratios[np.isfinite(ratios)][:20]
    if len(ratios) < 3:
        return None
    mean, error = float(ratios.mean()), float(ratios.std(ddof=1)) / sqrt(len(ratios))
    larger = case.pair.b if mean > 0 else case.pair.a
    if (
        not max(LARGER, STANDARD_ERRORS * error)
        <= abs(mean)
        <= log(larger.ranks) / 2 + STANDARD_ERRORS * error
    ):
        return None
    return case.diagnosis("averaging", run="b" if mean > 0 else "a", factor=exp(mean))


def data(case: Case) -> Diagnosis | None:
    """Match the remaining case: gradients differ without a pattern, so the inputs or the computation differ."""
    return case.diagnosis("data")


def first_gradient(case: Case) -> int:
    """Return the place of the first step at which gradients were compared."""
    return int(np.flatnonzero(np.isfinite(case.judged.differences["gradient"]).any(axis=1))[0])
