"""A comparison in the terminal: where two runs diverge, their growth by layer, and a heat map of differences."""

from math import isnan
from typing import TYPE_CHECKING

from normgrowth.compare.result import Comparison
from normgrowth.report.columns.comparison import growth, partings
from normgrowth.report.difference_grid import TITLES, DifferenceGrid, difference_grid
from normgrowth.report.sentences.comparison import sentences, verdict
from normgrowth.report.terminal.console import say, say_counted, say_each, say_remarks, show_table

if TYPE_CHECKING:
    from rich.console import Console

MOST_ROWS, MOST_COLUMNS, WIDEST_NAME = 40, 100, 40  # size of the heat map
SAME, ROUNDING, SLIGHT, CLEAR, GROSS = "=", "·", "+", "x", "#"


def show(comparison: Comparison, console: "Console") -> None:
    for name, side in (("a", comparison.a), ("b", comparison.b)):
        say(console, f"{name}: {side.source}", "bold")
        say_counted(console, side.parameters)
    said = verdict(comparison)
    say(console, said[0], "bold red" if comparison.parted or not comparison.judged else "bold green")
    say_each(console, said[1:])
    if comparison.partings:
        show_table(console, partings(comparison, max(16, int(0.4 * console.width))))
    for place, sentence in enumerate(sentences(comparison)):
        say(console, sentence, "bold red" if place == 0 and not comparison.comparable else "")
    show_table(console, growth(comparison), last_bold=True)
    room = max(8, min(MOST_COLUMNS, console.width - WIDEST_NAME - 2))
    grid = difference_grid(comparison, most_rows=MOST_ROWS, most_columns=room)
    if grid is not None and comparison.parted:
        say_each(console, _heat_map(grid))
    say_remarks(console, comparison)


def _heat_map(grid: DifferenceGrid) -> list[str]:
    """A row of signs for each tensor, or for each layer if there are many tensors."""
    over, identical = grid.over_floor, grid.identical
    width = min(WIDEST_NAME, max(map(len, grid.names)))
    lines = [
        f"Relative difference of the {TITLES[grid.stage]}, steps {grid.steps[0]:,} to {grid.steps[-1]:,}:"
    ]
    for name, row, same in zip(grid.names, over, identical, strict=True):
        signs = [
            SAME if equal else _sign(value) for value, equal in zip(row.tolist(), same.tolist(), strict=True)
        ]
        lines.append(f"{_cut(name, width):<{width}}  {''.join(signs)}")
    lines.append(
        f"{SAME} identical  {ROUNDING} within the noise floor  {SLIGHT} above it  {CLEAR} > 10 × the floor  "
        f"{GROSS} > 1,000 × the floor"
    )
    return lines


def _sign(log_ratio: float) -> str:
    if isnan(log_ratio):
        return " "
    if log_ratio <= 0:
        return ROUNDING
    return SLIGHT if log_ratio <= 1 else CLEAR if log_ratio <= 3 else GROSS


def _cut(name: str, width: int) -> str:
    """The end of a long name, which is more specific than its beginning."""
    return name if len(name) <= width else f"…{name[1 - width :]}"
