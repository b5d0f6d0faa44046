"""The table of degrees: equal blocks share a row; a summary of the dropped terms follows."""

from typing import TYPE_CHECKING

from normgrowth.limit.result import Degrees
from normgrowth.report.sentences.degrees import alike, counts, doubts
from normgrowth.report.terminal.console import Cells, say
from normgrowth.report.terminal.console import show as show_columns
from normgrowth.text import by_run

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
    columns = [
        Cells("module", [name or "(the model)" for name, _ in rows], right=False, widest=0.6),
        Cells("class", [row.class_name for _, row in rows], rank=2, right=False, widest=0.3),
        Cells("in", [by_run([one[0] for one in row.inputs_by_run if one]) for _, row in rows], rank=1),
        Cells("degree", [by_run(row.by_run) for _, row in rows]),
        Cells("lower parts", [", ".join(map(str, row.lower)) or "-" for _, row in rows], rank=3),
        Cells("runs", [str(row.runs) if row.runs > 1 else "-" for _, row in rows], rank=4),
    ]
    if rows:
        show_columns(console, columns)
    else:
        say(console, "No module matches.")
    for problem in [*result.problems, *doubts(result)]:
        say(console, f"Warning: {problem}.")
    if explain:
        for sentence in result.explanation:
            say(console, f"• {sentence}")
    else:
        say(console, f"{counts(result)} List them with --explain (result.explanation).")
