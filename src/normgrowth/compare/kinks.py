"""Jumps of the gradient at kinks of activations such as ReLU.

Where rounding changes the sign of one input of a ReLU, its whole gradient appears or vanishes. A single one of 590,000
changes the gradients of some tensors by up to 6e-4, when all differences before it are below 1e-6. The more
activations there are, the likelier is such a change, and the smaller its effect.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from normgrowth.compare.alignment import Aligned
from normgrowth.compare.clipping import same_threshold
from normgrowth.compare.diagnosis.one_factor import one_factor
from normgrowth.compare.noise import OF_SUMS

Floats = NDArray[np.float64]


def gradients_may_jump(pair: Aligned, differences: Mapping[str, Floats]) -> NDArray[np.bool_]:
    """Return for each step whether kinks may explain a small jump of the gradient.

    They do not while the weights are identical, and they change no gradients of all tensors by one factor.
    """
    before = differences.get("weights_before", np.zeros((len(pair.a.steps), 1)))
    with np.errstate(invalid="ignore"):
        differ: NDArray[np.bool_] = np.any(before > OF_SUMS, axis=1)
    if "gradient" not in differences or same_threshold(pair):  # clipping scales all gradients if one jumps
        return differ
    return differ & ~_one_factor(pair, differences["gradient"])


def _one_factor(pair: Aligned, differences: Floats) -> NDArray[np.bool_]:
    """Return for each step whether the gradients of all tensors differ by one factor."""
    a, b = (run.values["gradient"] for run in (pair.a, pair.b))
    compared = np.isfinite(differences) & (a > 0) & (b > 0)
    rows = zip(a, b, compared, strict=True)
    return np.array([one_factor(x[chosen], y[chosen]) is not None for x, y, chosen in rows], bool)
