"""What a page is made of. Numbers are float32 but for steps, and long curves are thinned: a page stays small."""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from normgrowth.text import visible

Floats = NDArray[np.float64]
Provenance = Literal["measured", "published", "derived"]
MOST_POINTS = 500  # of a curve; a screen has not many more columns
POINTS = 40_000  # of one chart, beyond which its curves are thinned further
FEWEST_POINTS = 30
FEW_CURVES = 40  # up to here each keeps its own spikes; more of them share their steps


@dataclass(frozen=True)
class Axis:
    label: str
    steps: bool = False  # training steps, which can be seen along √t
    log: bool = False  # to begin with
    ticks: tuple[str, ...] = ()  # words instead of numbers, at 0, 1, 2, …


@dataclass(frozen=True)
class Curve:
    """colour: of a run, the first for the first. shade: of a layer, 0 for the first and 1 for the last."""

    label: str
    x: Any
    y: Any
    run: str = ""
    colour: int = 0
    shade: float | None = None
    dash: int = 0
    dots: bool = False  # no line between
    shown: bool = True  # to begin with
    provenance: Provenance = "measured"
    said: Sequence[str] = ()  # of each point, where its place on an axis says nothing to a reader


@dataclass(frozen=True)
class Chart:
    """alt: what it shows, in words; beside it for those who see it, too."""

    id: str
    title: str
    alt: str
    x: Axis
    y: Axis
    curves: Sequence[Curve]
    marks: Sequence[tuple[float, str]] = ()  # heights worth a line, and what they are


@dataclass(frozen=True)
class Map:
    """A grid of cells: numbers around 0 in two hues, or kinds in a colour each."""

    id: str
    title: str
    alt: str
    x: Axis
    y: Axis
    values: Any  # (x, y); NaN: nothing there. Of kinds: which of them
    texts: Sequence[Sequence[str]]  # (x, y): what a cell says of itself
    full: float = 1.0  # a value whose colour is full
    kinds: Sequence[str] = ()
    over: Sequence[Curve] = ()


@dataclass(frozen=True)
class Column:
    title: str
    cells: Sequence[str]
    values: Sequence[float] | None = None  # to sort by; without, cells are words
    classes: Sequence[str] = ()  # of each cell: a colour that means something


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[Column]


@dataclass(frozen=True)
class Picture:
    """A figure that does not move: svg."""

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


STEPS = Axis("training step", steps=True)


def few(said: Sequence[str], most: int = 3) -> str:
    """Words for a chart: of the first runs only, where there are many."""
    rest = [f"And {len(said) - most} more: see the table."] if len(said) > most else []
    return " ".join([*said[:most], *rest])


def column(title: str, values: Sequence[float], write: Callable[[float], str]) -> Column:
    return Column(title, [write(value) if isfinite(value) else "-" for value in values], list(values))


def words(title: str, cells: Sequence[str], classes: Sequence[str] = ()) -> Column:
    return Column(title, list(cells), classes=classes)


def packed(pieces: Sequence[Chart | Map], points: int = POINTS) -> dict[str, Any]:
    """As the page's script reads them: arrays once, wherever curves share them, and references to them.

    points: of one chart, at the most, but for a few of each curve.
    """
    arrays: dict[tuple[str, bytes], int] = {}

    def reference(values: Any, exact: bool = False) -> int:
        """exact: as float64 where float32 would round, as it does with steps beyond 2^24."""
        narrow = np.ascontiguousarray(values, "<f4")
        wide = exact and not np.array_equal(narrow, values, equal_nan=True)
        kind, raw = ("f8", np.ascontiguousarray(values, "<f8")) if wide else ("f4", narrow)
        return arrays.setdefault((kind, raw.tobytes()), len(arrays))

    charts = {
        piece.id: _chart(piece, reference, points) if isinstance(piece, Chart) else _map(piece, reference)
        for piece in pieces
    }
    return {"charts": charts, "arrays": [[kind, base64.b64encode(raw).decode()] for kind, raw in arrays]}


def _axis(axis: Axis) -> dict[str, Any]:
    return {
        "label": visible(axis.label),
        "steps": axis.steps,
        "log": axis.log,
        "ticks": [visible(tick) for tick in axis.ticks],
    }


def _curves(
    curves: Sequence[Curve], reference: Callable[..., int], points: int = POINTS
) -> list[dict[str, Any]]:
    most = int(np.clip(points // max(len(curves), 1), FEWEST_POINTS, MOST_POINTS))
    packed_curves = []
    for curve in curves:
        x, y = np.asarray(curve.x, float), np.asarray(curve.y, float)
        kept = thinned(x, most, y if len(curves) <= FEW_CURVES else None)
        packed_curves.append(
            {
                "label": visible(curve.label),
                "run": visible(curve.run),
                "x": reference(x[kept], exact=True),
                "y": reference(y[kept]),
                "colour": curve.colour,
                "shade": curve.shade,
                "dash": curve.dash,
                "dots": curve.dots,
                "shown": curve.shown,
                "provenance": curve.provenance,
                **({"said": [visible(curve.said[i]) for i in kept]} if curve.said else {}),
            }
        )
    return packed_curves


def thinned(x: Floats, most: int, y: Floats | None = None) -> NDArray[np.int64]:
    """Which points are kept: first and last, and between them evenly along the points and along √x.

    y: then half of them are the least and the largest of stretches of the curve, so that no spike is lost.
    """
    if len(x) <= most:
        return np.arange(len(x))
    extremes = [] if y is None else _extremes(y, most // 4)
    rest = most - len(extremes)
    by_place = np.linspace(0, len(x) - 1, rest // 2).round().astype(np.int64)
    root = np.sqrt(np.abs(x - x[0]))
    by_root = np.searchsorted(root, np.linspace(0, root[-1], rest - len(by_place))).clip(0, len(x) - 1)
    return np.unique(np.concatenate([by_place, by_root, np.array(extremes, np.int64)]))


def _extremes(y: Floats, stretches: int) -> list[int]:
    bounds = np.linspace(0, len(y), stretches + 1).round().astype(int)
    found = []
    for start, stop in pairwise(bounds.tolist()):
        if np.isfinite(y[start:stop]).any():
            found += [start + int(pick(y[start:stop])) for pick in (np.nanargmin, np.nanargmax)]
    return found


def _chart(chart: Chart, reference: Callable[..., int], points: int) -> dict[str, Any]:
    return {
        "kind": "chart",
        "x": _axis(chart.x),
        "y": _axis(chart.y),
        "curves": _curves(chart.curves, reference, points),
        "marks": [{"y": y, "label": label} for y, label in chart.marks],
    }


def _map(piece: Map, reference: Callable[..., int]) -> dict[str, Any]:
    return {
        "kind": "map",
        "x": _axis(piece.x),
        "y": _axis(piece.y),
        "values": reference(piece.values),
        "texts": [[visible(cell) for cell in row] for row in piece.texts],
        "full": piece.full,
        "kinds": piece.kinds,
        "curves": _curves(piece.over, reference),
    }
