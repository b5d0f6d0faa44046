"""Findings of lint as a table, with one row for equal findings at several steps or in several tensors."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from normgrowth.lint.result import Findings
from normgrowth.report.terminal.console import Cells, literal, say, say_remarks
from normgrowth.report.terminal.console import show as show_table
from normgrowth.trace.sampling.finding import Finding

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = 3  # steps or tensors that are listed; the rest is counted
TITLES = {"step": 0.3, "kind": 0.2, "": 0.1, "tensor or file": 0.3, "why": 0.6}  # with their largest widths


def show(findings: Findings, console: "Console") -> None:
    steps = findings.steps
    if len(steps) > 1:
        span = f"{len(steps):,} checkpoints, steps {steps[0]:,} to {steps[-1]:,}"
    else:
        span = f"one checkpoint, step {steps[0]:,}" if steps else "no checkpoints"
    say(console, f"{findings.source}: {span}", "bold")
    if findings.of_tensors:
        say(console, f"checked: {findings.checked}")
    mixed = [finding for finding in findings if finding.kind == "mixed"]
    if rows := finding_rows([finding for finding in findings if finding.kind != "mixed"]):
        columns = zip(TITLES.items(), zip(*rows, strict=True), strict=True)
        cells = [Cells(title, list(own), right=False, widest=width) for (title, width), own in columns]
        show_table(console, [column for column in cells if any(column.cells)])
    for finding in mixed:  # below the table, which would wrap the suggested commands
        console.print(literal(console, f"{finding.label}: {finding.why}", "red"), soft_wrap=True)
    faults, remarks = len(findings.faults), len(findings.remarks)
    said = f"{_count(faults, 'fault')}, {_count(remarks, 'remark')}." if findings else "Nothing found."
    say(console, said, "bold red" if faults else "bold")
    say_remarks(console, findings)


def finding_rows(findings: Sequence[Finding]) -> list[tuple[str, str, str, str, str]]:
    """Rows of a table: step, kind, severity (empty for a fault), tensor or file, and why."""
    by_step: dict[tuple[Any, ...], list[str]] = {}
    for finding in findings:
        what = finding.label if finding.kind in ("partial", "mixed", "data") else finding.name
        alike = finding.step, finding.severity, finding.kind, finding.why
        by_step.setdefault(alike, []).append(what)
    by_why: dict[tuple[Any, ...], list[Any]] = {}
    for (step, *rest), names in by_step.items():
        by_why.setdefault((*rest, *names), []).append(step)
    return [
        (_some(steps), kind, "" if severity == "fault" else severity, _some(filter(None, names)), why)
        for (severity, kind, why, *names), steps in by_why.items()
    ]


def _some(items: Iterable[Any]) -> str:
    words = ["?" if item is None else f"{item:,}" if isinstance(item, int) else str(item) for item in items]
    separator = " " if any(len(word) > 12 for word in words) else ", "
    if len(words) <= SHOWN + 1:
        return separator.join(words)
    return f"{separator.join(words[:SHOWN])} and {len(words) - SHOWN} more"


def _count(number: int, word: str) -> str:
    return f"{number or 'no'} {word}{'' if number == 1 else 's'}"
