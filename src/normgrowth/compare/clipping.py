"""Gradient clipping: its threshold in a run, and the gradients before it."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from normgrowth.compare.alignment import Aligned
from normgrowth.compare.step_stages import RunValues

Floats = NDArray[np.float64]

CONSTANT = 1e-3  # relative: gradient norms this close to the largest one count as clipped
CLIPPED_STEPS = 3


def clipped_alike(pair: Aligned) -> bool:
    """Return whether both runs recorded how they clip, to the same norm.

    Otherwise gradients are compared after clipping, so that different thresholds are seen.
    """
    recorded = all(np.isfinite(run.clip_coefficient).any() for run in (pair.a, pair.b))
    return recorded and same_threshold(pair)


def before_clipping(run: RunValues) -> RunValues:
    """Return the run with the gradients before clipping, at steps where it was recorded."""
    coefficient = np.where(run.clip_coefficient > 0, run.clip_coefficient, 1.0)
    return replace(run, values={**run.values, "gradient": run.values["gradient"] / coefficient[:, None]})


def same_threshold(pair: Aligned) -> bool:
    """Return whether one threshold of gradient clipping fits the gradient norms of both runs.

    A run whose gradients are smaller is not changed by it.
    """
    thresholds = [found for run in (pair.a, pair.b) if (found := threshold(run)) is not None]
    if not thresholds:
        return False
    largest = [np.nanmax(whole_gradient(run)) for run in (pair.a, pair.b)]
    return bool(max(largest) <= (1 + 10 * CONSTANT) * min(thresholds))


def whole_gradient(run: RunValues) -> Floats:
    return np.sqrt(np.nansum(run.values["gradient"] ** 2, axis=1))


def threshold(run: RunValues) -> float | None:
    """Return the largest gradient norm of the model if many steps reach it, which indicates clipping."""
    norms = whole_gradient(run)
    norms = norms[(norms > 0) & np.isfinite(norms)]
    if not len(norms):
        return None
    reached = norms > (1 - CONSTANT) * norms.max()
    return float(norms.max()) if reached.sum() >= max(CLIPPED_STEPS, len(norms) / 2) else None
