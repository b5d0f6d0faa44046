"""The terminal: tables, sentences and progress bars.

All text passes through `visible`: the name of a tensor may be "[red]x[/red]", or contain an escape sequence that
changes the title of the window; both are printed literally.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from normgrowth.checkpoints.parameters.selection import CountedParameters, Selection, parameters_text
from normgrowth.report.table_columns import PAGE_ONLY, Column, words
from normgrowth.results import Result
from normgrowth.text import visible
from normgrowth.trace.result import LAYER_MATRICES

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text


WIDTH, WIDE = 100, 1000  # characters per line: default, --wide
MOST = 5  # sentences, without --wide


def layer_names(things: Sequence[tuple[str, str]]) -> Column:
    """The column of layer names. things: level and name of each row."""
    only = any(level == LAYER_MATRICES for level, _ in things)
    return words("layer\n(matrices)" if only else "layer", [name for _, name in things])


def new_console(*, wide: bool = False) -> "Console":
    """A console of at most 100 columns; wide: of 1000 columns, so that every table fits."""
    from rich.console import Console

    console = Console()
    return Console(width=WIDE if wide else min(console.width, WIDTH) if console.is_terminal else WIDTH)


def spread(count: int, most: int) -> list[int]:
    """At most `most` evenly spaced indices from 0 to count − 1, including both ends."""
    rows = min(count, most)
    return sorted({round(i * (count - 1) / max(1, rows - 1)) for i in range(rows)})


def literal(console: "Console", text: object, style: str = "") -> "Text":
    """Text that rich does not interpret, with characters that the terminal cannot encode escaped."""
    from rich.text import Text

    return Text(visible(text).encode(console.encoding, "backslashreplace").decode(console.encoding), style)


def say(console: "Console", text: str, style: str = "") -> None:
    print_stripped(console, literal(console, text, style))


def say_each(console: "Console", texts: Iterable[str]) -> None:
    for text in texts:
        say(console, text)


def say_parameters(
    console: "Console", selection: Selection | None, counted: CountedParameters | None = None
) -> None:
    """Print which parameters the norms below count."""
    say_counted(console, parameters_text(selection, counted) if selection else "")


def say_counted(console: "Console", parameters: str) -> None:
    """Print which parameters the norms below count, or nothing if `parameters` is empty."""
    if parameters:
        say(console, f"parameters: {parameters}", "dim")


def say_remarks(console: "Console", result: Result) -> None:
    """Print the notes and problems of a result."""
    for text in result.notes:
        say(console, f"note: {text}", "dim")
    say_problems(console, result)


def say_problems(console: "Console", result: Result) -> None:
    for text in result.problems:
        say(console, f"problem: {text}", "bold red")


def say_most_important(console: "Console", texts: Sequence[str]) -> None:
    """Print at most five sentences, in this order, and how many more --wide would print."""
    room = MOST if console.width < WIDE else sys.maxsize
    for place, text in enumerate(texts):
        if (room := room - _sentences(text)) < 0:
            more = sum(map(_sentences, texts[place:]))
            say(console, f"{more} more sentence{'s' if more > 1 else ''} with --wide.", "dim")
            return
        say(console, text, "dim" if text.startswith("note: ") else "")


def _sentences(text: str) -> int:
    return 1 + len(re.findall(r"[.!?] [A-Z]", text.removeprefix("note: ")))


def show_table(console: "Console", columns: Sequence[Column], last_bold: bool = False) -> None:
    """Print the columns that fit, and the titles of those that do not."""
    table, dropped = fitted(console, columns, last_bold)
    print_stripped(console, table)
    if dropped:
        say(console, f"Hidden columns (--wide shows them): {'; '.join(dropped)}.", "dim")


def print_stripped(console: "Console", shown: "RenderableType") -> None:
    """Print a table or a text. Captured output has no spaces at the ends of lines."""
    if console.is_terminal or console.record:
        console.print(shown)
        return
    with console.capture() as captured:
        console.print(shown)
    lines = captured.get().splitlines()
    console.out("\n".join(line.rstrip() for line in lines), highlight=False)


def fitted(
    console: "Console", columns: Sequence[Column], last_bold: bool = False
) -> "tuple[Table, list[str]]":
    """The table without the columns that do not fit, highest rank first, and the titles of these columns."""
    kept = [column for column in columns if not column.rank or (column.rank < PAGE_ONLY and column.known)]
    dropped: list[str] = []
    while (rank := max(column.rank for column in kept)) > 0:
        if _width(console, _table(console, kept, last_bold)) <= console.width:
            break
        dropped += [column.heading for column in kept if column.rank == rank]
        kept = [column for column in kept if column.rank < rank]
    table = _table(console, kept, last_bold)
    _widen(console, table)
    return table, dropped


def _width(console: "Console", table: "Table") -> int:
    from rich.measure import Measurement

    return Measurement.get(console, console.options.update(width=10_000), table).maximum


def _widen(console: "Console", table: "Table") -> None:
    """Let columns that fold their text use the space that the table leaves."""
    for column in table.columns:
        if column.max_width is not None and (spare := console.width - _width(console, table)) > 0:
            column.max_width += spare


def _table(console: "Console", columns: Sequence[Column], last_bold: bool) -> "Table":
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
    """The lines of a title, padded with empty lines at the top."""
    return [""] * (lines - title.count("\n")) + title.split("\n")


class Progress:
    """A progress bar on stderr, in bytes or other units; silent if stderr is not a terminal."""

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
                # The label comes last, so that a narrow terminal cuts the label and not the numbers.
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
