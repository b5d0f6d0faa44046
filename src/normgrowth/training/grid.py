"""The grid of a sweep: two settings of `train`, and every value of one with every value of the other."""

from dataclasses import dataclass, fields, replace
from math import log10
from typing import Any

import numpy as np

from normgrowth.errors import InputError
from normgrowth.training.boundary import Cell
from normgrowth.training.settings import Settings


@dataclass(frozen=True)
class Axis:
    """A setting of `train` and the values that it takes, ascending where they are numbers."""

    setting: str
    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if self.setting not in {field.name for field in fields(Settings)} - {"corpus"}:
            raise InputError(f"{self.setting} is no setting of train")
        if not self.values:
            raise InputError(f"{self.setting}: there is no value to sweep over")
        if len(set(self.values)) < len(self.values):
            raise InputError(f"{self.setting}: a value comes twice")
        if self.numbers and list(self.values) != sorted(self.values):
            object.__setattr__(self, "values", tuple(sorted(self.values)))

    @property
    def numbers(self) -> bool:
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)

    @staticmethod
    def spaced(setting: str, low: float, high: float, count: int) -> "Axis":
        """On a logarithmic scale. Rounded, so that a finer grid has the coarse one's values to the bit."""
        if not (0 < low < high < float("inf")):
            raise InputError(
                f"{setting}: a logarithmic grid goes from a number above 0 to a larger one, not from {low:g} to "
                f"{high:g}; a list of values (0,0.01,0.1) may hold 0"
            )
        if count < 2:
            raise InputError(f"{setting}: a grid has at least 2 values, not {count}")
        exponents = np.linspace(log10(low), log10(high), count)
        return Axis(setting, tuple(float(f"{10.0**e:.6g}") for e in exponents.tolist()))

    def name(self, i: int) -> str:
        value = self.values[i]
        return f"{self.setting}={value:g}" if isinstance(value, float) else f"{self.setting}={value}"


LEARNING_RATE = Axis.spaced("lr", 1e-5, 1e-1, 20)  # as in the authors' code, both
WEIGHT_DECAY = Axis.spaced("weight_decay", 1e-5, 1e-1, 20)


class Grid:
    """The settings of every cell."""

    def __init__(self, settings: Settings, x: Axis, y: Axis) -> None:
        self.settings, self.x, self.y = settings, x, y
        self.shape = len(x.values), len(y.values)
        self.cells: dict[Cell, Settings] = {}
        for i, left in enumerate(x.values):
            for j, right in enumerate(y.values):
                try:
                    self.cells[i, j] = replace(settings, **{x.setting: left, y.setting: right})
                except InputError as error:
                    raise InputError(f"{self.name((i, j))}: {error}") from error

    def name(self, cell: Cell) -> str:
        return f"{self.x.name(cell[0])}, {self.y.name(cell[1])}"
