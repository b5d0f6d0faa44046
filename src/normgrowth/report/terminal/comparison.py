"""A comparison in the terminal: where two runs diverge, a heat map of differences, and their growth by layer."""

from collections.abc import Callable, Sequence
from math import isfinite, isnan, nan
from typing import TYPE_CHECKING

from normgrowth.compare.result import Comparison
from normgrowth.report.difference_grid import TITLES, DifferenceGrid, difference_grid
from normgrowth.report.numbers import cosine, number, percent, signed, small, times
from normgrowth.report.sentences.comparison import sentences, verdict
from normgrowth.report.terminal.console import Cells, layer_cells, say, say_counted, say_remarks
from normgrowth.report.terminal.console import show as show_table
from normgrowth.text import visible

if TYPE_CHECKING:
    from rich.console import Console

MOST_ROWS, MOST_COLUMNS, WIDEST_NAME = 40, 100, 40  # size of the heat map
SAME, ROUNDING, SLIGHT, CLEAR, GROSS = "=", "·", "+", "x", "#"
Write = Callable[[float], str]
Columns = dict[str, tuple[str, Write, int]]  # field of `Values` -> title, number format, rank (see Cells)
COLUMNS: Columns = {
    "norm": ("norm", number, 0),
    "factor": ("factor", times, 1),
    "cosine_first": ("cosine\nto first", cosine, 3),
    "alignment": ("alignment", small, 4),
}
SHARE: Columns = {"total_share_steps": ("growth\nby steps", percent, 2)}
TERMS: Columns = {
    "total_growth": ("growth of\n‖θ‖²", signed, 4),
    "total_growth_steps": ("of ‖θ‖²\nby steps", signed, 2),
    "total_growth_alignment": ("of ‖θ‖² by\nalignment", signed, 2),
}


def columns_of(comparison: Comparison) -> Columns:
    """The columns of the table of growth: shares of ‖θ‖², or its terms if some shares are outside [0, 1]."""
    shares = [side.total_share_steps for row in comparison.rows for side in (row.a, row.b)]
    additive = all(share is None or not isfinite(share) or 0 <= share <= 1 for share in shares)
    return {**COLUMNS, **(SHARE if additive else TERMS)}


def show(comparison: Comparison, console: "Console") -> None:
    a, b, rows = comparison.a, comparison.b, comparison.rows
    columns = [layer_cells([(row.level, row.name) for row in rows])]
    for field, (title, write, rank) in columns_of(comparison).items():
        columns.append(_cells(f"{title}\na", [getattr(row.a, field) for row in rows], write, rank))
        columns.append(_cells(f"{title}\nb", [getattr(row.b, field) for row in rows], write, rank))
        if field in ("norm", "factor"):
            ratios = [getattr(row, f"{field}_ratio") for row in rows]
            columns.append(_cells(f"{title}\nb/a", ratios, times, 5 * rank))
    for name, side in (("a", a), ("b", b)):
        say(console, f"{name}: {side.source}", "bold")
        say_counted(console, side.parameters)
    said = verdict(comparison)
    say(console, said[0], "bold red" if comparison.parted or not comparison.judged else "bold green")
    for sentence in said[1:]:
        say(console, sentence)
    if comparison.partings:
        show_table(console, _partings(comparison, max(16, int(0.4 * console.width))))
    room = max(8, min(MOST_COLUMNS, console.width - WIDEST_NAME - 2))
    grid = difference_grid(comparison, most_rows=MOST_ROWS, most_columns=room)
    for text in [] if grid is None or not comparison.parted else _heat_map(grid):
        say(console, text)
    for place, sentence in enumerate(sentences(comparison)):
        say(console, sentence, "bold red" if place == 0 and not comparison.comparable else "")
    show_table(console, columns, last_bold=True)
    say_remarks(console, comparison)


def _partings(comparison: Comparison, room: int) -> list[Cells]:
    """The first difference of each stage. room: for names of tensors."""
    found = comparison.partings
    return [
        Cells("first difference of", [TITLES[one.stage] for one in found], right=False),
        Cells("step", [f"{one.step:,}" for one in found]),
        Cells("largest in", [_middle(one.name, room) for one in found], right=False, widest=0.4),
        Cells("a", [number(nan if one.a is None else one.a) for one in found], 2),
        Cells("b", [number(nan if one.b is None else one.b) for one in found], 2),
        Cells("relative\ndifference", [f"{one.difference:.1e}" for one in found]),
        Cells("noise\nfloor", [f"{one.floor:.1e}" for one in found], 1),
        Cells("tensors", [f"{one.tensors:,}" for one in found], 3),
    ]


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
        f"{SAME} identical  {ROUNDING} within the noise floor  {SLIGHT} above it  {CLEAR} over 10 times  "
        f"{GROSS} over 1,000 times"
    )
    return lines


def _sign(log_ratio: float) -> str:
    if isnan(log_ratio):
        return " "
    if log_ratio <= 0:
        return ROUNDING
    return SLIGHT if log_ratio <= 1 else CLEAR if log_ratio <= 3 else GROSS


def _middle(name: str, room: int) -> str:
    """A long name without its middle."""
    name = visible(name)
    return name if len(name) <= room else f"{name[: room // 2]}…{name[len(name) - (room - 1 - room // 2) :]}"


def _cut(name: str, width: int) -> str:
    """The end of a long name, which is more specific than its beginning."""
    return name if len(name) <= width else f"…{name[1 - width :]}"


def _cells(title: str, values: Sequence[float | None], write: Write, rank: int) -> Cells:
    return Cells(title, [write(nan if value is None else value) for value in values], rank)
