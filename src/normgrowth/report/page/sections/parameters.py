"""The table of tensors: layer, role, and whether each is counted."""

from normgrowth.checkpoints.parameters.parameter_list import Parameters
from normgrowth.report.page.content import Content, PageEntry
from normgrowth.report.page.pieces import Section, SummaryRow, Table, column, words
from normgrowth.report.sentences.parameters import role, sentences
from normgrowth.text import visible


def sections(content: Content) -> list[Section]:
    entries = content.of(Parameters)
    said = [
        f"{visible(entry.label)}: {text}" if len(entries) > 1 else text
        for entry in entries
        for text in sentences(entry.result)
    ]
    return (
        [Section("parameters", "Which parameters are counted", said, list(map(_table, entries)))]
        if entries
        else []
    )


def rows(content: Content) -> list[SummaryRow]:
    """A row for each checkpoint: how many tensors are counted."""
    return [
        SummaryRow(visible(entry.label), "parameters", found=sentences(entry.result)[0])
        for entry in content.of(Parameters)
    ]


def _table(entry: PageEntry[Parameters]) -> Table:
    listed = entry.result.parameters
    return Table(
        f"Parameters of {entry.label}",
        [
            words("counted", ["✓" if one.counted else "" for one in listed]),
            words("tensor", [one.name for one in listed]),
            words("shape", ["×".join(map(str, one.shape)) or "scalar" for one in listed]),
            column("values", [float(one.numel) for one in listed], lambda x: f"{x:,.0f}"),
            words("dtype", [one.dtype for one in listed]),
            words("layer", [one.layer_name for one in listed]),
            words("role", [role(one) for one in listed]),
        ],
    )
