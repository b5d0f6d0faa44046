"""The parts of a page: sections with charts, maps, tables and pictures."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from normgrowth.report.table_columns import Table

Floats = NDArray[np.float64]
Provenance = Literal["measured", "published", "derived"]


@dataclass(frozen=True)
class ChartAxis:
    label: str
    steps: bool = False  # the axis shows training steps: the reader can switch to √t
    log: bool = False  # logarithmic initially; the reader can switch
    ticks: tuple[str, ...] = ()  # labels at 0, 1, 2, ... instead of numbers


@dataclass(frozen=True)
class ChartCurve:
    """A curve of a chart.

    color: the index of its run or role. shade: of its layer, from 0 for the first to 1 for the last.
    """

    label: str
    x: Any
    y: Any
    run: str = ""
    color: int = 0
    shade: float | None = None
    dash: int = 0
    dots: bool = False  # points without a line
    shown: bool = True  # initially; the reader can switch
    provenance: Provenance = "measured"
    said: Sequence[str] | None = None  # the tooltip of each point (default: its coordinates)
    note: str = ""  # why the curve is named above the chart, such as "grew most, ×1.04"


@dataclass(frozen=True)
class Mark:
    """A horizontal line with a label."""

    y: float
    label: str


@dataclass(frozen=True)
class Chart:
    """A chart of curves. alt: a description, also printed below the chart."""

    id: str
    title: str
    alt: str
    x: ChartAxis
    y: ChartAxis
    curves: Sequence[ChartCurve]
    marks: Sequence[Mark] = ()


@dataclass(frozen=True)
class Map:
    """A grid of cells: positive and negative numbers in two hues, or one color per kind.

    values: by x and y; NaN for empty cells; indices of kinds if there are kinds. texts: the tooltip of each cell.
    full: the absolute value with full color. curves: drawn over the cells.
    """

    id: str
    title: str
    alt: str
    x: ChartAxis
    y: ChartAxis
    values: Any
    texts: Sequence[Sequence[str]]
    full: float = 1.0
    kinds: Sequence[str] = ()
    curves: Sequence[ChartCurve] = ()


@dataclass(frozen=True)
class Picture:
    """A static figure, as SVG."""

    id: str
    title: str
    alt: str
    svg: bytes


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    sentences: Sequence[str] = ()
    items: Sequence[Chart | Map | Table | Picture] = ()
    notes: Sequence[str] = field(default=())


@dataclass(frozen=True)
class SummaryRow:
    """A row of the table at the top of the page. kind: the command that made the result. found: its main number."""

    result: str
    kind: str
    steps: str = ""
    norm: str = ""
    factor: float = nan
    by_steps: float = nan  # share of the growth
    most: str = ""
    law: str = ""
    found: str = ""


STEPS = ChartAxis("training step", steps=True)


def few(said: Sequence[str], most: int = 3) -> str:
    """The first sentences as one paragraph, and the number of further sentences."""
    rest = [f"And {len(said) - most} more: see the table."] if len(said) > most else []
    return " ".join([*said[:most], *rest])
