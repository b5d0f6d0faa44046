"""Where growth ends: in each column of a grid, between the last cell that grows and the first that shrinks.

A column holds all but one setting fixed, and the rows ascend (weight decay from small to large). Growth is expected to
change its sign once in a column. `wanted` looks for the place without filling the grid: it is a pure function of what
is known, so that a search that was stopped goes on where it was.

    anchors     every fifth column or so: both ends and the middle, then bisection
    the others  the two cells around the place that the anchors on both sides point to, further only if those do not
                enclose the change; then one cell half way to the end that is farther, to see that the sign stays
"""

from collections.abc import Mapping
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


def changes(known: Mapping[Cell, bool], columns: int, rows: int) -> list[Change]:
    return [change(_column(known, i), rows) for i in range(columns)]


def wanted(known: Mapping[Cell, bool], columns: int, rows: int) -> list[Cell]:
    """The cells to look at next, all at once; none when the boundary is found."""
    anchors = sorted(
        {round(i * (columns - 1) / max(1, -(-columns // APART))) for i in range(-(-columns // APART) + 1)}
    )
    cells = [(i, row) for i in anchors for row in _bisect(_column(known, i), rows, ends=True)]
    if cells:
        return cells
    place = {i: change(_column(known, i), rows).place for i in anchors}
    for i in range(columns):
        if i not in place:
            left, right = max(a for a in anchors if a < i), min(a for a in anchors if a > i)
            guess = place[left] + (place[right] - place[left]) * (i - left) / (right - left)
            column = _column(known, i)
            cells += [(i, row) for row in _around(column, rows, guess) or _check(column, rows)]
    return cells


def _column(known: Mapping[Cell, bool], i: int) -> dict[int, bool]:
    return {row: grows for (column, row), grows in known.items() if column == i}


def _bisect(column: Mapping[int, bool], rows: int, *, ends: bool) -> list[int]:
    if ends and (missing := [row for row in sorted({0, (rows - 1) // 2, rows - 1}) if row not in column]):
        return missing
    found = change(column, rows)
    return [] if found.found else [(found.below + found.above) // 2]


def _around(column: Mapping[int, bool], rows: int, guess: float) -> list[int]:
    """The pair of rows around the guess; once one side is known, away from it in steps that double."""
    found = change(column, rows)
    if found.found:
        return []
    if not column:
        low = min(max(int(guess), 0), max(rows - 2, 0))
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
