"""Lint: check the integrity of a series (copies, other runs, stale tensors, swapped steps, damaged files)."""

TYPE_CHECKING = False  # not imported from typing, so that `import normgrowth` stays fast
if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from normgrowth.engine import Progress
    from normgrowth.lint.result import Findings
    from normgrowth.trace.result import Trace


def lint(
    source: "str | Path | Iterable[str | Path] | Trace",
    out: "str | Path | None" = None,
    *,
    overwrite: bool = False,
    include: str = "all",
    select: str | None = None,
    exclude: str | None = None,
    endpoint: str | None = None,
    workers: int | None = None,
    progress: "Progress | None" = None,
) -> "Findings":
    """Check a series of checkpoints; return findings in the order of steps, empty if nothing is wrong.

    source: a source of checkpoints, or a `Trace`. For a trace, return the findings that it stores, without reading a
    file; the checked parameters are those of the trace.
    out: output folder for the findings. overwrite: replace another result in this folder.

    A finding has `.step`, `.name` (the tensor, or "" for the whole checkpoint), `.kind`, `.why`, `.label` (the file)
    and `.severity`: "fault", or "remark" for an observation that normal training can explain. An unreadable checkpoint
    is a finding, and the other checkpoints are still checked. If the source mixes several series or data files, these
    are findings as well, and the largest series is checked.

    >>> findings = ng.lint("checkpoints")
    >>> len(findings.faults)
    0
    """
    from pathlib import Path

    from normgrowth.lint.check_series import findings_of_trace, lint_series
    from normgrowth.measurements import identities
    from normgrowth.trace.result import Trace
    from normgrowth.workspace import ResultFolder

    if not isinstance(source, str | Path | Trace):
        source = list(source)
    options = {"include": include, "select": select, "exclude": exclude, "endpoint": endpoint}
    folder = ResultFolder(out, "findings", {**identities(out, source=source), **options}, overwrite)
    if isinstance(source, Trace):
        findings = findings_of_trace(source)
    else:
        findings = lint_series(source, **options, workers=workers, progress=progress)
    folder.write(findings)
    return findings
