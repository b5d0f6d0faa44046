"""The published numbers of T5, as columns; `data/README.md` says where they come from.

    published("t5_norm")["norm"]          Figure 1: published
    published("t5_steps")["alignment"]    Figure 5: derived from the norms and cosines of Figure 1

Derived numbers use the same moments as a trace: norms and a cosine determine Σr², Σr·δ and Σδ² of each interval, and
`quantities` defines all other quantities.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import InputError
from normgrowth.moments.moments import BUDGET, Moments, Pair, accumulated, quantities

Column = NDArray[Any]  # float64; int64 for step, layer, interval and epoch; text for WORDS

PAPER = "Merrill et al. 2021 (arXiv:2010.09697v5)"
# name -> figure of the paper, and for derived tables the files that they are derived from
TABLES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "t5_norm": ("Figure 1, top left", ()),
    "t5_norm_by_layer": ("Figure 1, top right", ()),
    "t5_direction": ("Figure 1, bottom left", ()),
    "t5_direction_by_layer": ("Figure 1, bottom right", ()),
    "t5_steps": ("Figure 5", ("t5_norm", "t5_direction")),
    "t5_steps_by_layer": ("Figure 5, by layer", ("t5_norm_by_layer", "t5_direction_by_layer")),
    "saturation_pretrained": ("Figure 2, right", ()),
    "saturation_random_init": ("Figure 2, left", ()),
    "attention_positions": ("Figure 3, and the same for WikiText-2", ()),
    "scaling_curves": ("Figure 4", ()),
    "lm_runs": ("plots published with the authors' code, in no figure", ()),
}
WORDS = ("model", "norm_position", "bias", "data", "encoder", "run", "metric")  # columns of text
_DERIVED = ("step_size", "relative_step", "alignment", "angle", *BUDGET)


@dataclass(frozen=True)
class Published(Mapping[str, Column]):
    """A table with columns by name. `kind` is "published" or "derived"; normgrowth measured none of these numbers."""

    name: str
    kind: str
    figure: str
    columns: dict[str, Column]

    @property
    def source(self) -> str:
        """The source, for captions and for the last line of a table."""
        return f"{self.kind}{' from Figure 1' if self.kind == 'derived' else ''}: {PAPER}, {self.figure}"

    def __getitem__(self, column: str) -> Column:
        return self.columns[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def layer(self, number: int) -> dict[str, Column]:
        """The rows of one layer, counted from 1 as the paper does."""
        if "layer" not in self.columns or number not in self.columns["layer"]:
            raise InputError(f"{self.name} has no layer {number}")
        rows = self.columns["layer"] == number
        return {name: column[rows] for name, column in self.columns.items() if name != "layer"}


def published(name: str) -> Published:
    """One table of the paper; `TABLES` lists the names.

    Derived tables have a row for each interval, under its later step: `interval` (its number of
    optimizer steps), `step_size` ‖δ‖, `alignment` cos(δ, θ) with the earlier weights, `relative_step`,
    `angle`, the terms of the growth budget and the budget summed so far.
    """
    if name not in TABLES:
        raise InputError(f"unknown published table {name!r}; known: {', '.join(TABLES)}")
    figure, parts = TABLES[name]
    if not parts:
        return Published(name, "published", figure, _read(name))
    norm, direction = (_read(part) for part in parts)
    if "layer" not in norm:
        return Published(name, "derived", figure, _steps(norm, direction))
    tables = []
    for number in np.unique(norm["layer"]):
        own = [{k: c[t["layer"] == number] for k, c in t.items()} for t in (norm, direction)]
        rows = _steps(*own)
        tables.append({"layer": np.full(len(rows["step"]), number), **rows})
    columns = {column: np.concatenate([table[column] for table in tables]) for column in tables[0]}
    return Published(name, "derived", figure, columns)


def _read(name: str) -> dict[str, Column]:
    text = (files("normgrowth.paper.published") / "data" / f"{name}.csv").read_text(encoding="utf-8")
    header, *rows = csv.reader(text.splitlines())
    whole = ("step", "layer", "epoch")
    return {
        column: np.array(cells, np.str_ if column in WORDS else np.int64 if column in whole else np.float64)
        for column, cells in zip(header, zip(*rows, strict=True), strict=True)
    }


def _steps(norm: Mapping[str, Column], direction: Mapping[str, Column]) -> dict[str, Column]:
    size, cosine = norm["norm"], direction["cosine_to_previous"]
    before, after = size[:-1], size[1:]
    dot = before * after * cosine
    pair = Pair(before**2, dot - before**2, before**2 + after**2 - 2 * dot)
    return derived(norm["step"], size**2, pair)


def derived(step: Column, square: Column, pair: Pair) -> dict[str, Column]:
    """Columns by interval, from ‖θ‖² of each checkpoint and the sums of each interval."""
    none = np.zeros(len(step) - 1, np.int64)
    found = quantities(Moments(none, square[1:], np.sqrt(square[1:]), none, {"previous": pair}))
    return {
        "step": step[1:],
        "interval": np.diff(step),
        **{name: found[name] for name in _DERIVED},
        **accumulated(*(found[name] for name in BUDGET)),
    }
