"""Which scores of a row are the largest, within rounding, and how many rows have several."""

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from normgrowth.limit.dispatch import Operation
from normgrowth.limit.pass_log import Context
from normgrowth.limit.power_series import Series

# Scores of random queries and keys are some tenth of |q||k|: below a 16th they are small by accident.
SMALL = 16


@dataclass
class TieCounts:
    """The counts of a Tie, as they are found."""

    rows: int = 0
    tied: int = 0
    near: int = 0
    uniform: int = 0
    undecided: int = 0

    def add(self, other: "TieCounts") -> None:
        """The ties of other rows; rows are counted once, by whoever goes through them."""
        self.tied += other.tied
        self.near += other.near
        self.uniform += other.uniform
        self.undecided += other.undecided


def winners_of(value: Tensor, tolerance: Tensor, dim: int) -> tuple[Tensor, int]:
    """The largest entries of each row, and how many rows have some that are equal within the tolerance only.

    Equal keys tie in every row, and rounding parts them. Keys that come close in one row and differ in others
    are not equal: there the larger one wins.
    """
    largest = value.amax(dim, keepdim=True)
    winners = value >= largest - tolerance
    exact = value == largest
    near = (count_of_rows(winners, dim) > count_of_rows(exact, dim)) & torch.isfinite(largest).squeeze(dim)
    count = int(near.sum())
    if not count:
        return winners, 0
    if dim % value.dim() != value.dim() - 1 or value.dim() < 2 or value.shape[-2] < 2:  # no other rows to ask
        return value >= largest - tolerance / 16, count
    at = near.nonzero()
    row = value[tuple(at.T)]
    best = row.argmax(-1)
    other = torch.where(winners[tuple(at.T)], row, float("inf")).argmin(-1)
    matrices = value.transpose(-1, -2)  # a row for each key
    heads = tuple(at[:, :-1].T)
    apart = (matrices[(*heads, best)] - matrices[(*heads, other)]).abs().nan_to_num(0.0, posinf=0.0)
    room = tolerance.squeeze(-1)[heads] if heads else tolerance.squeeze(-1).expand(len(at), -1)
    distinct = (apart > 16 * room).any(-1)
    chosen = tuple(at[distinct].T)
    winners[chosen] = exact[chosen]
    return winners, count


def count_of_rows(chosen: Tensor, dim: int) -> Tensor:
    """How many of each row; by way of float32, since a sum of booleans goes by way of int64."""
    return chosen.to(torch.float32).sum(dim)


def sized(scores: Series, queries: Series, keys: Series) -> Series:
    """Scores with the size of what they are summed from: equal keys differ by its rounding, however small a sum is."""
    if len(scores.shape) < 3 or scores.zero or queries.top.degree <= 0 or keys.top.degree <= 0:
        return scores
    rows = {t.degree: longest(t.value, -1) for t in queries.terms}
    columns = {t.degree: longest(t.value, -2) for t in keys.terms}
    scales: dict[Fraction, Tensor] = {}
    for i, row in rows.items():
        for j, column in columns.items():
            here = (row * column).expand(scores.shape[:-2])
            scales[i + j] = torch.maximum(scales[i + j], here) if i + j in scales else here
    return scores.changed(scales=scales)


def longest(value: Tensor, dim: int) -> Tensor:
    """The norm of the longest row (dim -1) or column (-2) of each matrix."""
    return torch.linalg.vector_norm(value, dim=dim).amax(-1)


def scale_of(x: Series, degree: Fraction, dim: int) -> Tensor | None:
    """What the scores of each matrix were summed from, in size; None if that is not known."""
    found = None if x.scales is None else x.scales.get(degree)
    outer = x.shape[:-2]
    if found is None or dim % len(x.shape) != len(x.shape) - 1 or found.numel() != outer.numel():
        return None
    return found.reshape(*outer, 1, 1)


def tolerances(context: Context, value: Tensor, dim: int, scale: Tensor | None) -> Tensor:
    """Units of rounding of the largest score, in size, of a row.

    Equal tokens come out of a few layers some hundred units apart, in float32 and float64. In bfloat16 scores are so
    coarse that 1 to 6 rows in 100 tie by themselves, and a tolerance would tie every second one: no unit is larger
    than float32's, so that in 16 bits a tie is equality.
    """
    value = torch.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0)
    size = torch.maximum(-value.amin(dim, keepdim=True), value.amax(dim, keepdim=True))
    if scale is not None:  # scores far below what they are summed from round by more
        size = torch.maximum(size, scale / SMALL)
    return size * rounding_unit(context, value.dtype)


def rounding_unit(context: Context, dtype: torch.dtype) -> float:
    return context.tolerance * min(context.eps(dtype), torch.finfo(torch.float32).eps)


def weigh(operation: Operation, shares: Series, values: Series) -> None:
    """Whether a tie in doubt matters: not if the keys that tie have equal values."""
    p, v = shares.top.value, values.top.value
    squares = torch.matmul(p, v.square())
    spread = squares - torch.matmul(p, v).square()
    noise = 4096 * operation.context.eps(v.dtype) * squares.amax(-1, keepdim=True)
    operation.context.doubtful += int((spread > noise).sum())
