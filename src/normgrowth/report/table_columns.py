"""Tables of the terminal and of the page, declared once in `report/columns/KIND.py`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, nan

PAGE_ONLY = 99  # the rank of columns that the terminal never shows


@dataclass(frozen=True)
class Column:
    """A column of a table.

    title: the lines of the terminal's header; the page writes them on one line.
    values: the numbers by which the page sorts; None if the cells are words.
    rank: the terminal hides columns that do not fit, highest rank first; rank 0 is never hidden.
    widest: the share of the terminal's width beyond which words are wrapped.
    classes: the CSS class of each cell.
    """

    title: str
    cells: Sequence[str]
    values: Sequence[float] | None = None
    rank: int = 0
    right: bool = True  # alignment in the terminal
    widest: float = 0.5
    classes: Sequence[str] = ()

    @property
    def heading(self) -> str:
        """The title on one line; a word that is broken after its hyphen is joined."""
        return one_line(self.title)

    @property
    def known(self) -> bool:
        """Whether any cell has a value."""
        return any(cell not in ("-", "") for cell in self.cells)


def one_line(title: str) -> str:
    return " ".join(title.replace("-\n", "-").split())


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[Column]

    @property
    def shown(self) -> list[Column]:
        """The columns that a page shows: not those with a rank in which no cell has a value."""
        return [column for column in self.columns if not column.rank or column.known]


def numbers(
    title: str,
    values: Sequence[float | None],
    write: Callable[[float], str],
    rank: int = 0,
    missing: str = "-",
) -> Column:
    """A column of numbers; missing: the cell of a value that is None or not finite."""
    known = [nan if value is None else float(value) for value in values]
    return Column(title, [write(value) if isfinite(value) else missing for value in known], known, rank)


def words(
    title: str, cells: Sequence[str], rank: int = 0, *, widest: float = 0.5, classes: Sequence[str] = ()
) -> Column:
    return Column(title, list(cells), None, rank, right=False, widest=widest, classes=classes)
