"""What a fit found: one law (`Fit`) and all laws of a series (`Fits`). `normgrowth.fit.fitting` makes them."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite, nan
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from normgrowth.errors import InputError
from normgrowth.fit.laws import LAWS, Floats
from normgrowth.text import html_table

LEAST = 5  # points for AICc: with fewer it exists for `constant` alone, which would then win
SMALL_SAMPLE = (
    6.0  # the small-sample terms of laws that compete may differ by less: more is strong evidence by itself
)


@dataclass(frozen=True)
class Fit:
    """One law on one series. A law that was not fitted has a `reason`, and NaN for numbers."""

    name: str
    formula: str
    params: dict[str, float]
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    r2: float = nan  # against the mean; NaN if the norms do not change
    rmse: float = nan
    ahead: float = nan  # rms error of the later half predicted from the earlier, by its mean
    rho: float = nan  # correlation of neighbouring residuals
    aicc: float = inf  # infinite where there are too few points for it
    aicc_effective: float = inf
    weight: float = 0.0
    weight_independent: float = 0.0  # what the textbook's AICc would give
    converged: bool = False
    at_bound: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str = ""

    @property
    def fitted(self) -> bool:
        return not self.reason

    def interval(self, param: str) -> tuple[float, float]:
        """Where the parameter lies; infinite ends are open, NaN means that none was asked for."""
        if param not in self.params:
            raise InputError(f"{self.name} has no parameter {param!r}; it has {', '.join(self.params)}")
        return self.intervals.get(param, (nan, nan))

    def predict(self, t: ArrayLike) -> Floats:
        """The norm that the law gives at step t."""
        if not self.fitted:
            raise InputError(f"{self.name} was not fitted: {self.reason}")
        steps = np.asarray(t, np.float64)
        if (steps < 0).any():
            raise InputError(f"step {steps.min():g} is negative: the laws begin at step 0")
        return LAWS[self.name].predict(steps, self.params)

    def _repr_html_(self) -> str:
        rows = [(param, value, *self.interval(param)) for param, value in self.params.items()]
        rest = [("r²", self.r2), ("error ahead", self.ahead), ("weight", self.weight)]
        notes = [("note", note) for note in self.notes]
        found = [*rows, *rest, *notes] if self.fitted else [("not fitted", self.reason)]
        return html_table((self.name, self.formula, "from", "to"), found)


def points_needed(parameters: Collection[int]) -> int:
    """How many points it takes to choose between laws with so many parameters.

    The small-sample term of AICc, 2K(K + 1)/(n − K − 1), is there for noise that a fit took up. With few points it
    decides alone: of 5, it puts a constant 18 ahead of a straight line, whatever the norms are.
    """
    least, most = min(parameters) + 1, max(parameters) + 1  # the variance of the noise is one more
    n = max(LEAST, most + 2)
    while _small_sample(n, most) - _small_sample(n, least) >= SMALL_SAMPLE:
        n += 1
    return n


def _small_sample(n: int, K: int) -> float:
    return 2 * K * (K + 1) / (n - K - 1)


@dataclass(frozen=True)
class Fits(Mapping[str, Fit]):
    """The laws by name, in their fixed order, and what was found about the series."""

    laws: dict[str, Fit]
    points: int
    effective: float  # the number of independent points that the residuals are worth
    rho: float
    notes: tuple[str, ...] = ()
    confidence: float = 0.95
    needed: int = LEAST  # points that it takes to choose between these laws

    def __getitem__(self, name: str) -> Fit:
        return self.laws[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.laws)

    def __len__(self) -> int:
        return len(self.laws)

    def __repr__(self) -> str:
        """One line: nine laws with all their numbers would be a hundred."""
        best = max(self.values(), key=lambda law: law.weight, default=None)
        said = f"best: {best.name}, {best.formula}" if best and best.weight > 0 else "none is best"
        return f"Fits({len(self)} laws on {self.points:,} points; {said})"

    def _repr_html_(self) -> str:
        titles = ("law", "formula", "r²", "error ahead", "ΔAICc", "weight", "parameters")
        keys = ("law", "formula", "r2", "ahead", "delta_effective")
        rows = [[*(row[key] for key in keys), f"{row['weight']:.3f}", _params(row)] for row in self.table()]
        about = [("points", self.points), ("worth independent ones", self.effective)]
        notes = [("note", note) for note in self.notes]
        return html_table(titles, rows) + html_table(("series", ""), [*about, *notes])

    @property
    def best(self) -> Fit:
        """The law with the largest weight of evidence."""
        if not any(law.weight > 0 for law in self.values()):
            raise InputError(
                f"too few points to choose a law: {self.points}; these laws need {self.needed}; name one instead"
            )
        return max(self.values(), key=lambda law: law.weight)

    def facts(self) -> dict[str, Any]:
        """Everything in plain values, the rows of `table` under "laws"."""
        return {
            "points": self.points,
            "needed": self.needed,
            "effective": self.effective,
            "rho": self.rho,
            "confidence": self.confidence,
            "best": self.best.name if any(law.weight > 0 for law in self.values()) else None,
            "notes": list(self.notes),
            "laws": self.table(),
        }

    def table(self) -> list[dict[str, Any]]:
        """A row of plain values for each law; differences are to the best law."""
        least = min((law.aicc for law in self.values()), default=inf)
        least_effective = min((law.aicc_effective for law in self.values()), default=inf)
        return [
            {
                "law": law.name,
                "formula": law.formula,
                "r2": law.r2,
                "rmse": law.rmse,
                "ahead": law.ahead,
                "rho": law.rho,
                "aicc": law.aicc,
                "delta_aicc": law.aicc - least if isfinite(law.aicc) else inf,
                "weight_independent": law.weight_independent,
                "aicc_effective": law.aicc_effective,
                "delta_effective": law.aicc_effective - least_effective
                if isfinite(law.aicc_effective)
                else inf,
                "weight": law.weight,
                "params": dict(law.params),
                "intervals": dict(law.intervals),
                "converged": law.converged,
                "at_bound": list(law.at_bound),
                "notes": list(law.notes),
                "fitted": law.fitted,
                "reason": law.reason,
            }
            for law in self.values()
        ]


def _params(row: Mapping[str, Any]) -> str:
    said = (f"{name} {value:.4g}" for name, value in row["params"].items())
    return ", ".join(said) if row["fitted"] else f"not fitted: {row['reason']}"
