"""Where growth ends: in each column of a grid, between the last cell that grows and the first that shrinks.

A column holds all but one setting fixed, and the rows ascend (weight decay from small to large). Growth is expected to
change its sign once in a column. `wanted` looks for the place without filling the grid: it is a pure function of what
is known, so that a search that was stopped goes on where it was.

    anchors     every fifth column or so: both ends and the middle, then bisection
    the others  the two cells around the place that the anchors on both sides point to, further only if those do not
                enclose the change; then one cell half way to the end that is farther, to see that the sign stays

Cells that were lost are unknown: the search treats a column as if their rows were not there.
"""

from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass

Cell = tuple[int, int]  # column, row
APART = 5  # columns from an anchor to the next


@dataclass(frozen=True)
class Change:
    """In one column: the last row that grows, the first that shrinks; −1 and the number of rows are beyond the grid."""

    below: int
    above: int
    once: bool  # no known row contradicts it

    @property
    def found(self) -> bool:
        return self.above - self.below == 1

    @property
    def place(self) -> float:
        return (self.below + self.above) / 2


def change(column: Mapping[int, bool], rows: int) -> Change:
    """The first change from growing (true) to shrinking, by what is known of the column."""
    shrinking = [row for row, grows in column.items() if not grows]
    above = min(shrinking, default=rows)
    below = max((row for row, grows in column.items() if grows and row < above), default=-1)
    return Change(below, above, not any(grows and row > above for row, grows in column.items()))


def changes(
    known: Mapping[Cell, bool], columns: int, rows: int, without: Collection[Cell] = ()
) -> list[Change]:
    """The change of each column, in rows of the grid. without: cells that were lost."""
    found = []
    for i in range(columns):
        left = _left(i, rows, without)
        one, ends = change(_column(known, i, left), len(left)), [-1, *left, rows]
        found.append(Change(ends[one.below + 1], ends[one.above + 1], one.once))
    return found


def wanted(known: Mapping[Cell, bool], columns: int, rows: int, without: Collection[Cell] = ()) -> list[Cell]:
    """The cells to look at next, all at once; none when the boundary is found. without: cells that were lost."""
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
    """The rows of a column that were not lost."""
    return [row for row in range(rows) if (i, row) not in without]


def _column(known: Mapping[Cell, bool], i: int, left: list[int]) -> dict[int, bool]:
    """What is known of a column, by the place of the row among those that are left."""
    return {place: known[i, row] for place, row in enumerate(left) if (i, row) in known}


def _guess(place: Mapping[int, float], i: int, rows: int) -> float:
    """Between the anchors on both sides; the nearest where all cells of the other were lost."""
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
    """The pair of rows around the guess; once one side is known, away from it in steps that double."""
    found = change(column, rows)
    if found.found:
        return []
    if not column:
        low = min(max(guess, 0), max(rows - 2, 0))
        return sorted({low, min(low + 1, rows - 1)})
    if found.below >= 0 and found.above < rows:
        return _bisect(column, rows, ends=False)
    if found.above == rows:  # all that is known grows
        known = sorted(row for row in column)
        return [min(found.below + max(1, known[-1] - known[0]), rows - 1)]
    known = sorted(column)
    return [max(found.above - max(1, known[-1] - known[0]), 0)]


def _check(column: Mapping[int, bool], rows: int) -> list[int]:
    """Half way to the end that is farther, if nothing there is known."""
    found = change(column, rows)
    over, under = rows - 1 - found.above, found.below
    if max(over, under) < 2:
        return []
    row = (found.above + rows) // 2 if over >= under else found.below // 2
    beyond = [r for r in column if (r > found.above if over >= under else r < found.below)]
    return [] if beyond else [row]
