"""The grid of a sweep: all combinations of the values of two settings of `train`, and the corpora of the cells."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from normgrowth.errors import InputError
from normgrowth.lab.build import corpus_of, total_steps
from normgrowth.lab.cells.axis import MOST_CELLS, Axis
from normgrowth.lab.cells.edge_search import Cell
from normgrowth.lab.data.corpus import Corpus
from normgrowth.lab.settings import TrainSettings
from normgrowth.network.inputs.formal_languages import LANGUAGES


class Corpora:
    """The corpus of every cell. All cells share one corpus, unless a setting of the grid changes the corpus."""

    MADE_WITH = ("positions", "min_count", "longest")

    def __init__(
        self, cells: Iterable[TrainSettings], data: str | Path | None, given: Corpus | None = None
    ) -> None:
        self._given, self._known = given, {}
        for cell in cells:
            if self._key(cell) not in self._known:
                self._known[self._key(cell)] = given or corpus_of(cell, data)
        self._fingerprints = {key: corpus.fingerprint for key, corpus in self._known.items()}

    def _key(self, settings: TrainSettings) -> tuple[Any, ...]:
        if self._given is not None:
            return ()
        drawn = settings.seed if settings.corpus in LANGUAGES else None  # its words are random
        return drawn, *(getattr(settings, name) for name in self.MADE_WITH)

    def of(self, settings: TrainSettings) -> Corpus:
        return self._known[self._key(settings)]

    def fingerprint(self, settings: TrainSettings) -> str:
        return self._fingerprints[self._key(settings)]

    def __len__(self) -> int:
        return len(self._known)

    @property
    def notes(self) -> list[str]:
        """Return the notes of all corpora, without repetitions."""
        several = [f"the cells use {len(self)} corpora; the first one is described"] if len(self) > 1 else []
        return several + list(dict.fromkeys(note for corpus in self._known.values() for note in corpus.notes))


class Grid:
    """The settings of every cell, and its corpus."""

    def __init__(
        self,
        settings: TrainSettings,
        x: Axis,
        y: Axis,
        *,
        data: str | Path | None = None,
        corpus: Corpus | None = None,
    ) -> None:
        self.settings, self.x, self.y = settings, x, y
        self.shape = len(x.values), len(y.values)
        if self.shape[0] * self.shape[1] > MOST_CELLS:
            raise InputError(
                f"a grid can have at most {MOST_CELLS:,} cells, got {self.shape[0]:,} x {self.shape[1]:,}"
            )
        for axis in (x, y):
            if corpus is not None and axis.setting in Corpora.MADE_WITH:
                raise InputError(
                    f"cannot sweep over {axis.setting}: it changes the corpus, but a corpus is given"
                )
        self.cells: dict[Cell, TrainSettings] = {}
        for i, left in enumerate(x.values):
            for j, right in enumerate(y.values):
                with _naming(self, (i, j)):
                    self.cells[i, j] = replace(settings, **{x.setting: left, y.setting: right})
        self.corpora = Corpora(self.cells.values(), data, corpus)
        for cell, own in self.cells.items():
            with _naming(self, cell):  # raises errors of the schedule before any cell is trained
                own.rate(total_steps(own, self.corpora.of(own)))

    def name(self, cell: Cell) -> str:
        return f"{self.x.name(cell[0])}, {self.y.name(cell[1])}"


@contextmanager
def _naming(grid: Grid, cell: Cell) -> Iterator[None]:
    """Add the name of the cell to errors."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{grid.name(cell)}: {error}") from error
