"""What records say in a terminal: tables, sentences, and a bar while the work goes on.

Text reaches the terminal through `visible` only. A tensor may be called "[red]x[/red]", or carry an
escape sequence that retitles the window: both are printed as they are spelt.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan, prod
from typing import TYPE_CHECKING, Any

from normgrowth.records import Records
from normgrowth.report.grids import grids_of_trace
from normgrowth.report.wording import cosine, number, percent, small, times, visible
from normgrowth.results import Result

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from normgrowth.trace.result import Trace

__all__ = ["Progress", "compare", "print_compare", "print_names"]

Write = Callable[[float], str]


@dataclass(frozen=True)
class Cells:
    """A column, written out, and what becomes of it where there is little room."""

    title: str
    cells: list[str]
    rank: int = 0  # where the terminal is narrow the highest goes first; 0 stays
    right: bool = True
    widest: float = 0.5  # of the console; longer text folds


def print_names(readings: Iterable[Mapping[str, Any]], console: "Console | None" = None) -> None:
    """How each tensor was read: its layer and role, whether it counts, and if not, why."""
    console, rows = console or new_console(), list(readings)

    def column(title: str, write: Callable[[Mapping[str, Any]], object], rank: int = 0, **look: Any) -> Cells:
        cells = ["" if (cell := write(row)) is None else str(cell) for row in rows]
        return Cells(title, cells, rank, right=False, **look)

    columns = [
        column("", lambda row: "✓" if row["counted"] else None),
        column("tensor", lambda row: row["name"]),
        column("shape", lambda row: "×".join(map(str, row["shape"])) or "scalar", rank=1),
        column("dtype", lambda row: row["dtype"], rank=2),
        column("layer", lambda row: row["layer"]),
        column("role", _role, widest=0.25),
    ]
    show(console, columns)
    parameters = [row for row in rows if row.get("kind") not in NOT_PARAMETERS]
    counted = [row for row in parameters if row["counted"]]
    tensors = f"{len(counted):,} of {len(parameters):,} tensors"
    say(console, f"{tensors} are counted, with {_values(counted):,} of {_values(parameters):,} parameters.")
    for kind, called in NOT_PARAMETERS.items():
        if apart := [row for row in rows if row.get("kind") == kind]:
            say(console, f"Not parameters: {len(apart):,} {called}, {_values(apart):,} values.")


NOT_PARAMETERS = {
    "optimizer": "tensors of optimizer or training state",
    "buffer": "buffers",
    "tied": "further names of tied parameters",
}


def _values(rows: Iterable[Mapping[str, Any]]) -> int:
    return sum(prod(row["shape"]) for row in rows)


def _role(row: Mapping[str, Any]) -> str:
    if row["counted"]:
        return row["role"]
    role, reason = row["role"], row["reason"]
    left_out = "left out" if not reason or reason == role else f"left out: {reason}"
    says_role = not role or (reason and reason != role and reason.startswith(role))
    return left_out if says_role else f"{role}, {left_out}"


# quantity -> title, how it is written, which go first where the terminal is narrow
COMPARED: dict[str, tuple[str, Write, int]] = {
    "norm": ("norm", number, 0),
    "factor": ("factor", times, 1),
    "cosine_first": ("cosine\nto first", cosine, 2),
    "alignment": ("alignment", small, 4),
    "total_share_steps": ("growth\nby steps", percent, 3),
}


def compare(a: Records, b: Records) -> list[dict[str, Any]]:
    """Two traces, one row for each layer and for the model: plain values, None where undefined.

    Taken at the last step that both have, unless one of them begins there, when there would be no
    growth to compare: then at each one's own last step. `matched` says which.
    """
    traces = {"a": grids_of_trace(a), "b": grids_of_trace(b)}
    steps, matched = _matched(*(trace.steps for trace in traces.values()))
    rows = []
    for thing in sorted(
        {**dict.fromkeys(traces["a"].things()), **dict.fromkeys(traces["b"].things())}, key=_last
    ):
        row: dict[str, Any] = {"level": thing[0], "name": thing[1], "matched": matched}
        row |= {f"step_{side}": steps[side] for side in traces}
        row |= {"parameters_a": a.parameters, "parameters_b": b.parameters}
        for quantity in COMPARED:
            for side, trace in traces.items():
                if quantity == "factor":
                    value = trace.factor(*thing, steps[side])
                else:
                    reference = "first" if quantity == "cosine_first" else None
                    value = trace.value(*thing, quantity.removesuffix("_first"), steps[side], reference)
                row[f"{quantity}_{side}"] = value if isfinite(value) else None
        for quantity in ("norm", "factor"):
            x, y = row[f"{quantity}_a"], row[f"{quantity}_b"]
            row[f"{quantity}_ratio"] = y / x if x and y is not None else None
        rows.append(row)
    return rows


def print_compare(a: Records, b: Records, console: "Console | None" = None) -> None:
    """The rows of `compare`, side by side."""
    console, rows = console or new_console(), compare(a, b)

    def column(title: str, key: str, write: Write, rank: int) -> Cells:
        return Cells(title, [write(nan if row[key] is None else row[key]) for row in rows], rank)

    columns = [layer_cells([(row["level"], row["name"]) for row in rows])]
    for quantity, (title, write, rank) in COMPARED.items():
        columns += [column(f"{title}\n{side}", f"{quantity}_{side}", write, rank) for side in "ab"]
        if f"{quantity}_ratio" in rows[0]:
            columns.append(column(f"{title}\nb/a", f"{quantity}_ratio", times, 5 * rank))
    for side, records in (("a", a), ("b", b)):
        say(console, f"{side}: {records.made_by.get('source', records.distinct('run')[0])}", "bold")
        say_parameters(console, records)
    if rows[-1]["parameters_a"] != rows[-1]["parameters_b"]:
        say(console, "The two count different parameters: their norms are not comparable.", "bold red")
    at = rows[-1]["step_a"], rows[-1]["step_b"]
    if rows[-1]["matched"]:
        say(console, f"Both at step {at[0]:,}, the last that they share.")
    else:
        say(
            console,
            f"They share no step after their first: a at its last, {at[0]:,}; b at its last, {at[1]:,}.",
        )
    show(console, columns, last_bold=True)


def _last(thing: tuple[str, str]) -> bool:
    return thing[0] == "model"


def _matched(a: Sequence[int], b: Sequence[int]) -> tuple[dict[str, int], bool]:
    common = set(a) & set(b)
    if len(a) > 1 or len(b) > 1:
        common -= {a[0], b[0]}
    return ({"a": max(common), "b": max(common)}, True) if common else ({"a": a[-1], "b": b[-1]}, False)


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


def say_parameters(console: "Console", given: "Records | Trace") -> None:
    """Which parameters the norms below count."""
    if given.parameters:
        say(console, f"parameters: {given.parameters}", "dim")


def say_remarks(console: "Console", given: Records | Result) -> None:
    """The notes and problems of a result."""
    for key, style in (("notes", "dim"), ("problems", "bold red")):
        texts = getattr(given, key) if isinstance(given, Result) else given.made_by.get(key)
        for text in texts or ():
            say(console, f"{key[:-1]}: {text}", style)


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
