"""The grid of a sweep: two settings of `train`, every value of one with every value of the other; and their corpora."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from math import log10
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np

from normgrowth.errors import InputError
from normgrowth.lab.build import corpus_of, total_steps
from normgrowth.lab.cells.edge_search import Cell
from normgrowth.lab.data.corpus import Corpus
from normgrowth.lab.data.formal_languages import LANGUAGES
from normgrowth.lab.settings import Settings

MOST_CELLS = 100_000  # more are a slip of the hand
KINDS = {field.name: field.type for field in fields(Settings) if field.name != "corpus"}
WORDS = ((bool, "neither true nor false"), (float, "no number"), (int, "no whole number"), (str, "no word"))


@dataclass(frozen=True)
class Axis:
    """A setting of `train` and the values that it takes, ascending where they are numbers."""

    setting: str
    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if self.setting not in KINDS:
            raise InputError(f"{self.setting} is no setting of train")
        if not self.values:
            raise InputError(f"{self.setting}: there is no value to sweep over")
        object.__setattr__(self, "values", tuple(_typed(self.setting, value) for value in self.values))
        if len(set(self.values)) < len(self.values):
            raise InputError(f"{self.setting}: a value comes twice")
        if self.numbers and list(self.values) != sorted(self.values):
            object.__setattr__(self, "values", tuple(sorted(self.values)))

    @property
    def numbers(self) -> bool:
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)

    @staticmethod
    def spaced(setting: str, low: float, high: float, count: int) -> "Axis":
        """On a logarithmic scale. Rounded, so that a finer grid has the coarse one's values to the bit.

        Of a setting that is a whole number, such as layers: the nearest ones, each once.
        """
        if not (0 < low < high < float("inf")):
            raise InputError(
                f"{setting}: a logarithmic grid goes from a number above 0 to a larger one, not from {low:g} to "
                f"{high:g}; a list of values (0,0.01,0.1) may hold 0"
            )
        if not 2 <= count <= MOST_CELLS:
            raise InputError(
                f"{setting}: a grid has at least 2 values and at most {MOST_CELLS:,}, not {count:,}"
            )
        exponents = np.linspace(log10(low), log10(high), count)
        values = [float(f"{10.0**e:.6g}") for e in exponents.tolist()]
        if int in _kinds(setting):
            values = list(dict.fromkeys(map(round, values)))
        return Axis(setting, tuple(values))

    def name(self, i: int) -> str:
        value = self.values[i]
        short = f"{value:g}" if isinstance(value, float) else str(value)
        return f"{self.setting}={short if not isinstance(value, float) or float(short) == value else value}"


def _kinds(setting: str) -> tuple[Any, ...]:
    kind = KINDS.get(setting)
    return (str,) if get_origin(kind) is Literal else get_args(kind) or (kind,)


def _typed(setting: str, value: Any) -> Any:
    """The value as the setting has it: 1 and 1.0 are one learning rate, and one cell."""
    kinds = _kinds(setting)
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    if type(value) in kinds:
        return value
    if float in kinds and number:
        return float(value)
    if number and float(value).is_integer() and (int in kinds or str in kinds):
        return int(value) if int in kinds else str(int(value))  # as in layers=2, track=10
    [wanted] = [word for kind, word in WORDS if kind in kinds]
    raise InputError(f"{setting}: {value!r} is {wanted}")


LEARNING_RATE = Axis.spaced("lr", 1e-5, 1e-1, 20)  # as in the authors' code, both
WEIGHT_DECAY = Axis.spaced("weight_decay", 1e-5, 1e-1, 20)


class Corpora:
    """The corpus of every cell: one for all, unless a setting of the grid is one that a corpus is made with."""

    MADE_WITH = ("positions", "min_count", "longest")

    def __init__(
        self, cells: Iterable[Settings], data: str | Path | None, given: Corpus | None = None
    ) -> None:
        self._given, self._known = given, {}
        for cell in cells:
            if self._key(cell) not in self._known:
                self._known[self._key(cell)] = given or corpus_of(cell, data)
        self._fingerprints = {key: corpus.fingerprint for key, corpus in self._known.items()}

    def _key(self, settings: Settings) -> tuple[Any, ...]:
        if self._given is not None:
            return ()
        drawn = settings.seed if settings.corpus in LANGUAGES else None  # the words of a formal language are
        return drawn, *(getattr(settings, name) for name in self.MADE_WITH)

    def of(self, settings: Settings) -> Corpus:
        return self._known[self._key(settings)]

    def fingerprint(self, settings: Settings) -> str:
        return self._fingerprints[self._key(settings)]

    def __len__(self) -> int:
        return len(self._known)

    @property
    def notes(self) -> list[str]:
        """Those of each, said once."""
        several = (
            [f"{len(self)} corpora, as the settings ask for; described is the first"] if len(self) > 1 else []
        )
        return several + list(dict.fromkeys(note for corpus in self._known.values() for note in corpus.notes))


class Grid:
    """The settings of every cell, and its corpus."""

    def __init__(
        self,
        settings: Settings,
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
                f"a grid has at most {MOST_CELLS:,} cells, not {self.shape[0]:,} x {self.shape[1]:,}"
            )
        for axis in (x, y):
            if corpus is not None and axis.setting in Corpora.MADE_WITH:
                raise InputError(f"{axis.setting}: it would make another corpus than the one that is given")
        self.cells: dict[Cell, Settings] = {}
        for i, left in enumerate(x.values):
            for j, right in enumerate(y.values):
                with _naming(self, (i, j)):
                    self.cells[i, j] = replace(settings, **{x.setting: left, y.setting: right})
        self.corpora = Corpora(self.cells.values(), data, corpus)
        for cell, own in self.cells.items():
            with _naming(self, cell):  # what is wrong with a schedule is said before any cell is trained
                own.rate(total_steps(own, self.corpora.of(own)))

    def name(self, cell: Cell) -> str:
        return f"{self.x.name(cell[0])}, {self.y.name(cell[1])}"


class _naming:
    """What is wrong with a cell is said with its name."""

    def __init__(self, grid: Grid, cell: Cell) -> None:
        self.grid, self.cell = grid, cell

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InputError):
            raise InputError(f"{self.grid.name(self.cell)}: {error}") from error
