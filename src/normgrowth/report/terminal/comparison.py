"""Two traces side by side: a row for each layer and one for the model."""

from collections.abc import Callable, Sequence
from math import nan
from typing import TYPE_CHECKING

from normgrowth.compare.result import Comparison
from normgrowth.report.numbers import cosine, number, percent, small, times
from normgrowth.report.sentences.comparison import sentences
from normgrowth.report.terminal.console import Cells, layer_cells, say, say_counted, say_remarks
from normgrowth.report.terminal.console import show as show_table

if TYPE_CHECKING:
    from rich.console import Console

Write = Callable[[float], str]
# field -> title, number format, rank (see Cells)
COLUMNS: dict[str, tuple[str, Write, int]] = {
    "norm": ("norm", number, 0),
    "factor": ("factor", times, 1),
    "cosine_first": ("cosine\nto first", cosine, 2),
    "alignment": ("alignment", small, 4),
    "total_share_steps": ("growth\nby steps", percent, 3),
}


def show(comparison: Comparison, console: "Console") -> None:
    a, b, rows = comparison.a, comparison.b, comparison.rows
    columns = [layer_cells([(row.level, row.name) for row in rows])]
    for field, (title, write, rank) in COLUMNS.items():
        columns.append(_cells(f"{title}\na", [getattr(row.a, field) for row in rows], write, rank))
        columns.append(_cells(f"{title}\nb", [getattr(row.b, field) for row in rows], write, rank))
        if field in ("norm", "factor"):
            ratios = [getattr(row, f"{field}_ratio") for row in rows]
            columns.append(_cells(f"{title}\nb/a", ratios, times, 5 * rank))
    for name, side in (("a", a), ("b", b)):
        say(console, f"{name}: {side.source}", "bold")
        say_counted(console, side.parameters)
    for place, sentence in enumerate(sentences(comparison)):
        say(console, sentence, "bold red" if place == 0 and not comparison.comparable else "")
    show_table(console, columns, last_bold=True)
    say_remarks(console, comparison)


def _cells(title: str, values: Sequence[float | None], write: Write, rank: int) -> Cells:
    return Cells(title, [write(nan if value is None else value) for value in values], rank)
