"""Findings of lint as a table: equal findings at several steps or in several tensors are one row."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from normgrowth.report.terminal.console import Cells, literal, new_console, say, show

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = 3  # steps or tensors that are named before the rest is counted


def print_findings(
    findings: Iterable[Mapping[str, Any]],
    *,
    source: str,
    steps: Sequence[int],
    checked: str = "",
    console: "Console | None" = None,
) -> None:
    """Print a table of findings (step, name, kind, why, label and severity of each).

    steps: of the checkpoints that were read; checked: which parameters were, for the header.
    """
    console, found = console or new_console(), list(findings)
    mixed = [finding for finding in found if finding["kind"] == "mixed"]
    rows = finding_rows([finding for finding in found if finding not in mixed])
    span = f"{len(steps):,} checkpoints, steps {steps[0]:,} to {steps[-1]:,}"
    say(console, f"{source}: {span if len(steps) > 1 else f'one checkpoint, step {steps[0]:,}'}", "bold")
    if checked:
        say(console, f"checked: {checked}")
    if rows:
        titles = ("step", "kind", "", "tensor or file", "why")
        columns = [list(cells) for cells in zip(*rows, strict=True)]
        widest = (0.3, 0.2, 0.1, 0.3, 0.6)
        show(
            console,
            [
                Cells(title, cells, right=False, widest=width)
                for title, cells, width in zip(titles, columns, widest, strict=True)
                if any(cells)
            ],
        )
    for finding in mixed:  # not in the table, where its commands would be folded
        console.print(literal(console, f"{finding['label']}: {finding['why']}", "red"), soft_wrap=True)
    faults = sum(finding["severity"] == "fault" for finding in found)
    remarks = len(found) - faults
    said = "Nothing found." if not found else f"{_count(faults, 'fault')}, {_count(remarks, 'remark')}."
    say(console, said, "bold red" if faults else "bold")


def finding_rows(found: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str, str, str]]:
    def alike(finding: Mapping[str, Any]) -> tuple[str, str, str]:
        return finding["severity"], finding["kind"], finding["why"]

    by_step: dict[tuple[Any, ...], list[str]] = {}
    for finding in found:
        what = finding["label"] if finding["kind"] in ("partial", "mixed", "data") else finding["name"]
        by_step.setdefault((finding["step"], *alike(finding)), []).append(what)
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
