"""Lint: integrity checks of a series. Copies, other runs, stale tensors, swapped steps, damaged files."""

TYPE_CHECKING = False  # as in typing, without its import: `import normgrowth` stays light
if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from normgrowth.lint.reading import Progress
    from normgrowth.lint.series import Report


def lint(
    source: "str | Path | Iterable[str | Path]",
    *,
    include: str = "all",
    select: str | None = None,
    exclude: str | None = None,
    endpoint: str | None = None,
    workers: int | None = None,
    progress: "Progress | None" = None,
) -> "Report":
    """Integrity checks of a series of checkpoints: a list of findings in the order of steps, empty if all is well.

    A finding has `.step`, `.name` (the tensor, or "" for the whole checkpoint), `.kind`, `.why`, `.label` (the
    file) and `.severity`: "fault", or "remark" for what honest training does too. A checkpoint that cannot be
    read is a finding, and the rest is still checked. Files of another series or of data are findings, too, and the
    largest series is checked.
    """
    from normgrowth.lint.series import lint_series

    return lint_series(
        source,
        include=include,
        select=select,
        exclude=exclude,
        endpoint=endpoint,
        workers=workers,
        progress=progress,
    )
