"""The degree of every part of a model, as a table."""

from normgrowth.limit.result import Degrees
from normgrowth.report.columns.degrees import columns
from normgrowth.report.page.content import Content, PageEntry
from normgrowth.report.page.pieces import Section, SummaryRow
from normgrowth.report.sentences.degrees import alike, counts
from normgrowth.report.table_columns import Table
from normgrowth.text import visible


def sections(content: Content) -> list[Section]:
    entries = content.of(Degrees)
    said = [
        f"{_label(entry)}: {visible(text)}"
        for entry in entries
        for text in (counts(entry.result), *entry.result.explanation)
    ]
    return [Section("degrees", "Degrees of homogeneity", said, list(map(_table, entries)))] if entries else []


def rows(content: Content) -> list[SummaryRow]:
    return [SummaryRow(_label(entry), "degrees", found=counts(entry.result)) for entry in content.of(Degrees)]


def _label(entry: PageEntry[Degrees]) -> str:
    """The name of the model, as in other sections; the label of the result if it has no name."""
    return visible(entry.result.source or entry.label)


def _table(entry: PageEntry[Degrees]) -> Table:
    return Table(f"Degrees of {_label(entry)}: {entry.result.model}", columns(alike(entry.result.modules)))
