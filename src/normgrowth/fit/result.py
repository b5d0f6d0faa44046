"""The results of `fit`: one law (`LawFit`), all laws of a series (`SeriesFit`), all series (`Fits`)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf, nan
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from normgrowth.errors import InputError, TooFewPoints
from normgrowth.fit.laws import LAWS, Floats
from normgrowth.moments.levels import MATRICES
from normgrowth.records import Block, Records
from normgrowth.results import Result
from normgrowth.text import html_table, one_line, visible

# The numbers of a law in the records, in addition to its parameters.
NUMBERS = (
    *("r2", "rmse", "held_out_error", "autocorrelation"),
    *("aicc", "delta_aicc", "weight_independent", "aicc_effective", "delta_effective", "weight"),
)

UNDECIDED = 2.0  # a difference in AICc up to this is too small to prefer a law


@dataclass(frozen=True)
class LawFit:
    """One law fitted to one series. A law that could not be fitted has a `reason`, and its parameters are NaN."""

    __repr__ = one_line

    law: str
    formula: str
    params: dict[str, float]
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    r2: float = nan  # relative to the mean; NaN if the norms are constant
    rmse: float = nan
    held_out_error: float = nan  # rms of predicting the later half from the earlier, relative to its mean
    autocorrelation: float = nan  # of neighboring residuals
    aicc: float = inf  # assuming independent residuals; infinite if there are too few points
    delta_aicc: float = inf  # difference to the smallest
    weight_independent: float = 0.0  # weight of evidence by aicc
    aicc_effective: float = inf  # with `SeriesFit.weighed_points` for the number of points
    delta_effective: float = inf
    weight: float = 0.0  # weight of evidence by aicc_effective
    converged: bool = False
    at_bound: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str = ""

    @property
    def fitted(self) -> bool:
        return not self.reason

    def interval(self, param: str) -> tuple[float, float]:
        """Return the confidence interval of a parameter; an infinite end is open, and NaN means no bootstrap."""
        if param not in self.params:
            raise InputError(f"{self.law} has no parameter {param!r}; it has {', '.join(self.params)}")
        return self.intervals.get(param, (nan, nan))

    def predict(self, t: ArrayLike) -> Floats:
        """Return the norm at step t according to the law."""
        if not self.fitted:
            raise InputError(f"{self.law} was not fitted: {self.reason}")
        steps = np.asarray(t, np.float64)
        if (steps < 0).any():
            raise InputError(f"steps must be >= 0, got {steps.min():g}")
        return LAWS[self.law].predict(steps, self.params)

    def _repr_html_(self) -> str:
        rows = [(param, value, *self.interval(param)) for param, value in self.params.items()]
        rest = [("r²", self.r2), ("held-out error", self.held_out_error), ("weight", self.weight)]
        notes = [("note", note) for note in self.notes]
        found = [*rows, *rest, *notes] if self.fitted else [("not fitted", self.reason)]
        return html_table((self.law, self.formula, "from", "to"), found)


@dataclass(frozen=True, kw_only=True)
class SeriesFit(Mapping[str, LawFit]):
    """All laws fitted to one series, as a mapping from names of laws in a fixed order.

    steps, measured: the cleaned points. autocorrelation: that of the residuals of the closest of all nine laws.
    effective_points: the effective sample size that follows from it; it does not depend on the laws that were chosen.
    weighed_points: the sample size that the weights use: effective_points, but more than the parameters of that law.
    points_needed: the number of points needed to choose a law.
    best_law: the law with the largest weight; None if there are too few points to choose. It is no winner if
    `undecided` is not empty, or if only one law was compared.
    """

    name: str
    laws: dict[str, LawFit]
    steps: tuple[float, ...] = ()
    measured: tuple[float, ...] = ()
    effective_points: float = nan
    weighed_points: float = nan
    autocorrelation: float = nan
    points_needed: int = 0
    best_law: str | None = None
    notes: tuple[str, ...] = ()

    def __getitem__(self, law: str) -> LawFit:
        return self.laws[law]

    def __iter__(self) -> Iterator[str]:
        return iter(self.laws)

    def __len__(self) -> int:
        return len(self.laws)

    @property
    def points(self) -> int:
        return len(self.steps)

    @property
    def weighed(self) -> bool:
        """Whether the laws have weights of evidence."""
        return any(law.weight > 0 for law in self.laws.values())

    @property
    def undecided(self) -> tuple[str, ...]:
        """The laws that the evidence does not separate from the best one, and that one first; () if it is alone."""
        ranked = sorted(self.laws.values(), key=lambda law: law.delta_effective)
        near = tuple(law.law for law in ranked if law.delta_effective <= UNDECIDED)
        return near if self.best_law is not None and len(near) > 1 else ()

    @property
    def best(self) -> LawFit:
        """Return the law with the largest weight of evidence; raise `TooFewPoints` if there is none.

        `undecided` lists the laws that explain the norms as well.
        """
        if self.best_law is None:
            raise TooFewPoints(self.points, self.points_needed, self.effective_points)
        return self.laws[self.best_law]

    def residuals(self, law: str | None = None) -> Floats:
        """Return measured minus fitted values at `steps`, for a law [default: the best one]."""
        chosen = self.best if law is None else self.laws[law]
        return np.asarray(self.measured) - chosen.predict(self.steps)

    def __repr__(self) -> str:
        """Return one line with the best law, or those between which nothing is decided."""
        best = f"best: {self.best_law}, {self.best.formula}" if self.best_law else "no best law"
        if self.undecided:
            best = f"undecided: {', '.join(self.undecided)}"
        return f"SeriesFit({len(self)} laws on {self.points:,} points; {best})"


@dataclass(frozen=True, kw_only=True)
class Fits(Result):
    """Growth laws fitted to one or several series.

    With one series, as from `ng.fit(steps, norms)` and `ng.fit(trace)`, `fits.best` and `fits["sqrt"]` are its laws and
    `fits.only` is the series. With several series, use `fits.series["layer.3"]`.

    matrices: for the norm of a model, the laws of its matrices, if vectors make so much of ‖θ‖² that they hide them;
    else None. `series` has the model. `leading` has what tables, figures and pages show first.
    """

    kind: ClassVar[str] = "fits"

    series: dict[str, SeriesFit]
    matrices: SeriesFit | None = None
    source: str = ""
    parameters: str = ""  # description of the counted parameters, if known
    level: str = "model"  # level of the series; "points" if they are not from a trace
    quantity: str = "norm"
    from_step: float | None = None
    to_step: float | None = None
    bootstrap: int = 0
    confidence: float = 0.95
    seed: int = 0

    @property
    def leading(self) -> "Fits":
        """Return what tables, figures and pages show first: the fits of the matrices if vectors hide them."""
        if self.matrices is None:
            return self
        records = self.records.where(level="part")
        series = {MATRICES: self.matrices}
        return replace(self, series=series, matrices=None, level="part", records=records)

    @property
    def only(self) -> SeriesFit:
        """Return the only series; raise if there are several."""
        if len(self.series) != 1:
            names = ", ".join(map(repr, list(self.series)[:4]))
            raise InputError(
                f"there are {len(self.series)} series; choose one with fits.select(NAME): {names}"
            )
        return next(iter(self.series.values()))

    @property
    def best(self) -> LawFit:
        """Return the law with the largest weight of evidence for the only series; see `SeriesFit.best`."""
        return self.only.best

    def __getitem__(self, law: str) -> LawFit:
        """Return a law of the only series."""
        laws = self.only.laws
        if law not in laws:
            raise InputError(f"unknown law {law!r}; known: {', '.join(laws)}")
        return laws[law]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the laws of the only series."""
        return iter(self.only)

    def select(self, name: str) -> "Fits":
        """Return the fits of one series; printing or plotting them shows all of its laws."""
        if name not in self.series:
            raise InputError(f"no series {name!r}; known: {', '.join(list(self.series)[:20])}")
        records = self.records.where(name=name)
        return replace(self, series={name: self.series[name]}, records=records, matrices=None)

    def __repr__(self) -> str:
        if len(self.series) == 1:
            return f"Fits{repr(self.only).removeprefix('SeriesFit')}"
        return f"Fits({len(self.series):,} series of {visible(self.source)})"


def tabulated(
    run: str, level: str, series: Mapping[str, SeriesFit], layers: Mapping[str, int | None]
) -> Records:
    """Return all numbers of all laws as records: `name` is the series, `role` is the law, `step` is empty."""
    import pyarrow as pa

    blocks = []
    for law in next(iter(series.values())):
        rows = [_numbers(found[law]) for found in series.values()]
        quantities = dict.fromkeys(quantity for row in rows for quantity in row)
        values = {name: np.array([[row.get(name, nan) for row in rows]]) for name in quantities}
        numbers = [layers.get(name) for name in series]
        blocks.append(Block(level, list(series), numbers, [law] * len(series), [0], values))
    table = Records.from_blocks(run, blocks).table
    none = pa.nulls(len(table), pa.int64())
    return Records(table.set_column(table.column_names.index("step"), "step", none))


def _numbers(law: LawFit) -> dict[str, float]:
    ends = {
        f"{param}_{end}": value
        for param, interval in law.intervals.items()
        for end, value in zip(("low", "high"), interval, strict=True)
    }
    return {number: getattr(law, number) for number in NUMBERS} | law.params | ends
