"""How much the rounding of published norms and cosines can change what follows from them."""

import numpy as np
from numpy.typing import NDArray

from normgrowth.dynamics.observed.intervals import Floats
from normgrowth.dynamics.result import GrowthBudget, Rounding
from normgrowth.records import Records


def rounding(
    rows: Records, level: str, steps: NDArray[np.int64], norms: Floats, sizes: Floats, budget: GrowthBudget
) -> Rounding | None:
    """Return the bounds that the records have, and those of the growth budget; None for measured numbers."""
    if not len(rows.where(quantity="norm_rounding")):
        return None
    of_norms, of_sizes, of_alignments = (
        rows.series(f"{quantity}_rounding", level=level)[1] for quantity in ("norm", "step_size", "alignment")
    )
    # The records have the bound of a square divided by twice its root.
    squares, summed = 2 * norms * of_norms, steps[1:] <= budget.until
    growth = float(squares[0] + squares[steps <= budget.until][-1])
    stepped, of_steps = budget.by_steps * budget.growth, float((2 * sizes * of_sizes)[summed].sum())
    least, most = ((stepped + sign * of_steps) / (budget.growth - sign * growth) for sign in (-1, 1))
    share = max(most - budget.by_steps, budget.by_steps - least)
    norm, size, alignment = (tuple(bound.tolist()) for bound in (of_norms, of_sizes, of_alignments))
    return Rounding(norm, size, alignment, growth, share)
