"""A case to diagnose: one stage at the step at which it first differs, and what its tensors have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, nan

import numpy as np
from numpy.typing import NDArray

from normgrowth.compare.alignment import Aligned
from normgrowth.compare.diagnosis.one_factor import MOST, one_factor
from normgrowth.compare.noise import LEAST_GRADIENT, epsilon, only_rounding
from normgrowth.compare.partings import Judged
from normgrowth.compare.result import Diagnosis, Parting, Setting

Floats = NDArray[np.float64]


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


def common_factor(case: Case, among: Sequence[int] | None = None) -> float | None:
    """Return b over a if nearly all tensors, or those among the given ones, differ by this same factor; else None."""
    a, b = case.values()
    b = b / case.clipped
    judged = judged_gradients(case) if case.parting.stage == "gradient" else np.isfinite(a + b)
    if among is not None:
        judged = judged & np.isin(np.arange(len(a)), among)
    chosen = judged & (a > 0) & (b > 0)
    if len(case.tensors) < MOST * chosen.sum():
        return None
    return one_factor(a[chosen], b[chosen])


def judged_gradients(case: Case) -> NDArray[np.bool_]:
    """Return the items whose gradients are large enough to compare."""
    gradients = case.values("gradient")
    with np.errstate(invalid="ignore"):
        large = np.logical_or(*(g > LEAST_GRADIENT * np.sqrt(np.nansum(g**2)) for g in gradients))
    return (
        large
        & np.isfinite(gradients[0] + gradients[1])
        & ~only_rounding(case.pair.a, case.pair.b)[case.place]
    )


def is_lost(case: Case, item: int) -> bool:
    """Whether the step of the run with the finer dtype is below the resolution of the coarser dtype."""
    runs = (case.pair.a, case.pair.b)
    fine, coarse = sorted(runs, key=epsilon)
    if epsilon(fine) == epsilon(coarse):
        return False
    step, norm = (fine.values[stage][case.place, item] for stage in ("step", "weights_after"))
    return bool(step < epsilon(coarse) * norm)


def common_group(pair: Aligned, chosen: Sequence[int]) -> str:
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
