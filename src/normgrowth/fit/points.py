"""Read points from CSV files, validate and clean them."""

import csv
from io import StringIO
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normgrowth.errors import InputError
from normgrowth.fit.laws import Floats

# Within these bounds, a squared norm divided by the tenth power of a step neither overflows nor underflows.
_SMALL, _LARGE, _NEAR, _FAR = 1e-60, 1e60, 1e-15, 1e15
SERIES = ("run", "level", "name", "role", "layer")  # columns of a CSV file that identify a series


def clean(steps: ArrayLike, norms: ArrayLike) -> tuple[Floats, Floats, tuple[str, ...]]:
    """Return finite points, one per step and sorted, and notes on the changes.

    Norms at the same step are averaged, because a restarted run logs some steps twice. A note reports how much
    they differ, because two runs in one file look the same.
    """
    t, y = real_numbers(steps, norms)
    notes = []
    finite = np.isfinite(t) & np.isfinite(y)
    if not finite.all():
        notes.append(f"{points(int((~finite).sum()))} dropped: step or norm is not finite")
    t, y = t[finite], y[finite]
    _check(t, y)
    y = np.where(y < 1e-30 * y.max(initial=0.0), 0.0, y)  # indistinguishable from 0 in a sum of squares
    order = np.lexsort((y, t))
    t, y = t[order], y[order]
    first = np.flatnonzero(np.diff(t, prepend=-1.0) > 0)
    if len(first) < len(t):
        sizes = np.diff(np.append(first, len(t)))
        spread = (np.maximum.reduceat(y, first) - np.minimum.reduceat(y, first)).max()
        twice = t[first][sizes > 1]
        notes.append(
            f"{len(twice)} step{'s occur' if len(twice) > 1 else ' occurs'} more than once (step {twice[0]:g}): "
            f"norms of one step are averaged; they differ by at most {spread:.3g}"
        )
        t, y = t[first], np.add.reduceat(y, first) / sizes
    if copies := _copies(t, y):
        notes.append(copies)
    return t, y, tuple(notes)


def real_numbers(steps: ArrayLike, norms: ArrayLike) -> tuple[Floats, Floats]:
    """Return two float arrays of the same length; masked values become NaN."""
    try:
        rows = [np.ma.asarray(row) for row in (steps, norms)]
        if any(map(np.iscomplexobj, rows)):
            raise TypeError("some are complex")
        t, y = (np.ma.filled(row.astype(np.float64), np.nan) for row in rows)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a torch tensor with gradients
        raise InputError(f"steps and norms must be real numbers: {error}") from error
    if t.ndim != 1 or t.shape != y.shape:
        shapes = " and ".join("×".join(map(str, a.shape)) or "a single number" for a in (t, y))
        raise InputError(f"steps and norms must be one-dimensional and of the same length, got {shapes}")
    return t, y


def _copies(t: Floats, y: Floats) -> str:
    """Return a note if norms repeat exactly while others change: a checkpoint was probably saved twice."""
    later, first = _repeated(y)
    if not len(later):
        return ""
    again, step = t[later[0]], t[first[0]]
    return (
        f"{points(len(later))} repeat{'s' if len(later) == 1 else ''} the norm of another step exactly "
        f"(step {again:g} repeats step {step:g}); copies of checkpoints are fitted as separate points, but do not "
        "count as points needed to choose a law"
    )


def count_copies(y: Floats) -> int:
    """Return the number of norms that repeat another one exactly, while others change."""
    return len(_repeated(y)[0])


def _repeated(y: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the positions of norms that repeat an earlier one exactly, and the positions of the earlier ones."""
    _, first, place = np.unique(y, return_index=True, return_inverse=True)
    later = np.flatnonzero(first[place] != np.arange(len(y)))
    return (later, first[place[later]]) if len(first) > 1 else (later[:0], later[:0])


def _check(t: Floats, y: Floats) -> None:
    if not len(t):
        return
    if t.min() < 0:
        raise InputError(f"steps must be >= 0, got {t.min():g}")
    if t.any() and not _NEAR < t.max() < _FAR:
        raise InputError(f"the largest step must be between {_NEAR:g} and {_FAR:g}, got {t.max():g}")
    if y.min() < 0:
        raise InputError(f"norms must be >= 0, got {y.min():g} at step {t[y.argmin()]:g}")
    if y.any() and not _SMALL < y.max() < _LARGE:
        raise InputError(f"the largest norm must be between {_SMALL:g} and {_LARGE:g}, got {y.max():g}")


def points(count: int) -> str:
    return f"{count} point{'' if count == 1 else 's'}"


def read_csv(path: Path | str, quantity: str = "norm") -> dict[str, tuple[Floats, Floats]]:
    """Return steps and values of each series in a CSV file with the columns step and norm (or another quantity).

    The columns run, level, name, role and layer identify a series ("layer 3"); other columns are ignored. Cells are
    separated by commas, semicolons or tabs. An empty cell is a missing value.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "not a text file"
        raise InputError(f"{path}: cannot be read as CSV: {said}") from error
    header = next((line for line in text.splitlines() if line.strip()), "")
    reader = csv.reader(StringIO(text), delimiter=max(",;\t", key=header.count))
    try:
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise InputError(f"{path}: line {reader.line_num}: {error}") from error
    columns = [cell.strip().lower() for cell in rows[0][1]] if rows else []
    for wanted in ("step", quantity):
        if columns.count(wanted) != 1:
            found = ", ".join(columns) or "nothing"
            raise InputError(f"{path}: no column {wanted!r}; the header has {found[:200]}")
    apart = [(i, column) for i, column in enumerate(columns) if column in SERIES]
    series: dict[str, list[tuple[float, float]]] = {}
    for line, row in rows[1:]:
        if len(row) != len(columns):
            raise InputError(f"{path}: line {line} has {len(row)} cells, the header has {len(columns)}")
        key = ", ".join(f"{column} {row[i].strip()}" for i, column in apart)
        point = [_number(row[columns.index(wanted)], path, line) for wanted in ("step", quantity)]
        series.setdefault(key, []).append((point[0], point[1]))
    if not series:
        raise InputError(f"{path}: no rows below the header")
    return {key: (np.array(rows)[:, 0], np.array(rows)[:, 1]) for key, rows in series.items()}


def _number(cell: str, path: Path | str, line: int) -> float:
    cell = cell.strip()
    try:
        return float(cell) if cell else np.nan
    except ValueError:
        raise InputError(f"{path}: line {line}: {cell[:40]!r} is not a number") from None
