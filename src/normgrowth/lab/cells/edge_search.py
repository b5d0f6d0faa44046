"""Find where growth ends in each column of a grid: between the last cell that grows and the first that shrinks.

A column fixes all but one setting, and its rows ascend (for example, weight decay from small to large). Growth is
expected to change its sign once in a column. `wanted` searches for this place without filling the grid. It is a pure
function of the known cells, so an interrupted search resumes where it stopped.

    anchors         about every fifth column: both ends and the middle, then bisection
    other columns   the two cells around the place interpolated between the neighboring anchors, and more only if these
                    do not enclose the change; then one cell halfway to the farther end, to check that the sign stays

Lost cells are unknown: the search treats a column as if their rows did not exist.
"""

from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass

Cell = tuple[int, int]  # column, row
APART = 5  # columns between anchors


@dataclass(frozen=True)
class Change:
    """The last row that grows and the first that shrinks; −1 and the number of rows mean outside the grid."""

    below: int
    above: int
    once: bool  # no known row contradicts a single change

    @property
    def found(self) -> bool:
        return self.above - self.below == 1

    @property
    def place(self) -> float:
        return (self.below + self.above) / 2


def change(column: Mapping[int, bool], rows: int) -> Change:
    """Return the first change from growing (True) to shrinking among the known rows of a column."""
    shrinking = [row for row, grows in column.items() if not grows]
    above = min(shrinking, default=rows)
    below = max((row for row, grows in column.items() if grows and row < above), default=-1)
    return Change(below, above, not any(grows and row > above for row, grows in column.items()))


def changes(
    known: Mapping[Cell, bool], columns: int, rows: int, without: Collection[Cell] = ()
) -> list[Change]:
    """Return the change of each column, in rows of the grid. without: lost cells."""
    found = []
    for i in range(columns):
        left = _left(i, rows, without)
        one, ends = change(_column(known, i, left), len(left)), [-1, *left, rows]
        found.append(Change(ends[one.below + 1], ends[one.above + 1], one.once))
    return found


def wanted(known: Mapping[Cell, bool], columns: int, rows: int, without: Collection[Cell] = ()) -> list[Cell]:
    """Return the cells to train next, in one batch; empty when the edge is found. without: lost cells."""
    anchors = sorted(
        {round(i * (columns - 1) / max(1, -(-columns // APART))) for i in range(-(-columns // APART) + 1)}
    )
    left = [_left(i, rows, without) for i in range(columns)]
    cells = [
        (i, left[i][row])
        for i in anchors
        for row in _bisect(_column(known, i, left[i]), len(left[i]), ends=True)
    ]
    if cells:
        return cells
    found = changes(known, columns, rows, without)
    place = {i: found[i].place for i in anchors if left[i]}
    for i in range(columns):
        if i not in anchors:
            column, guess = _column(known, i, left[i]), bisect_right(left[i], _guess(place, i, rows)) - 1
            cells += [
                (i, left[i][row])
                for row in _around(column, len(left[i]), guess) or _check(column, len(left[i]))
            ]
    return cells


def _left(i: int, rows: int, without: Collection[Cell]) -> list[int]:
    """Return the rows of a column that are not lost."""
    return [row for row in range(rows) if (i, row) not in without]


def _column(known: Mapping[Cell, bool], i: int, left: list[int]) -> dict[int, bool]:
    """Return the known cells of a column, by index among the remaining rows."""
    return {place: known[i, row] for place, row in enumerate(left) if (i, row) in known}


def _guess(place: Mapping[int, float], i: int, rows: int) -> float:
    """Interpolate between the neighboring anchors; use the nearest one if an anchor has no cells left."""
    before, after = [a for a in place if a < i], [a for a in place if a > i]
    if not before or not after:
        return place[(before or after)[-1 if before else 0]] if place else rows / 2
    low, high = before[-1], after[0]
    return place[low] + (place[high] - place[low]) * (i - low) / (high - low)


def _bisect(column: Mapping[int, bool], rows: int, *, ends: bool) -> list[int]:
    if not rows:
        return []
    if ends and (missing := [row for row in sorted({0, (rows - 1) // 2, rows - 1}) if row not in column]):
        return missing
    found = change(column, rows)
    return [] if found.found else [(found.below + found.above) // 2]


def _around(column: Mapping[int, bool], rows: int, guess: int) -> list[int]:
    """Return the pair of rows around the guess; if one side is known, move away from it in doubling steps."""
    found = change(column, rows)
    if found.found:
        return []
    if not column:
        low = min(max(guess, 0), max(rows - 2, 0))
        return sorted({low, min(low + 1, rows - 1)})
    if found.below >= 0 and found.above < rows:
        return _bisect(column, rows, ends=False)
    if found.above == rows:  # all known rows grow
        known = sorted(row for row in column)
        return [min(found.below + max(1, known[-1] - known[0]), rows - 1)]
    known = sorted(column)
    return [max(found.above - max(1, known[-1] - known[0]), 0)]


def _check(column: Mapping[int, bool], rows: int) -> list[int]:
    """Return the row halfway to the farther end, if no row there is known."""
    found = change(column, rows)
    over, under = rows - 1 - found.above, found.below
    if max(over, under) < 2:
        return []
    row = (found.above + rows) // 2 if over >= under else found.below // 2
    beyond = [r for r in column if (r > found.above if over >= under else r < found.below)]
    return [] if beyond else [row]
