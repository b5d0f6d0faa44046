"""Diagnose why two runs diverge: rules on the first differences, which separate causes from consequences.

A stage is a cause if none of its inputs differs at its step or earlier. The first matching rule of the stage names the
cause.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, isfinite, log, nan, sqrt

import numpy as np
from numpy.typing import NDArray

from normgrowth.compare.alignment import Aligned
from normgrowth.compare.noise import (
    EPSILON,
    LEAST_GRADIENT,
    base,
    coarsest,
    compute_epsilon,
    epsilon,
    gradient_differences,
    only_rounding,
)
from normgrowth.compare.partings import Judged
from normgrowth.compare.result import Diagnosis, Parting, Setting
from normgrowth.compare.step_stages import UPSTREAM, RunValues

Floats = NDArray[np.float64]

MOST = 0.9  # this fraction of the tensors counts as all
SAME_FACTOR = 0.1  # relative: a factor is common if the log of nearly all ratios is this close to the median
WELL_BELOW = 0.25  # other tensors differ at most by this fraction of those that are said to differ first
CONSTANT = 1e-3  # relative: gradient norms this close to the largest one count as clipped
CLIPPED_STEPS = 3
LARGER = 0.05  # mean log ratio of gradient norms above which one run averages over less data
STANDARD_ERRORS = 3.0
ENDS = {"embedding", "head"}
TIED_ROLES = {"embedding", "head", "other", None}  # tensors of these roles may be tied to each other


@dataclass(frozen=True)
class Case:
    """One stage at the step at which it first differs."""

    pair: Aligned
    judged: Judged
    parting: Parting
    explained: frozenset[str] = frozenset()  # tensors that an earlier cause explains
    settings: tuple[Setting, ...] = ()  # of the optimizers, which differ
    clipped: float = 1.0  # the factor by which clipping changes gradients in b that agree before it

    @cached_property
    def place(self) -> int:
        return int(np.searchsorted(self.pair.a.steps, self.parting.step))

    @cached_property
    def tensors(self) -> list[int]:
        """Return the items that differ, largest difference first."""
        stage = self.parting.stage
        beyond = np.flatnonzero(self.judged.beyond[stage][self.place])
        order = np.argsort(-self.judged.differences[stage][self.place, beyond], kind="stable")
        return [i for i in beyond[order].tolist() if self.pair.names[i] not in self.explained]

    def values(self, stage: str | None = None) -> tuple[Floats, Floats]:
        """Return the values of every item at this step, in both runs."""
        stage = stage or self.parting.stage
        missing = np.full(len(self.pair.names), np.nan)
        a, b = (
            run.values[stage][self.place] if stage in run.values else missing
            for run in (self.pair.a, self.pair.b)
        )
        return a, b

    def cosines(self, item: int) -> tuple[float, float] | None:
        """Return the cosines of the gradient or the step of an item to its weights, in both runs."""
        of_gradient = self.parting.stage == "gradient"
        if not (of_gradient or self.parting.stage == "step"):
            return None
        runs = self.pair.a, self.pair.b
        a, b = (
            float((run.gradient_alignment if of_gradient else run.alignment)[self.place, item])
            for run in runs
        )
        return (a, b) if isfinite(a + b) else None

    def diagnosis(
        self, cause: str, tensors: Sequence[int] | None = None, run: str = "", **more: object
    ) -> Diagnosis:
        chosen = self.tensors if tensors is None else list(tensors)
        ranks = {"a": self.pair.a.ranks, "b": self.pair.b.ranks}
        values = self.judged.differences[self.parting.stage][self.place, chosen]
        shown = [float(side[chosen[0]]) if chosen else nan for side in self.values()]
        a, b = (value if isfinite(value) else None for value in shown)
        cosines = self.cosines(chosen[0]) if chosen else None
        return Diagnosis(
            cause,
            self.parting.stage,
            self.parting.step,
            tuple(self.pair.names[i] for i in chosen),
            len(self.pair.names),
            float(np.nanmax(values)) if len(chosen) else self.parting.difference,
            self.parting.floor,
            run=run,
            ranks=ranks.get(run, max(ranks.values())),
            previous=self.parting.previous,
            cosines=cosines,
            **{"a": a, "b": b, **more},  # pyright: ignore[reportArgumentType]
        )


Rule = Callable[[Case], Diagnosis | None]


def diagnose(pair: Aligned, judged: Judged, settings: tuple[Setting, ...] = ()) -> tuple[Diagnosis, ...]:
    """Return the causes of the first differences, earliest first."""
    found: list[Diagnosis] = []
    for parting in judged.partings:
        if not _is_cause(parting, judged.partings):
            continue
        explained = frozenset(name for one in found for name in one.tensors if one.cause == "still")
        case = _before_clipping(Case(pair, judged, parting, explained, settings))
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


# Weights ---------------------------------------------------------------------------------------------


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
    factor, group = _common_factor(case, case.tensors), _group(case.pair, case.tensors)
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


# Gradients -------------------------------------------------------------------------------------------


def still(case: Case) -> Diagnosis | None:
    """Return the diagnosis that some tensors change in only one of the two runs."""
    for run, (own, other) in (("b", (1, 0)), ("a", (0, 1))):
        steps = case.values("step")
        chosen = [i for i in case.tensors if steps[own][i] == 0 and steps[other][i] > 0]
        if case.parting.stage != "gradient":
            chosen = [i for i in chosen if not _is_lost(case, i)]
        if chosen:
            return case.diagnosis("still", chosen, run=run, group=_group(case.pair, chosen))
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
        if len(tied) != 1 or case.place > _first_gradient(case):
            return None
    elif items[tensors[0]].role not in TIED_ROLES:
        return None
    return case.diagnosis("untied", tensors, run="a" if only_a else "b", only_a=only_a, only_b=only_b)


def clipping(case: Case) -> Diagnosis | None:
    """Match if the gradient norm of the model is constant in one run, or in both with different values."""
    a, b = (_threshold(run) for run in (case.pair.a, case.pair.b))
    if (a is None and b is None) or _same_threshold(case.pair):
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
    factor = _common_factor(case)
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
    judged, group = _judged_gradients(case), _group(case.pair, case.tensors)
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
    if case.place > _first_gradient(case):
        return None
    a, b = (_whole_gradient(run)[case.place :] for run in (case.pair.a, case.pair.b))
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


# Settings of the optimizer ----------------------------------------------------------------------------


def learning_rate(case: Case) -> Diagnosis | None:
    return case.diagnosis(
        "learning_rate", factor=_common_factor(case, case.tensors), group=_group(case.pair, case.tensors)
    )


def decay(case: Case) -> Diagnosis | None:
    """Match if decay is missing for some tensors of one run, has another strength, or is part of the gradient."""
    a, b = case.values()
    if any(np.isnan(a[i]) ^ np.isnan(b[i]) for i in case.tensors):
        return case.diagnosis("decay_kind", run="b" if np.isnan(b[case.tensors]).any() else "a")
    only_a = tuple(case.pair.names[i] for i in case.tensors if b[i] == 0)
    only_b = tuple(case.pair.names[i] for i in case.tensors if a[i] == 0)
    factor = None if only_a or only_b else _common_factor(case, case.tensors)
    return case.diagnosis(
        "decay", only_a=only_a, only_b=only_b, factor=factor, group=_group(case.pair, case.tensors)
    )


def rounding(case: Case) -> Diagnosis | None:
    """Match if steps are below the resolution of one run's dtype."""
    units = [epsilon(run) for run in (case.pair.a, case.pair.b)]
    chosen = [i for i in case.tensors if _is_lost(case, i)]
    if units[0] == units[1] or not chosen:
        return None
    run, values = ("a", case.pair.a) if units[0] > units[1] else ("b", case.pair.b)
    return case.diagnosis("rounding", chosen, run=run, dtype=coarsest(values))


def optimizer(case: Case) -> Diagnosis | None:
    """Match if gradients, learning rates and decay agree but steps do not."""
    if not (case.pair.a.tracked and case.pair.b.tracked):
        return None
    return case.diagnosis("optimizer", factor=_common_factor(case), group=_group(case.pair, case.tensors))


RULES: dict[str, tuple[Rule, ...]] = {
    "weights_before": (nonfinite, initialization, between),
    "gradient": (*(still, untied, precision, clipping, gradient_factor, part_of_model, averaging, data),),
    "learning_rate": (learning_rate,),
    "decay_part": (decay,),
    "gradient_part": (still, rounding, optimizer, between),
    "step": (nonfinite, still, rounding, optimizer, between),
    "weights_after": (nonfinite, initialization, still, rounding, between),
}

# Helpers of the rules ----------------------------------------------------------------------------------


def _common_factor(case: Case, among: Sequence[int] | None = None) -> float | None:
    """Return b over a if nearly all tensors, or those among the given ones, differ by this same factor; else None."""
    a, b = case.values()
    b = b / case.clipped
    judged = _judged_gradients(case) if case.parting.stage == "gradient" else np.isfinite(a + b)
    if among is not None:
        judged = judged & np.isin(np.arange(len(a)), among)
    chosen = judged & (a > 0) & (b > 0)
    if len(case.tensors) < MOST * chosen.sum() or not chosen.any():
        return None
    logs = np.log(b[chosen] / a[chosen])
    middle = float(np.median(logs))
    near = np.abs(logs - middle) <= SAME_FACTOR * abs(middle)
    return exp(middle) if middle and near.mean() >= MOST else None


def _judged_gradients(case: Case) -> NDArray[np.bool_]:
    """Return the items whose gradients are large enough to compare."""
    gradients = case.values("gradient")
    with np.errstate(invalid="ignore"):
        large = np.logical_or(*(g > LEAST_GRADIENT * np.sqrt(np.nansum(g**2)) for g in gradients))
    return (
        large
        & np.isfinite(gradients[0] + gradients[1])
        & ~only_rounding(case.pair.a, case.pair.b)[case.place]
    )


def _first_gradient(case: Case) -> int:
    """Return the place of the first step at which gradients were compared."""
    return int(np.flatnonzero(np.isfinite(case.judged.differences["gradient"]).any(axis=1))[0])


def _before_clipping(case: Case) -> Case:
    """Return the case with gradients of b divided by the factor by which clipping to one norm changed most of them.

    If a part of the gradients differs, clipping scales those that agree.
    """
    if case.parting.stage != "gradient" or not _same_threshold(case.pair):
        return case
    a, b = case.values()
    chosen = _judged_gradients(case) & (a > 0) & (b > 0)
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


def _same_threshold(pair: Aligned) -> bool:
    """Return whether one threshold of gradient clipping fits the gradient norms of both runs.

    A run whose gradients are smaller is not changed by it.
    """
    thresholds = [found for run in (pair.a, pair.b) if (found := _threshold(run)) is not None]
    if not thresholds:
        return False
    largest = [np.nanmax(_whole_gradient(run)) for run in (pair.a, pair.b)]
    return bool(max(largest) <= (1 + 10 * CONSTANT) * min(thresholds))


def _whole_gradient(run: RunValues) -> Floats:
    return np.sqrt(np.nansum(run.values["gradient"] ** 2, axis=1))


def _threshold(run: RunValues) -> float | None:
    """Return the largest gradient norm of the model if many steps reach it, which indicates clipping."""
    norms = _whole_gradient(run)
    norms = norms[(norms > 0) & np.isfinite(norms)]
    if not len(norms):
        return None
    reached = norms > (1 - CONSTANT) * norms.max()
    return float(norms.max()) if reached.sum() >= max(CLIPPED_STEPS, len(norms) / 2) else None


def _is_lost(case: Case, item: int) -> bool:
    """Whether the step of the run with the finer dtype is below the resolution of the coarser dtype."""
    runs = (case.pair.a, case.pair.b)
    fine, coarse = sorted(runs, key=epsilon)
    if epsilon(fine) == epsilon(coarse):
        return False
    step, norm = (fine.values[stage][case.place, item] for stage in ("step", "weights_after"))
    return bool(step < epsilon(coarse) * norm)


def _group(pair: Aligned, chosen: Sequence[int]) -> str:
    """Return what the tensors have in common ("layer 3", "role norm"); "" if nothing."""
    items = [pair.a.items[i] for i in chosen]
    layers = sorted({item.layer for item in items if item.layer is not None})
    roles = {item.role for item in items} - {"other", None}
    alike = len(roles) == 1 and all(item.role in roles for item in items)
    inside = all(item.layer is not None for item in items)
    if len(layers) == 1 and inside:
        return f"layer {layers[0]}" + (f", role {roles.pop()}" if alike else "")
    if alike:
        return f"role {roles.pop()}"
    if layers and layers == list(range(layers[0], layers[-1] + 1)):
        whole = {item.layer for item in pair.a.items if item.layer is not None}
        return f"layers {layers[0]} to {layers[-1]}" if len(layers) < len(whole) else ""
    return ""
