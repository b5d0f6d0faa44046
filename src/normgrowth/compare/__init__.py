"""Compare: where two runs part, and their growth side by side."""

TYPE_CHECKING = False  # as in typing, without its import: `import normgrowth` stays light
if TYPE_CHECKING:
    from pathlib import Path

    from normgrowth.compare.result import Comparison
    from normgrowth.records import Records
    from normgrowth.trace.result import Trace


def compare(
    a: "Trace | Records | str | Path",
    b: "Trace | Records | str | Path",
    *,
    control: "Trace | Records | str | Path | None" = None,
    tolerance: float = 0.0,
) -> "Comparison":
    """The first step and tensor at which two runs differ by more than rounding, the cause, and their growth.

    a, b: traces, their records, or output folders; of trackers, of checkpoints, or one of each.
    control: a third run that should agree with a, such as a repetition; its differences from a are the noise floor.
    tolerance: relative difference that counts as equal, where it is above the noise floor.

    Growth (`rows`) is taken at the last step that both have, unless one of them begins there, when there would be no
    growth to compare: then at each one's own last step; `matched` says which.
    """
    from normgrowth.compare.runs import compared_runs

    return compared_runs(a, b, control, tolerance)
