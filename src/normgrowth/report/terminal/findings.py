"""Findings of lint as a table, with one row for equal findings at several steps or in several tensors."""

from typing import TYPE_CHECKING

from normgrowth.lint.result import Findings
from normgrowth.report.columns.findings import columns
from normgrowth.report.terminal.console import literal, say, say_remarks, show_table

if TYPE_CHECKING:
    from rich.console import Console


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
    if shown := columns([finding for finding in findings if finding.kind != "mixed"]):
        show_table(console, shown)
    for finding in mixed:  # below the table, which would wrap the suggested commands
        console.print(literal(console, f"{finding.label}: {finding.why}", "red"), soft_wrap=True)
    faults, remarks = len(findings.faults), len(findings.remarks)
    said = f"{_count(faults, 'fault')}, {_count(remarks, 'remark')}." if findings else "Nothing found."
    say(console, said, "bold red" if faults else "bold")
    say_remarks(console, findings)


def _count(number: int, word: str) -> str:
    return f"{number or 'no'} {word}{'' if number == 1 else 's'}"
