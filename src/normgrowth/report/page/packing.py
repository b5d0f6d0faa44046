"""Charts as JSON for the script of the page.

To keep the page small, numbers are float32, except for steps that float32 would round, and long curves are thinned.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normgrowth.report.page.pieces import Chart, ChartAxis, ChartCurve, Floats, Map
from normgrowth.text import visible

MOST_POINTS = 500  # per curve: about the width of a screen
POINTS = 40_000  # per chart; curves of larger charts are thinned further
FEWEST_POINTS = 30
FEW_CURVES = 40  # with more curves, thinning ignores the values and may lose spikes


@dataclass
class Arrays:
    """Numbers that charts refer to; equal arrays are stored once."""

    places: dict[tuple[str, bytes], int] = field(default_factory=dict)

    def add(self, values: ArrayLike, *, exact: bool = False) -> int:
        """Add an array and return its index. exact: use float64 if float32 would round, as for steps beyond 2^24."""
        narrow = np.ascontiguousarray(values, "<f4")
        wide = exact and not np.array_equal(narrow, np.asarray(values), equal_nan=True)
        kind, raw = ("f8", np.ascontiguousarray(values, "<f8")) if wide else ("f4", narrow)
        return self.places.setdefault((kind, raw.tobytes()), len(self.places))

    def encoded(self) -> list[tuple[str, str]]:
        """The number type and the base64 text of each array."""
        return [(kind, base64.b64encode(raw).decode()) for kind, raw in self.places]


def packed(pieces: Sequence[Chart | Map], runs: Sequence[str] = (), points: int = POINTS) -> str:
    """All charts by the id of their figure, the arrays, and the labels of runs that can be switched off, as JSON.

    points: the maximum per chart; each curve keeps at least FEWEST_POINTS.
    """
    import msgspec

    arrays = Arrays()
    charts = {piece.id: _packed(piece, arrays, points) for piece in pieces}
    return msgspec.json.encode(
        {"charts": charts, "arrays": arrays.encoded(), "runs": [visible(run) for run in runs]}
    ).decode()


def _packed(piece: Chart | Map, arrays: Arrays, points: int) -> Chart | Map:
    """The piece with places of arrays instead of numbers, and without what the HTML has."""
    plain = {"id": "", "title": "", "alt": "", "x": _axis(piece.x), "y": _axis(piece.y)}
    if isinstance(piece, Chart):
        return replace(piece, **plain, curves=_curves(piece.curves, arrays, points))
    texts = [[visible(cell) for cell in row] for row in piece.texts]
    values, curves = arrays.add(piece.values), _curves(piece.curves, arrays, POINTS)
    return replace(piece, **plain, values=values, texts=texts, curves=curves)


def _axis(axis: ChartAxis) -> ChartAxis:
    return replace(axis, label=visible(axis.label), ticks=tuple(map(visible, axis.ticks)))


def _curves(curves: Sequence[ChartCurve], arrays: Arrays, points: int) -> list[ChartCurve]:
    most = int(np.clip(points // max(len(curves), 1), FEWEST_POINTS, MOST_POINTS))
    return [_curve(curve, arrays, most, spikes=len(curves) <= FEW_CURVES) for curve in curves]


def _curve(curve: ChartCurve, arrays: Arrays, most: int, *, spikes: bool) -> ChartCurve:
    x, y = np.asarray(curve.x, float), np.asarray(curve.y, float)
    kept = thinned(x, most, y if spikes else None)
    return replace(
        curve,
        label=visible(curve.label),
        run=visible(curve.run),
        x=arrays.add(x[kept], exact=True),
        y=arrays.add(y[kept]),
        said=[visible(curve.said[i]) for i in kept] if curve.said else None,
        note=visible(curve.note),
    )


def thinned(x: Floats, most: int, y: Floats | None = None) -> NDArray[np.int64]:
    """The indices of the points to keep: the first, the last, and points spaced evenly by index and by √x.

    y: if given, half of the points are the minima and maxima of segments of the curve, so that no spike is lost.
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
