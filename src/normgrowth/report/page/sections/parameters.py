"""The table of tensors: layer, role, and whether each is counted."""

from normgrowth.checkpoints.parameters.parameter_list import Parameters
from normgrowth.report.columns.parameters import columns
from normgrowth.report.page.content import Content, labeled
from normgrowth.report.page.pieces import Section, SummaryRow
from normgrowth.report.sentences.parameters import sentences
from normgrowth.report.table_columns import Table
from normgrowth.text import visible


def sections(content: Content) -> list[Section]:
    entries = content.of(Parameters)
    tables = [Table(f"Parameters of {entry.label}", columns(entry.result)) for entry in entries]
    said = labeled(entries, sentences)
    return [Section("parameters", "Which parameters are counted", said, tables)] if tables else []


def rows(content: Content) -> list[SummaryRow]:
    """A row for each checkpoint: how many tensors are counted."""
    return [
        SummaryRow(visible(entry.label), "parameters", found=sentences(entry.result)[0])
        for entry in content.of(Parameters)
    ]
