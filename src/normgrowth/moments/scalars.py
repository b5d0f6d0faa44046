"""Scalars: the share of individual weights that grew since a reference, and by how much.

Proposition 1 of the paper is about every scalar parameter, and a norm does not describe individual ones. Counts add
over chunks, tensors and machines, so quantiles of a layer or of the model are computed from its summed histograms.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normgrowth.moments.moments import CHUNK, Floats

Counts = NDArray[np.int64]
SPAN, PER_UNIT = 8, 32  # bins of log(|b|/|r|): from −SPAN to SPAN, with PER_UNIT bins per unit
BINS = 2 * SPAN * PER_UNIT
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class ScalarCounts:
    """Counts of the scalars of n items, against a reference r.

    compared: scalars that are finite in both. grown: with |b| > |r|. sign_changed: with b·r < 0. histogram: (n, BINS),
    of log(|b|/|r|) where both are nonzero; the outer bins include all values beyond the range.
    """

    compared: Counts
    grown: Counts
    sign_changed: Counts
    histogram: Counts

    def chosen(self, items: Sequence[int]) -> "ScalarCounts":
        """The items with these indices, in this order."""
        return ScalarCounts(*(column[items] for column in self._columns()))

    def grouped(self, group: Sequence[int] | None, size: int) -> "ScalarCounts":
        """Add up the items of each group: item i belongs to group[i] < size; −1 drops it. None: return self."""
        if group is None:
            return self
        place = np.asarray(group, np.intp)
        kept = place >= 0

        def add(values: Counts) -> Counts:
            total = np.zeros((size, *values.shape[1:]), np.int64)
            np.add.at(total, place[kept], values[kept])
            return total

        return ScalarCounts(*map(add, self._columns()))

    def quantities(self) -> dict[str, Floats]:
        """Shares of the compared scalars, and quantiles of log(|b|/|r|) with the resolution of a bin."""
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = {
                "share_grown": self.grown / self.compared,
                "share_sign_changed": self.sign_changed / self.compared,
            }
        return shares | {f"log_ratio_q{round(100 * q):02d}": self._quantile(q) for q in QUANTILES}

    def _quantile(self, q: float) -> Floats:
        """The center of the bin in which the share q of the scalars is reached; NaN without scalars."""
        summed = self.histogram.cumsum(axis=1)
        total = summed[:, -1]
        place = (summed >= np.maximum(q * total, 1)[:, None]).argmax(axis=1)
        return np.where(total > 0, (place + 0.5) / PER_UNIT - SPAN, np.nan)

    def _columns(self) -> tuple[Counts, Counts, Counts, Counts]:
        return self.compared, self.grown, self.sign_changed, self.histogram


def count_scalars(values: Floats, reference: Floats) -> ScalarCounts:
    """The counts of one item, computed in chunks."""
    compared = grown = changed = 0
    histogram = np.zeros(BINS, np.int64)
    for start in range(0, len(values), CHUNK):
        b, r = values[start : start + CHUNK], reference[start : start + CHUNK]
        finite = np.isfinite(b) & np.isfinite(r)
        b, r = b[finite], r[finite]
        size, was = np.abs(b), np.abs(r)
        compared += len(b)
        grown += int((size > was).sum())
        changed += int((np.sign(b) * np.sign(r) < 0).sum())
        both = (size > 0) & (was > 0)
        bins = np.floor((np.log(size[both]) - np.log(was[both]) + SPAN) * PER_UNIT)
        histogram += np.bincount(np.clip(bins, 0, BINS - 1).astype(np.intp), minlength=BINS)
    counts = (np.array([count], np.int64) for count in (compared, grown, changed))
    return ScalarCounts(*counts, histogram=histogram[None])


def stacked(parts: Sequence[ScalarCounts]) -> ScalarCounts:
    """The items of all parts, one after the other."""
    return ScalarCounts(
        *(np.concatenate(columns) for columns in zip(*(p._columns() for p in parts), strict=True))
    )
