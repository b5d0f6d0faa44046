"""Select the rows of the model or of one part of it, and the measurements between neighboring checkpoints."""

from itertools import pairwise
from math import nan

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import InputError
from normgrowth.records import Records

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]


def rows_of(records: Records, level: str, name: str | None) -> Records:
    """Return the rows of one layer, role or tensor, or of the model."""
    rows = records.where(level=level)
    rows.single_run()
    if name is None:
        return rows
    names = rows.distinct("name")
    if name not in names:
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        raise InputError(f"no {level} {name!r}; known: {', '.join(names[:8]) or 'none'}{more}")
    return rows.where(name=name)


def intervals_of(records: Records, level: str, name: str | None) -> Records:
    """Return the same rows, but only with comparisons between neighboring measured steps.

    The rows of a trace are returned unchanged. A tracker compares the weights before and after one optimizer step. This
    is the same only with every=1, and not at the first measured step, whose predecessor was not measured.
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
            "the tracker measured single optimizer steps with gaps between them, so distances between measured steps "
            "are unknown; track with every=1, or trace the checkpoints of the run"
        )
    of_weights = pc.is_in(rows.table["quantity"], pa.array(("norm", "rms", "largest", "numel", "nonfinite")))  # pyright: ignore[reportAttributeAccessIssue]
    kept = pc.or_(of_weights, pc.not_equal(rows.table["step"], steps[0]))  # pyright: ignore[reportAttributeAccessIssue]
    return Records(rows.table.filter(kept))


def sizes_between(rows: Records, level: str, steps: Steps) -> Floats:
    """Return ‖δ‖ between each measured step and the previous one."""
    ends, sizes = rows.series("step_size", level=level)
    if (lacking := np.setdiff1d(steps[1:], ends)).size:
        raise InputError(
            f"no step size at step {lacking[0]}{f' and {lacking.size - 1} more' if lacking.size > 1 else ''}: the "
            "previous checkpoint was deleted before it was compared; trace a part of the series without gaps"
        )
    return sizes


def value_at(rows: Records, step: int, quantity: str, level: str, reference: str | None = None) -> float:
    """Return the value of a quantity at a step; NaN if the records do not contain it."""
    there = rows.where(step=step, quantity=quantity).compared_with(reference)
    return float(there.series(quantity, level=level, reference=reference)[1][0]) if len(there) else nan
