"""The table of degrees: equal blocks share a row; a summary of the dropped terms follows."""

from typing import TYPE_CHECKING

from normgrowth.limit.result import Degrees
from normgrowth.report.columns.degrees import columns
from normgrowth.report.sentences.degrees import alike, counts, doubts
from normgrowth.report.terminal.console import say, say_each, show_table

if TYPE_CHECKING:
    from rich.console import Console


def show(
    result: Degrees,
    console: "Console",
    *,
    explain: bool = False,
    every: bool = False,
    select: str = "",
    depth: int | None = None,
) -> None:
    """Print a row for every submodule.

    explain: print which terms are dropped where, and why. every: print a row for each block, also for equal blocks.
    select: a regular expression for the modules to show. depth: show module names with at most this many parts.
    """
    say(console, f"{result.source}: {result.model}", "bold")
    for note in result.notes:
        say(console, note, "dim")
    shown = result.select(select, depth).modules
    rows = [(row.module, row) for row in shown] if every else alike(shown)
    if rows:
        show_table(console, columns(rows))
    else:
        say(console, "No module matches.")
    say_each(console, (f"Warning: {problem}." for problem in [*result.problems, *doubts(result)]))
    if explain:
        say_each(console, (f"• {sentence}" for sentence in result.explanation))
    else:
        say(console, f"{counts(result)} List them with --explain (result.explanation).")
