"""Two traces side by side, as a table."""

from collections.abc import Callable, Sequence
from math import nan

from normgrowth.compare.result import Comparison
from normgrowth.report.numbers import times
from normgrowth.report.page.content import Content
from normgrowth.report.page.pieces import Column, Section, Table, column, words
from normgrowth.report.sentences.comparison import sentences
from normgrowth.report.terminal.comparison import COLUMNS
from normgrowth.text import visible


def sections(content: Content) -> list[Section]:
    results = content.results(Comparison)
    said = [visible(text) for result in results for text in sentences(result)]
    return [Section("comparison", "Side by side", said, list(map(_table, results)))] if results else []


def _table(result: Comparison) -> Table:
    rows = result.rows
    columns = [words("layer", [row.name for row in rows])]
    for field, (title, write, _) in COLUMNS.items():
        name = title.replace("\n", " ")
        columns.append(_column(f"{name}, a", [getattr(row.a, field) for row in rows], write))
        columns.append(_column(f"{name}, b", [getattr(row.b, field) for row in rows], write))
        if field in ("norm", "factor"):
            columns.append(_column(f"{name}, b/a", [getattr(row, f"{field}_ratio") for row in rows], times))
    return Table(f"{result.a.source} (a) and {result.b.source} (b)", columns)


def _column(title: str, values: Sequence[float | None], write: Callable[[float], str]) -> Column:
    return column(title, [nan if value is None else value for value in values], write)
