"""What records say in a terminal: tables, sentences, and a bar while the work goes on.

Text reaches the terminal through `visible` only. A tensor may be called "[red]x[/red]", or carry an
escape sequence that retitles the window: both are printed as they are spelt.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from normgrowth.checkpoints.selection import CountedParameters, Selection, parameters_text
from normgrowth.report.wording import visible
from normgrowth.results import Result

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


@dataclass(frozen=True)
class Cells:
    """A column, written out, and what becomes of it where there is little room."""

    title: str
    cells: list[str]
    rank: int = 0  # where the terminal is narrow the highest goes first; 0 stays
    right: bool = True
    widest: float = 0.5  # of the console; longer text folds


def layer_cells(things: Sequence[tuple[str, str]]) -> Cells:
    """The first column of a table by layers."""
    return Cells("layer", [name for _, name in things], right=False)


def new_console() -> "Console":
    """A pipe has no width: it gets every column, where a terminal gets those that fit."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, 160))


def literal(console: "Console", text: object, style: str = "") -> "Text":
    """Never markup, and nothing that the terminal's encoding lacks."""
    from rich.text import Text

    return Text(visible(text).encode(console.encoding, "backslashreplace").decode(console.encoding), style)


def say(console: "Console", text: str, style: str = "") -> None:
    console.print(literal(console, text, style))


def say_parameters(
    console: "Console", selection: Selection | None, counted: CountedParameters | None = None
) -> None:
    """Which parameters the norms below count."""
    if selection:
        say(console, f"parameters: {parameters_text(selection, counted)}", "dim")


def say_remarks(console: "Console", result: Result) -> None:
    """The notes and problems of a result."""
    for name, texts, style in (("note", result.notes, "dim"), ("problem", result.problems, "bold red")):
        for text in texts:
            say(console, f"{name}: {text}", style)


def show(console: "Console", columns: Sequence[Cells], last_bold: bool = False) -> None:
    """The table, as much of it as the console is wide for; it says what is left out."""
    table, dropped = fitted(console, columns, last_bold)
    console.print(table)
    if dropped:
        say(console, f"Too narrow for: {', '.join(dropped)}.", "dim")


def fitted(
    console: "Console", columns: Sequence[Cells], last_bold: bool = False
) -> "tuple[Table, list[str]]":
    """A table without the columns of highest rank where the console is too narrow, and the titles of those."""
    from rich.measure import Measurement

    kept = [column for column in columns if not column.rank or any(cell != "-" for cell in column.cells)]
    dropped: list[str] = []
    while (rank := max(column.rank for column in kept)) > 0:
        table = _table(console, kept, last_bold)
        if Measurement.get(console, console.options.update(width=10_000), table).maximum <= console.width:
            break
        dropped += [" ".join(column.title.split()) for column in kept if column.rank == rank]
        kept = [column for column in kept if column.rank < rank]
    return _table(console, kept, last_bold), dropped


def _table(console: "Console", columns: Sequence[Cells], last_bold: bool) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    lines = max(column.title.count("\n") for column in columns)
    for column in columns:
        title = Text("\n").join(literal(console, line) for line in _bottom(column.title, lines))
        if column.right:
            table.add_column(title, justify="right", no_wrap=True)
        else:
            table.add_column(title, overflow="fold", max_width=max(16, int(column.widest * console.width)))
    rows = list(zip(*(column.cells for column in columns), strict=True))
    for row in rows:
        bold = last_bold and row is rows[-1]
        if bold:
            table.add_section()
        table.add_row(*(literal(console, cell) for cell in row), style="bold" if bold else None)
    return table


def _bottom(title: str, lines: int) -> list[str]:
    """Titles of fewer lines stand at the bottom, next to their numbers."""
    return [""] * (lines - title.count("\n")) + title.split("\n")


class Progress:
    """A bar on stderr, told how many bytes (or parts of any other kind) are done; silent where nobody watches."""

    def __init__(self, *, of_bytes: bool = True) -> None:
        self._of_bytes = of_bytes
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> "Progress":
        try:
            watched = sys.stderr.isatty()
        except (AttributeError, ValueError):  # no stderr at all, or a closed one
            watched = False
        if watched:
            from rich import progress
            from rich.console import Console
            from rich.table import Column

            columns = (progress.DownloadColumn(), progress.TransferSpeedColumn())
            self._bar = progress.Progress(
                progress.BarColumn(bar_width=16),
                *(columns if self._of_bytes else (progress.TaskProgressColumn(),)),
                progress.TimeRemainingColumn(),
                # What happens now comes last and takes the room that is left: numbers are never cut.
                progress.TextColumn(
                    "{task.description}",
                    markup=False,
                    table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
                ),
                console=Console(stderr=True),
                transient=True,
                expand=True,
            )
            self._task = self._bar.add_task("", total=None)
            self._bar.start()
        return self

    def __call__(self, done: int, total: int, label: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, description=visible(label))

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
