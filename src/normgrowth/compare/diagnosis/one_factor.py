"""Whether the values of nearly all tensors differ by one factor."""

from math import exp

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MOST = 0.9  # this fraction of the tensors counts as all
SAME_FACTOR = 0.1  # relative: a factor is common if the log of nearly all ratios is this close to the median


def one_factor(a: Floats, b: Floats) -> float | None:
    """Return b over a if it is nearly the same for nearly all values, which must be positive; None if it is 1."""
    if not len(a):
        return None
    logs = np.log(b / a)
    middle = float(np.median(logs))
    near = np.abs(logs - middle) <= SAME_FACTOR * abs(middle)
    return exp(middle) if middle and near.mean() >= MOST else None
