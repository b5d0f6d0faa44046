"""Compare: find where two runs diverge, and compare their growth."""

TYPE_CHECKING = False  # not imported from typing, so that `import normgrowth` stays fast
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
    out: "Path | str | None" = None,
    overwrite: bool = False,
) -> "Comparison":
    """Return the first step and tensor at which two runs differ by more than rounding, the cause, and their growth.

    a, b: traces, their records, or output folders; from trackers, from checkpoints, or one of each.
    control: a third run that should agree with a, such as a repetition; its differences from a set the noise floor.
    tolerance: treat relative differences up to this as equal, even above the noise floor.
    out: output folder. overwrite: replace another result in this folder.

    Growth (`rows`) is compared at the last common step, and `matched` is True. If one run starts at that step, it has
    no growth there: then each run is evaluated at its own last step, and `matched` is False.

    >>> a, b = ng.trace("checkpoints"), ng.trace("checkpoints")
    >>> found = ng.compare(a, b)
    >>> found.parted
    False
    """
    from normgrowth.compare.runs import compared_runs
    from normgrowth.measurements import identities
    from normgrowth.workspace import ResultFolder

    request = {**identities(out, a=a, b=b, control=control), "tolerance": tolerance}
    folder = ResultFolder(out, "comparison", request, overwrite)
    found = compared_runs(a, b, control, tolerance)
    folder.write(found)
    return found
