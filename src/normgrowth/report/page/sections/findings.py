"""The findings of the integrity checks, and the notes and problems of all results."""

from collections.abc import Sequence

from normgrowth.lint.finding import Finding
from normgrowth.lint.result import Findings
from normgrowth.network.saturation.saturation import Saturation
from normgrowth.report.page.content import Content
from normgrowth.report.page.pieces import Section, Table, words
from normgrowth.report.terminal.findings import finding_rows
from normgrowth.trace.result import Trace

TITLES = ("step", "kind", "severity", "tensor or file", "why")


def sections(content: Content) -> list[Section]:
    items = []
    for label, found in _checked(content):
        if rows := finding_rows(found):
            columns = [words(t, c) for t, c in zip(TITLES, zip(*rows, strict=True), strict=True)]
            items.append(Table(f"Lint of {label}", columns))
    notes = [
        f"{entry.label}: {note}"
        for entry in content.entries
        for note in (*entry.result.problems, *entry.result.notes)
    ]
    clean = [
        f"{entry.label}: lint found nothing." for entry in content.of(Findings) if not entry.result.findings
    ]
    return (
        [Section("findings", "Notes on the data", [*clean, *notes], items)] if clean or items or notes else []
    )


def summary(content: Content) -> list[str]:
    checked = _checked(content)
    count = sum(len(found) for _, found in checked)
    if not checked:
        return []
    return [f"Lint: {count} finding{'' if count == 1 else 's'}." if count else "Lint found nothing."]


def _checked(content: Content) -> list[tuple[str, Sequence[Finding]]]:
    """The label and the findings of each result that was checked."""
    return [
        (entry.label, entry.result.findings)
        for entry in content.entries
        if isinstance(entry.result, Findings | Trace | Saturation) and entry.result.findings is not None
    ]
