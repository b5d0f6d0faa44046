"""Intervals: the rows of one thing in a trace, and what is measured between its checkpoints."""

from itertools import pairwise
from math import nan

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import InputError
from normgrowth.records import Records

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]


def rows_of(records: Records, level: str, name: str | None) -> Records:
    """The rows of one layer, role, tensor or the model."""
    rows = records.where(level=level)
    rows.single_run()
    if name is None:
        return rows
    names = rows.distinct("name")
    if name not in names:
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        raise InputError(f"there is no {level} {name!r}; there is {', '.join(names[:8]) or 'none'}{more}")
    return rows.where(name=name)


def intervals_of(records: Records, level: str, name: str | None) -> Records:
    """The same, with comparisons between measured steps only, as a trace has them.

    A tracker compares single optimizer steps: with every=1 these are such comparisons, all but that of the first
    measured step if the weights before it are not known.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = rows_of(records, level, name)
    sizes = rows.where(quantity="step_size").compared_with().table["step"].to_pylist()
    steps = sorted(set(rows.where(quantity="norm").table["step"].to_pylist()))
    single = bool(steps) and (steps[0] in sizes or "gradient_norm" in rows.distinct("quantity"))
    if not single:
        return rows
    if any(later - step > 1 for step, later in pairwise(steps)):
        raise InputError(
            "these are single optimizer steps with others between them: the distance between the measured weights is "
            "not known; track with every=1, or trace the run's checkpoints"
        )
    of_weights = pc.is_in(rows.table["quantity"], pa.array(("norm", "rms", "largest", "numel", "nonfinite")))  # pyright: ignore[reportAttributeAccessIssue]
    kept = pc.or_(of_weights, pc.not_equal(rows.table["step"], steps[0]))  # pyright: ignore[reportAttributeAccessIssue]
    return Records(rows.table.filter(kept))


def sizes_between(rows: Records, level: str, steps: Steps) -> Floats:
    """The distance of each measured step to the one before."""
    ends, sizes = rows.series("step_size", level=level)
    if (lacking := np.setdiff1d(steps[1:], ends)).size:
        raise InputError(
            f"no step size at step {lacking[0]}{f' and {lacking.size - 1} more' if lacking.size > 1 else ''}: the "
            "checkpoint before was deleted before it was compared; trace a part of the series without gaps"
        )
    return sizes


def value_at(rows: Records, step: int, quantity: str, level: str, reference: str | None = None) -> float:
    """One value; NaN where there is none."""
    there = rows.where(step=step, quantity=quantity).compared_with(reference)
    return float(there.series(quantity, level=level, reference=reference)[1][0]) if len(there) else nan
