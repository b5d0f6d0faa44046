"""The degree of every part of a model, as a table."""

from normgrowth.limit.result import Degrees
from normgrowth.report.page.content import Content, PageEntry
from normgrowth.report.page.pieces import Section, SummaryRow, Table, words
from normgrowth.report.sentences.degrees import alike, counts
from normgrowth.text import by_run, visible


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
    rows = alike(entry.result.modules)
    return Table(
        f"Degrees of {_label(entry)}: {entry.result.model}",
        [
            words("module", [name or "(the model)" for name, _ in rows]),
            words("class", [row.class_name for _, row in rows]),
            words("in", [by_run([one[0] for one in row.inputs_by_run if one]) for _, row in rows]),
            words("degree", [by_run(row.by_run) for _, row in rows]),
            words("lower parts", [", ".join(map(str, row.lower)) or "-" for _, row in rows]),
        ],
    )
