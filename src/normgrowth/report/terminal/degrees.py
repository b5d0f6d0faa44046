"""Degrees of a model in a terminal: blocks that are alike are one, and what is dropped is said below."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from normgrowth.report.terminal.console import Cells, new_console, say, show
from normgrowth.report.wording import cosine, visible
from normgrowth.text import by_run

if TYPE_CHECKING:
    from rich.console import Console

Row = Mapping[str, Any]


def print_degrees(
    facts: Mapping[str, Any],
    *,
    title: str,
    notes: Sequence[str] = (),
    explain: bool = False,
    every: bool = False,
    console: "Console | None" = None,
) -> None:
    """facts: modules (module, class, degree, lower, inputs, runs, stack, block, part), sums, and sentences."""
    console = console or new_console()
    say(console, title, "bold")
    for note in notes:
        say(console, note, "dim")
    rows = [(row["module"], row) for row in facts["modules"]] if every else group(facts["modules"])
    columns = [
        Cells("module", [name or "(the model)" for name, _ in rows], right=False, widest=0.6),
        Cells("class", [row["class"] for _, row in rows], rank=2, right=False, widest=0.3),
        Cells("in", [by_run([one[0] for one in row["inputs_by_run"] if one]) for _, row in rows], rank=1),
        Cells("degree", [by_run(row["degree_by_run"]) for _, row in rows]),
        Cells("lower parts", [", ".join(map(str, row["lower"])) or "-" for _, row in rows], rank=3),
        Cells("runs", [str(row["runs"]) if row["runs"] > 1 else "-" for _, row in rows], rank=4),
    ]
    if rows:
        show(console, columns)
    else:
        say(console, "No module to show.")
    for warning in facts["warnings"]:
        say(console, f"Warning: {warning}.")
    if explain:
        for sentence in facts["explanation"]:
            say(console, f"• {sentence}")
    else:
        dropped = [met for met in facts["sums"] if met["kind"] != "constant"]
        say(
            console,
            f"{len(dropped):,} sums drop a term of lower degree; {len(facts['vanished']):,} of "
            f"{facts['parameters']:,} parameters have no part in the limit. --explain says which, and why.",
        )


def group(modules: Sequence[Row]) -> list[tuple[str, Row]]:
    """Rows that differ in the number of their block only, as one; with the name that they share."""
    alike: dict[tuple[Any, ...], list[Row]] = {}
    for row in modules:
        same = tuple(str(row[key]) for key in ("class", "degree_by_run", "lower", "inputs_by_run", "runs"))
        alike.setdefault((row["stack"], row["block"] is None, row["part"], same), []).append(row)
    return [
        (
            ".".join(
                filter(None, (rows[0]["stack"], _span([row["block"] for row in rows]), rows[0]["part"]))
            ),
            rows[0],
        )
        for rows in alike.values()
    ]


def print_hard_heads(
    facts: Mapping[str, Any], *, title: str, notes: Sequence[str] = (), console: "Console | None" = None
) -> None:
    """facts: modules (module, class, cosine, least, tokens) and ties."""
    console, rows = console or new_console(), facts["modules"]
    say(console, title, "bold")
    for note in notes:
        say(console, note, "dim")
    columns = [
        Cells("module", [row["module"] or "(the model)" for row in rows], right=False, widest=0.6),
        Cells("class", [row["class"] for row in rows], rank=2, right=False, widest=0.3),
        Cells("cosine of\nhard and soft", [cosine(row["cosine"]) for row in rows]),
        Cells("least of\nany token", [cosine(row["least"]) for row in rows], rank=1),
    ]
    show(console, columns)
    tied = sum(tie["tied"] for tie in facts["ties"])
    if tied:
        say(console, f"Several keys share the largest score in {tied:,} softmax rows; they share alike.")


def _span(blocks: Sequence[int | None]) -> str:
    """0-2,5"""
    numbers = sorted({block for block in blocks if block is not None})
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


@contextmanager
def working(text: str) -> Iterator[None]:
    """A line on stderr that lives while the work goes on; silent where nobody watches."""
    try:
        watched = sys.stderr.isatty()
    except (AttributeError, ValueError):
        watched = False
    if not watched:
        yield
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(visible(text))):
        yield
