"""The content of a page: labeled results, and their runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

from normgrowth.checkpoints.parameters.selection import parameters_text
from normgrowth.errors import InputError
from normgrowth.fit import fit
from normgrowth.fit.result import SeriesFit
from normgrowth.fit.vector_share import layers_level
from normgrowth.lab.run import Run
from normgrowth.network.saturation.result import Saturation
from normgrowth.records import Records
from normgrowth.report.grids import Grids
from normgrowth.report.page.pieces import ChartCurve, Picture, Provenance
from normgrowth.results import Result
from normgrowth.text import visible
from normgrowth.trace.result import Trace

R = TypeVar("R", bound=Result)
COLORS = 6  # further runs repeat the colors with other dashes
Measured = Trace | Run | Saturation  # results with values over training steps


@dataclass(frozen=True)
class PageEntry(Generic[R]):
    """A result on a page, with a unique label."""

    label: str
    result: R


@dataclass(frozen=True)
class ShownRun:
    """One run of a result.

    color: its index on the page. alone: whether the page has no other run. fits: laws of model, parts and layers.
    """

    label: str
    result: Measured
    color: int = 0
    alone: bool = True
    fits: Mapping[str, SeriesFit] = field(default_factory=dict)

    @property
    def records(self) -> Records:
        return self.result.records

    @cached_property
    def grids(self) -> Grids:
        return Grids(self.result)

    @property
    def provenance(self) -> Provenance:
        return "published" if isinstance(self.result, Trace) and self.result.published else "measured"

    @property
    def parameters(self) -> str:
        """Which parameters its norms count; "" if unknown."""
        selection = self.result.selection
        return parameters_text(selection, self.result.counted) if selection else ""

    @property
    def prefix(self) -> str:
        """What the labels of curves begin with: the run, if the page has several."""
        return "" if self.alone else f"{self.label}: "

    def curve(self, label: str, x: Any, y: Any, **look: Any) -> ChartCurve:
        """A curve of this run, in its color."""
        look = {"color": self.color, "provenance": self.provenance, "dash": self.color // COLORS} | look
        return ChartCurve(label, x, y, self.label, **look)

    def curves(
        self, quantity: str, label: str, *, reference: str | None = None, **look: Any
    ) -> list[ChartCurve]:
        """The curve of a quantity of the model; none if it was not measured."""
        steps, values = self.grids.model(quantity, reference)
        return [self.curve(label, steps, values, **look)] if len(steps) else []

    def grows(self) -> bool:
        return bool(self.grids.steps)


@dataclass(frozen=True)
class Content:
    """Everything that a page shows. pictures: the figures of a reproduction."""

    entries: Sequence[PageEntry]
    runs: Sequence[ShownRun] = ()
    pictures: Sequence[Picture] = ()

    def of(self, kind: type[R]) -> list[PageEntry[R]]:
        return [entry for entry in self.entries if isinstance(entry.result, kind)]

    def results(self, kind: type[R]) -> list[R]:
        return [entry.result for entry in self.of(kind)]


def content_of(
    entries: Sequence[PageEntry], *, fitted: bool = True, pictures: Sequence[Picture] = ()
) -> Content:
    """The results with their runs. fitted: fit growth laws to each run."""
    runs: list[ShownRun] = []
    for entry in entries:
        if isinstance(entry.result, Trace | Run | Saturation):
            for name, result in _runs(entry.result):
                run = ShownRun(_free(runs, name, entry.label), result, len(runs))
                grown = fitted and run.grows() and len(run.grids.steps) > 1
                runs.append(replace(run, fits=growth_laws(run.records)) if grown else run)
    return Content(entries, [replace(run, alone=len(runs) == 1) for run in runs], pictures)


def _runs(result: Measured) -> list[tuple[str, Measured]]:
    """The runs that have norms, or values at several steps."""
    found = []
    for name in result.records.distinct("run"):
        rows = result.records.where(run=name)
        model = rows.where(level="model")
        if len(model.where(quantity="norm")) or len(model.distinct("step")) > 1:
            found.append((name, replace(result, records=rows)))
    return found


def _free(runs: Sequence[ShownRun], name: str, folder: str) -> str:
    """A unique label: the name of the run, with its folder if another run has the same name."""
    taken = {one.label for one in runs}
    for label in (name, f"{name} ({folder})"):
        if label not in taken:
            return label
    return f"{name} ({folder}, {len(taken)})"


def growth_laws(records: Records) -> dict[str, SeriesFit]:
    """Growth laws of the norms of the model, its parts and its layers (their matrices, if these lead), by name."""
    found: dict[str, SeriesFit] = {}
    for level in ("model", "part", layers_level(records)):
        try:
            found |= fit(records, level=level, bootstrap=0).series
        except InputError:
            continue
    return found


def labeled(entries: Sequence[PageEntry[R]], sentences: Callable[[R], Sequence[str]]) -> list[str]:
    """The sentences on each result, with its label if there are several."""
    said = [(visible(entry.label), visible(text)) for entry in entries for text in sentences(entry.result)]
    return [f"{label}: {text}" if len(entries) > 1 else text for label, text in said]
