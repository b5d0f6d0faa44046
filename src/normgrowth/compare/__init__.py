"""Compare: two traces side by side."""

TYPE_CHECKING = False  # as in typing, without its import: `import normgrowth` stays light
if TYPE_CHECKING:
    from pathlib import Path

    from normgrowth.compare.result import Comparison
    from normgrowth.records import Records
    from normgrowth.trace.result import Trace


def compare(a: "Trace | Records | str | Path", b: "Trace | Records | str | Path") -> "Comparison":
    """Norm, growth, direction and budget of each layer and of the model, in two traces.

    a, b: traces, their records, or output folders. Taken at the last step that both have, unless one of them begins
    there, when there would be no growth to compare: then at each one's own last step; `matched` says which.
    """
    from normgrowth.compare.side_by_side import compared_traces

    return compared_traces(a, b)
