"""Moments: the sums from which every norm, cosine, step size and angle is computed.

For weights b and a reference r (the previous checkpoint, the first one, or one some lag back), with δ = b − r,
the sums are

    of b alone:    numel, Σb², largest |b|, number of non-finite values
    against r:     Σr², Σr·δ, Σδ²

all in float64. They add over chunks, shards, tensors, ranks and machines, so a quantity of a layer or of the model is
computed from its summed moments. Σr·δ is summed directly: computing it as Σr·b − Σr² would lose half of the
digits for a relative step of 1e-6.

`quantities`, `accumulated` and `product_square` are the only definitions of the measured quantities.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CHUNK = 1 << 20  # values per task; fixed, so results do not depend on the number of cores


@dataclass(frozen=True)
class Pair:
    """Sums of each item against one reference: Σr², Σr·δ, Σδ²."""

    square: Floats
    dot: Floats
    delta: Floats


@dataclass(frozen=True)
class Moments:
    """Sums of n items (tensors, layers or a model), with one array entry per item."""

    numel: NDArray[np.int64]
    square: Floats
    largest: Floats
    nonfinite: NDArray[np.int64]
    against: Mapping[str, Pair] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.numel)

    @property
    def alone(self) -> "Moments":
        """The moments without the sums against references."""
        return Moments(self.numel, self.square, self.largest, self.nonfinite)

    def grouped(self, group: NDArray[np.integer] | Sequence[int], size: int) -> "Moments":
        """Add up the items of each group: item i belongs to group[i] < size; −1 drops it."""
        group = np.asarray(group, np.intp)
        chosen = group >= 0
        group = group[chosen]

        def add(values: NDArray[np.generic]) -> Floats:
            return np.bincount(group, values[chosen], size).astype(np.float64, copy=False)

        largest = np.zeros(size)
        np.maximum.at(largest, group, self.largest[chosen])
        return Moments(
            numel=add(self.numel).astype(np.int64),
            square=add(self.square),
            largest=largest,
            nonfinite=add(self.nonfinite).astype(np.int64),
            against={name: Pair(*map(add, vars(pair).values())) for name, pair in self.against.items()},
        )

    def chosen(self, items: Sequence[int]) -> "Moments":
        """The items with these indices, in this order."""
        alone = (self.numel[items], self.square[items], self.largest[items], self.nonfinite[items])
        pairs = {
            name: Pair(*(column[items] for column in vars(pair).values()))
            for name, pair in self.against.items()
        }
        return Moments(*alone, pairs)

    def __add__(self, other: "Moments") -> "Moments":
        """The moments of two parts combined, item by item: of two shards or two ranks."""
        if self.against.keys() != other.against.keys():
            raise ValueError("cannot add moments against different references")
        return Moments(
            self.numel + other.numel,
            self.square + other.square,
            np.maximum(self.largest, other.largest),
            self.nonfinite + other.nonfinite,
            {
                name: Pair(*map(np.add, vars(pair).values(), vars(other.against[name]).values()))
                for name, pair in self.against.items()
            },
        )

    @staticmethod
    def from_columns(numel: NDArray[np.int64], columns: Floats, references: Sequence[str]) -> "Moments":
        """Moments from the kernel's columns: three for b, then three for each reference."""
        square, largest, nonfinite = columns[:, :3].T
        return Moments(
            numel,
            square,
            largest,
            nonfinite.astype(np.int64),
            {name: Pair(*columns[:, 3 * i + 3 : 3 * i + 6].T) for i, name in enumerate(references)},
        )


PREVIOUS = "previous"  # the reference of a step: the previous checkpoint, or the weights before the step


def quantities(moments: Moments) -> dict[str, Floats]:
    """The quantities of b and, if its sums against the previous checkpoint are known, of the step from there.

    >>> sums = ng.Moments(
    ...     numel=np.array([4]), square=np.array([9.0]), largest=np.array([2.0]), nonfinite=np.array([0])
    ... )
    >>> float(ng.quantities(sums)["norm"][0])
    3.0
    """
    by = by_reference(moments)
    return by[None] | by.get(PREVIOUS, {})


def by_reference(moments: Moments) -> dict[str | None, dict[str, Floats]]:
    """Reference -> quantity -> values; the key None has the quantities of b alone. Undefined values are NaN."""
    n = moments.numel
    with np.errstate(divide="ignore", invalid="ignore"):
        alone: dict[str, Floats] = {
            "norm": np.sqrt(moments.square),
            "rms": np.sqrt(moments.square / n),
            "largest": moments.largest,
            "numel": n.astype(np.float64),
            "nonfinite": moments.nonfinite.astype(np.float64),
        }
    return {None: alone} | {reference: _comparison(moments, reference) for reference in moments.against}


def _comparison(moments: Moments, reference: str) -> dict[str, Floats]:
    """The quantities of the step from a reference to b: all for the previous checkpoint, fewer for other references.

    Angles are as accurate as δ: exact to rounding for steps up to the size of the weights, and with an error of
    about 1e-16·‖r‖/‖b‖ for a tensor that shrank to almost zero, because δ then loses the digits of b.
    """
    pair = moments.against[reference]
    rr, rd, dd = pair.square, pair.dot, pair.delta
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        norm = np.sqrt(rr)
        step = np.sqrt(dd)
        radial = rd / norm  # the signed component of δ along r
        tangential = np.sqrt(np.maximum(dd - radial * radial, 0.0))
        # Computed from δ: the arccos of a cosine cannot resolve angles below 1e-8.
        angle = np.where((rr > 0) & (moments.square > 0), np.arctan2(tangential, norm + radial), np.nan)
        angle = np.where(np.isfinite(rr + rd + dd), angle, np.nan)
        values = {"cosine": np.cos(angle), "angle": angle}
        if reference.startswith("lag"):
            return values
        values["step_size"] = step
        if reference != PREVIOUS:
            return values
        growth = 2 * rd + dd
        whole = np.where(growth == 0, np.nan, growth)
        return values | {
            "relative_step": step / norm,
            "alignment": np.clip(radial / step, -1.0, 1.0),
            "radial": radial,
            "tangential": tangential,
            "growth": growth,
            "growth_alignment": 2 * rd,
            "growth_steps": dd,
            "share_alignment": 2 * rd / whole,
            "share_steps": dd / whole,
        }


# The terms of the growth budget ‖θ'‖² − ‖θ‖² = 2⟨θ,δ⟩ + ‖δ‖², which add up over intervals.
BUDGET = ("growth", "growth_alignment", "growth_steps")


def accumulated(growth: Floats, alignment: Floats, steps: Floats) -> dict[str, Floats]:
    """The growth budget summed from the first interval up to each (axis 0), and the share of both terms."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        total, aligned, stepped = (np.cumsum(terms, axis=0) for terms in (growth, alignment, steps))
        whole = np.where(total == 0, np.nan, total)
        return {
            "total_growth": total,
            "total_growth_alignment": aligned,
            "total_growth_steps": stepped,
            "total_share_alignment": aligned / whole,
            "total_share_steps": stepped / whole,
        }


def product_square(up: Any, down: Any) -> Any:
    """‖BA‖² of the LoRA factors B (up) and A (down), arrays of numpy or torch: Σ (BᵀB)·(AAᵀ), entry by entry.

    Both products are r × r; BA itself is as large as the matrix that is adapted.
    """
    return ((up.T @ up) * (down @ down.T)).sum()
