"""The relative differences of two runs as a grid of tensors × steps, reduced to a size that fits a screen."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normgrowth.compare.result import Comparison

Floats = NDArray[np.float64]
IDENTICAL = 1e-14  # relative difference below which two norms are equal up to their own rounding
FULL = 3.0  # log10: a difference of 1,000 times the noise floor has full color
TITLES = {
    "weights_before": "weights before the step",
    "gradient": "gradient",
    "learning_rate": "learning rate",
    "decay_part": "decay part of the step",
    "gradient_part": "gradient part of the step",
    "step": "step",
    "weights_after": "weights after the step",
}


@dataclass(frozen=True)
class DifferenceGrid:
    """Relative differences, rows of tensors × columns of steps.

    values: NaN where nothing was compared. floors: the noise floor of each column. If several steps share a column, or
    several tensors share a row, the cell has the largest difference.
    """

    stage: str
    names: list[str]
    steps: list[int]
    values: Floats
    floors: Floats

    @property
    def over_floor(self) -> Floats:
        """log10 of difference / noise floor; rounding does not explain values above 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log10(np.maximum(self.values, IDENTICAL) / self.floors)

    @property
    def identical(self) -> NDArray[np.bool_]:
        return self.values < IDENTICAL


def difference_grid(
    result: Comparison, stage: str | None = None, *, most_rows: int, most_columns: int
) -> DifferenceGrid | None:
    """The differences of a stage (default: the stage of the earliest difference); None if it was not compared."""
    stage = stage or result.main_stage
    if stage not in result.alignment.stages:
        return None
    grid = result.matrix(stage, by=result.alignment.level, run="difference")
    floors = result.matrix(stage, by="model", run="floor").values[:, 0]
    names, values = grid.names, grid.values.T
    if len(names) > most_rows:
        names, values = _by_layer(names, grid.layers, values)
    if len(names) > most_rows:
        names, values = _thinned(names, values, most_rows)
    columns = np.array_split(np.arange(len(grid.steps)), min(len(grid.steps), most_columns))
    return DifferenceGrid(
        stage,
        names,
        [int(grid.steps[part[-1]]) for part in columns],
        np.stack([_largest(values[:, part]) for part in columns], axis=1),
        np.array([floors[part].max() for part in columns]),
    )


def _by_layer(names: list[str], layers: list[int | None], values: Floats) -> tuple[list[str], Floats]:
    """A row for each layer, and one for the tensors outside of layers."""
    groups: dict[int | None, list[int]] = {}
    for i, layer in enumerate(layers):
        groups.setdefault(layer, []).append(i)
    if len(groups) == 1:
        return names, values
    titles = ["outside of layers" if layer is None else f"layer {layer}" for layer in groups]
    return titles, np.stack([_largest(values[rows].T) for rows in groups.values()])


def _thinned(names: list[str], values: Floats, most: int) -> tuple[list[str], Floats]:
    """Merge neighboring rows into `most` rows, each named after its first tensor."""
    parts = np.array_split(np.arange(len(names)), most)
    titles = [f"{names[part[0]]} and {len(part) - 1} more" for part in parts]
    return titles, np.stack([_largest(values[part].T) for part in parts])


def _largest(values: Floats) -> Floats:
    """The largest value of each row, without NaN; NaN if a row has nothing else."""
    return np.fmax.reduce(values, axis=1)
