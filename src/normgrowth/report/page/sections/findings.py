"""The findings of the integrity checks, and the notes and problems of all results."""

from collections.abc import Sequence

from normgrowth.lab.run import Run
from normgrowth.lint.result import Findings
from normgrowth.network.saturation.result import Saturation
from normgrowth.report.columns.findings import columns
from normgrowth.report.page.content import Content
from normgrowth.report.page.pieces import Section, SummaryRow
from normgrowth.report.sentences.parting_cause import some
from normgrowth.report.table_columns import Table
from normgrowth.text import visible
from normgrowth.trace.result import Trace
from normgrowth.trace.sampling.finding import Finding

NAMED = 3  # results that a sentence names


def sections(content: Content) -> list[Section]:
    tables = [(label, columns(found)) for label, found in _checked(content)]
    items = [Table(f"Lint of {label}", shown) for label, shown in tables if shown]
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


def rows(content: Content) -> list[SummaryRow]:
    """A row for each result of lint."""
    found = []
    for entry in content.of(Findings):
        steps = entry.result.steps
        span = f"{steps[0]:,} to {steps[-1]:,} ({len(steps)} checkpoints)" if steps else ""
        said = f"{_findings(len(entry.result.findings))} in {entry.result.checked}"
        found.append(SummaryRow(visible(entry.label), "lint", span, found=said))
    return found


def summary(content: Content) -> list[str]:
    """The number of findings in each result that was checked, and the runs that were not checked."""
    checked = _checked(content)
    if not checked:
        return []
    labels = {label for label, _ in checked}
    counts = ", ".join(f"{_findings(len(found))} in {visible(label)}" for label, found in checked[:NAMED])
    more = f" and {len(checked) - NAMED} more results" if len(checked) > NAMED else ""
    others = [
        visible(entry.label)
        for entry in content.entries
        if entry.label not in labels and isinstance(entry.result, Trace | Run)
    ]
    rest = f" Not checked: {some(others)}." if others else ""
    return [f"Lint: {counts}{more}.{rest}"]


def _findings(count: int) -> str:
    return f"{count or 'no'} finding{'' if count == 1 else 's'}"


def _checked(content: Content) -> list[tuple[str, Sequence[Finding]]]:
    """The label and the findings of each result that was checked."""
    return [
        (entry.label, entry.result.findings)
        for entry in content.entries
        if isinstance(entry.result, Findings | Trace | Saturation) and entry.result.findings is not None
    ]
