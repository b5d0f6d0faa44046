"""Lint: integrity checks of a series. Copies, other runs, stale tensors, swapped steps, damaged files."""

TYPE_CHECKING = False  # as in typing, without its import: `import normgrowth` stays light
if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from normgrowth.lint.reading import Progress
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
    """Integrity checks of a series of checkpoints: findings in the order of steps, none if all is well.

    source: where the checkpoints are, or a `Trace`, which was checked while it was measured: then nothing is read,
    and the parameters are those of the trace. A finding has `.step`, `.name` (the tensor, or "" for the whole
    checkpoint), `.kind`, `.why`, `.label` (the file) and `.severity`: "fault", or "remark" for what honest training
    does too. A checkpoint that cannot be read is a finding, and the rest is still checked. Files of another series
    or of data are findings, too, and the largest series is checked.
    out: output folder for the findings. overwrite: replace another result there.
    """
    from normgrowth.lint.check_series import findings_of_trace, lint_series
    from normgrowth.trace.result import Trace

    if isinstance(source, Trace):
        findings = findings_of_trace(source)
    else:
        findings = lint_series(
            source,
            include=include,
            select=select,
            exclude=exclude,
            endpoint=endpoint,
            workers=workers,
            progress=progress,
        )
    if out is not None:
        findings.save(out, overwrite=overwrite)
    return findings
