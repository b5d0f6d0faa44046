"""The stages of an optimizer step in causal order, and the measured values of each stage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.records import Records, coded
from normgrowth.schedules import OptimizerGroup
from normgrowth.text import natural_order
from normgrowth.trace.result import Trace

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.float64]

STAGES = (
    "weights_before",
    "gradient",
    "learning_rate",
    "decay_part",
    "gradient_part",
    "step",
    "weights_after",
)
# The inputs of each stage. If they differ, this explains differences of the stage itself.
UPSTREAM: dict[str, tuple[str, ...]] = {
    "weights_before": (),
    "gradient": ("weights_before",),
    "learning_rate": (),
    "decay_part": ("weights_before", "learning_rate"),
    "gradient_part": ("weights_before", "gradient", "learning_rate"),
    "step": ("weights_before", "gradient", "learning_rate", "decay_part", "gradient_part"),
    "weights_after": ("weights_before", "gradient", "learning_rate", "decay_part", "gradient_part", "step"),
}
# Stages of a single step, which only a tracker measures.
TRACKED = ("gradient", "learning_rate", "decay_part", "gradient_part")
LEVELS = ("tensor", "layer", "model")  # runs are compared at the finest common level
UNCHANGED = 1e-9  # relative: rounding of the sums that a norm before a step is computed from
CANCELLED = 1e-13  # relative: a smaller difference of squares is a rounding error, and the weights were 0


@dataclass(frozen=True)
class Item:
    """A tensor, a layer or the model. size: its number of values; 0 if unknown."""

    name: str
    layer: int | None
    role: str | None
    size: int = 0


@dataclass(frozen=True)
class RunValues:
    """The norms of each stage of a run, steps × items; NaN if not measured.

    alignment: cos(step, weights). gradient_alignment: cos(gradient, weights), if recorded.
    infinite: whether the weights contain NaN or infinite values, steps × items.
    """

    steps: NDArray[np.int64]
    items: list[Item]
    values: Mapping[str, Floats]
    alignment: Floats
    infinite: NDArray[np.bool_]
    tracked: bool
    ranks: int
    dtypes: Mapping[str, int]
    gradient_alignment: Floats
    clip_coefficient: Floats  # the factor of gradient clipping at each step; NaN if not recorded
    optimizer: str = ""  # its class
    optimizer_groups: tuple[OptimizerGroup, ...] = ()
    compute_dtypes: tuple[str, ...] = ()  # of the forward passes, other than those of the weights

    def at(self, steps: Sequence[int], places: Sequence[int]) -> "RunValues":
        """Return the given steps and items, in the given order; places must be >= 0."""
        rows = np.searchsorted(self.steps, np.asarray(steps, np.int64))
        chosen = np.ix_(rows, np.asarray(places, np.intp))
        return replace(
            self,
            steps=self.steps[rows],
            items=[self.items[place] for place in places],
            values={stage: values[chosen] for stage, values in self.values.items()},
            alignment=self.alignment[chosen],
            infinite=self.infinite[chosen],
            gradient_alignment=self.gradient_alignment[chosen],
            clip_coefficient=self.clip_coefficient[rows],
        )


def levels_in(trace: Trace) -> list[str]:
    """Return the levels at which a run has norms, finest first."""
    there = trace.records.where(quantity="norm").distinct("level")
    return [level for level in LEVELS if level in there]


def run_values(trace: Trace, level: str) -> RunValues:
    """Return the values of each stage and step of a trace."""
    records = trace.records.where(level=level)
    items = _items(records)
    steps = np.unique(records.where(quantity="norm").table["step"].to_numpy())
    read = _Reader(records, items, steps)
    norm, size = read.grid("norm"), read.grid("step_size")
    values = {"weights_before": _before(norm, read.grid("growth"), steps, trace.tracked)}
    if trace.tracked:
        values |= {
            "gradient": read.grid("gradient_norm"),
            "learning_rate": _rates(trace, read),
            "decay_part": read.grid("decay_step"),
            "gradient_part": read.grid("gradient_step"),
        }
    values |= {"step": size, "weights_after": norm}
    infinite = np.nan_to_num(read.grid("nonfinite")) > 0
    dtypes = trace.counted.dtypes if trace.counted else {}
    return RunValues(
        steps,
        items,
        values,
        read.grid("alignment"),
        infinite,
        trace.tracked,
        trace.ranks,
        dtypes,
        read.grid("gradient_alignment"),
        _of_model(trace, "clip_coefficient", steps),
        trace.optimizer,
        trace.optimizer_groups,
        trace.compute_dtypes,
    )


def _items(records: Records) -> list[Item]:
    """The items in natural order."""
    sizes, norms = (
        records.where(quantity=quantity).table.unify_dictionaries() for quantity in ("numel", "norm")
    )
    known = {row["name"]: row["value_max"] for row in _by(sizes, ["name"], [("value", "max")])}
    found = {
        row["name"]: Item(row["name"], row["layer"], row["role"], int(known.get(row["name"]) or 0))
        for row in _by(norms, ["name", "layer", "role"], [])
    }
    return [found[name] for name in natural_order(found)]


def _by(table: "pa.Table", columns: list[str], values: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return one row per group, in the order of first appearance."""
    return table.group_by(columns, use_threads=False).aggregate(values).to_pylist()


class _Reader:
    """Reads quantities as grids of steps × items. Vectorized, because a trace may have millions of rows."""

    def __init__(self, records: Records, items: Sequence[Item], steps: NDArray[np.int64]) -> None:
        self._records, self.steps = records, steps
        self._place = {item.name: i for i, item in enumerate(items)}

    def grid(self, quantity: str) -> Floats:
        grid = np.full((len(self.steps), len(self._place)), np.nan)
        table = self._records.where(quantity=quantity).compared_with().table
        if not table.num_rows:
            return grid
        words, codes = coded(table["name"])
        column = np.array([self._place.get(word, -1) for word in words], np.intp)[codes]
        step = table["step"].to_numpy()
        row = np.minimum(np.searchsorted(self.steps, step), len(self.steps) - 1)
        known = (column >= 0) & (self.steps[row] == step)
        grid[row[known], column[known]] = table["value"].to_numpy()[known]
        return grid


def _before(norm: Floats, growth: Floats, steps: NDArray[np.int64], tracked: bool) -> Floats:
    """Return norms before each step: √(‖b‖² − growth), or the norm after the previous step if both agree to rounding.

    They differ where something other than the optimizer changed the weights between two steps of a tracker.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        square = norm**2 - growth
        square = np.where(np.abs(square) < CANCELLED * norm**2, 0.0, np.maximum(square, 0.0))
    before = np.sqrt(square)
    follows = np.flatnonzero(np.diff(steps) == 1) + 1 if tracked else np.arange(1, len(steps))
    after, own = norm[follows - 1], before[follows]
    with np.errstate(invalid="ignore"):
        same = np.abs(own - after) <= UNCHANGED * np.maximum(after, norm[follows])
    before[follows] = np.where(same, after, own) if tracked else np.where(np.isnan(own), np.nan, after)
    return before


def _rates(trace: Trace, read: _Reader) -> Floats:
    """Return the learning rate of each item: its own if recorded, else that of the model."""
    rates = read.grid("learning_rate")
    return np.where(np.isnan(rates), _of_model(trace, "learning_rate", read.steps)[:, None], rates)


def _of_model(trace: Trace, quantity: str, steps: NDArray[np.int64]) -> Floats:
    reader = _Reader(trace.records.where(level="model"), [Item("model", None, None)], steps)
    return reader.grid(quantity)[:, 0]
