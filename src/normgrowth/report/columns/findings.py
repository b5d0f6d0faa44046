"""Findings of lint: a row for equal findings at several steps or in several tensors."""

from collections.abc import Iterable, Sequence
from typing import Any

from normgrowth.report.table_columns import Column, words
from normgrowth.trace.sampling.finding import Finding

SHOWN = 3  # steps or tensors that are listed; the rest is counted
TITLES = {
    "step": 0.3,
    "kind": 0.2,
    "severity": 0.1,
    "tensor or file": 0.3,
    "why": 0.6,
}  # with their largest widths


def columns(findings: Sequence[Finding]) -> list[Column]:
    """Step, kind, severity (empty for a fault), tensor or file, and why; without empty columns."""
    by_step: dict[tuple[Any, ...], list[str]] = {}
    for finding in findings:
        what = finding.label if finding.kind in ("partial", "mixed", "data") else finding.name
        alike = finding.step, finding.severity, finding.kind, finding.why
        by_step.setdefault(alike, []).append(what)
    by_why: dict[tuple[Any, ...], list[Any]] = {}
    for (step, *rest), names in by_step.items():
        by_why.setdefault((*rest, *names), []).append(step)
    rows = [
        (_some(steps), kind, "" if severity == "fault" else severity, _some(filter(None, names)), why)
        for (severity, kind, why, *names), steps in by_why.items()
    ]
    cells = zip(TITLES.items(), zip(*rows, strict=True), strict=True) if rows else ()
    return [words(title, own, widest=width) for (title, width), own in cells if any(own)]


def _some(items: Iterable[Any]) -> str:
    words = ["?" if item is None else f"{item:,}" if isinstance(item, int) else str(item) for item in items]
    separator = " " if any(len(word) > 12 for word in words) else ", "
    if len(words) <= SHOWN + 1:
        return separator.join(words)
    return f"{separator.join(words[:SHOWN])} and {len(words) - SHOWN} more"
