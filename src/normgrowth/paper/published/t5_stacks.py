"""T5's encoder and decoder separately.

The published layers are those of the encoder, the published total covers encoder and decoder. Squares and inner
products of disjoint parameters add, so the encoder is the sum of its layers, and the decoder is the total minus the
encoder.

The published values are rounded: norms to 0.01, cosines to 10⁻⁶. Each sum carries a bound of the error that this
rounding can cause; bounds add, whether sums are added or subtracted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from normgrowth.moments.moments import Pair
from normgrowth.paper.published.tables import Column, derived, published

Floats = NDArray[np.float64]
Stack = Literal["both", "encoder", "decoder"]
STACKS: tuple[Stack, ...] = get_args(Stack)
NORM_ERROR, COSINE_ERROR = 0.005, 5e-7  # half of the last published digit


@dataclass(frozen=True)
class Sums:
    """‖θ‖² of each checkpoint, ⟨θ,δ⟩ and ‖δ‖² of each interval. errors: bounds of their rounding errors."""

    step: Column
    square: Floats
    dot: Floats
    delta: Floats

    def combined(self, other: "Sums", sign: int) -> "Sums":
        return Sums(
            self.step,
            self.square + sign * other.square,
            self.dot + sign * other.dot,
            self.delta + sign * other.delta,
        )


@dataclass(frozen=True)
class StackSums:
    sums: Sums
    errors: Sums

    def __add__(self, other: "StackSums") -> "StackSums":
        return StackSums(self.sums.combined(other.sums, 1), self.errors.combined(other.errors, 1))

    def __sub__(self, other: "StackSums") -> "StackSums":
        return StackSums(self.sums.combined(other.sums, -1), self.errors.combined(other.errors, 1))

    def norms(self) -> dict[str, Column]:
        """`norm` of each checkpoint, and `norm_rounding`."""
        norm = np.sqrt(self.sums.square)
        return {"step": self.sums.step, "norm": norm, "norm_rounding": self.errors.square / (2 * norm)}

    def steps(self) -> dict[str, Column]:
        """The columns of `published("t5_steps")`, `cosine_to_previous` and the rounding of step size and alignment."""
        sums, errors = self.sums, self.errors
        before = sums.square[:-1]
        found = derived(sums.step, sums.square, Pair(before, sums.dot, sums.delta))
        size_error = errors.delta / (2 * found["step_size"])
        relative = errors.delta / (2 * sums.delta) + errors.square[:-1] / (2 * before)
        of_dot = errors.dot / np.sqrt(before * sums.delta)
        return found | {
            "cosine_to_previous": np.cos(found["angle"]),
            "step_size_rounding": size_error,
            "alignment_rounding": of_dot + np.abs(found["alignment"]) * relative,
        }


def t5_sums(stack: Stack) -> StackSums:
    """The sums of the encoder, the decoder, or both."""
    if stack == "both":
        return _sums(published("t5_norm"), published("t5_direction"))
    norms, directions = published("t5_norm_by_layer"), published("t5_direction_by_layer")
    layers = (_sums(norms.layer(number), directions.layer(number)) for number in np.unique(norms["layer"]))
    encoder = reduce(StackSums.__add__, layers)
    return encoder if stack == "encoder" else t5_sums("both") - encoder


def _sums(norms: Mapping[str, Column], directions: Mapping[str, Column]) -> StackSums:
    """With n₀, n₁ the norms and k their cosine: ⟨θ,δ⟩ = n₀n₁k − n₀², ‖δ‖² = n₀² + n₁² − 2n₀n₁k.

    The errors are bounds for independent changes of n₀ and n₁ by NORM_ERROR and of k by COSINE_ERROR, including all
    products of changes.
    """
    norm, cosine = norms["norm"], directions["cosine_to_previous"]
    before, after = norm[:-1], norm[1:]
    product = before * after * cosine
    h, e = NORM_ERROR, COSINE_ERROR
    of_cosine = (before + h) * (after + h) * e
    values = Sums(norms["step"], norm**2, product - before**2, before**2 + after**2 - 2 * product)
    errors = Sums(
        norms["step"],
        (2 * norm + h) * h,
        (np.abs(after * cosine - 2 * before) + before + 2 * h) * h + of_cosine,
        2 * (np.abs(before - after * cosine) + np.abs(after - before * cosine) + 2 * h) * h + 2 * of_cosine,
    )
    return StackSums(values, errors)
