"""The largest scores of each row, within rounding, and the number of rows with ties."""

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from normgrowth.limit.dispatch import Operation
from normgrowth.limit.pass_log import Context
from normgrowth.limit.power_series import Series

# Scores of random queries and keys are around a tenth of |q||k|; scores below a 16th are small by chance.
SMALL = 16


@dataclass
class TieCounts:
    """The running counts of a Tie."""

    rows: int = 0
    tied: int = 0
    near: int = 0
    uniform: int = 0
    undecided: int = 0

    def add(self, other: "TieCounts") -> None:
        """Add the ties of other rows; the caller counts `rows`."""
        self.tied += other.tied
        self.near += other.near
        self.uniform += other.uniform
        self.undecided += other.undecided


def winners_of(value: Tensor, tolerance: Tensor, dim: int) -> tuple[Tensor, int]:
    """The largest entries of each row, and the number of rows with entries that are equal only within the tolerance.

    Equal keys tie in every row and differ only by rounding. Keys that are close in one row but differ in others are
    not equal: the larger score wins. In float64, scores within a few units of rounding tie nevertheless, because
    different scores are never as close by chance.
    """
    largest = value.amax(dim, keepdim=True)
    winners = value >= largest - tolerance
    exact = value == largest
    near = (count_of_rows(winners, dim) > count_of_rows(exact, dim)) & torch.isfinite(largest).squeeze(dim)
    count = int(near.sum())
    if not count:
        return winners, 0
    if (
        dim % value.dim() != value.dim() - 1 or value.dim() < 2 or value.shape[-2] < 2
    ):  # no other rows to compare with
        return value >= largest - tolerance / 16, count
    at = near.nonzero()
    row = value[tuple(at.T)]
    best = row.argmax(-1)
    other = torch.where(winners[tuple(at.T)], row, float("inf")).argmin(-1)
    matrices = value.transpose(-1, -2)  # one row per key
    heads = tuple(at[:, :-1].T)
    apart = (matrices[(*heads, best)] - matrices[(*heads, other)]).abs().nan_to_num(0.0, posinf=0.0)
    room = tolerance.squeeze(-1)[heads] if heads else tolerance.squeeze(-1).expand(len(at), -1)
    distinct = (apart > 16 * room).any(-1)
    chosen = tuple(at[distinct].T)
    if value.dtype == torch.float64:
        exact = value >= largest - tolerance / 16
    winners[chosen] = exact[chosen]
    return winners, count


def count_of_rows(chosen: Tensor, dim: int) -> Tensor:
    """The number of True values per row, summed in float32, because a sum of booleans converts to int64."""
    return chosen.to(torch.float32).sum(dim)


def sized(scores: Series, queries: Series, keys: Series) -> Series:
    """Scores with the size |q||k| of their summands, whose rounding separates equal keys even if the sum is small."""
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
    """The size of the summands of each matrix's scores; None if unknown."""
    found = None if x.scales is None else x.scales.get(degree)
    outer = x.shape[:-2]
    if found is None or dim % len(x.shape) != len(x.shape) - 1 or found.numel() != outer.numel():
        return None
    return found.reshape(*outer, 1, 1)


def tolerances(context: Context, value: Tensor, dim: int, scale: Tensor | None) -> Tensor:
    """The tolerance for ties in each row, in units of rounding of its largest absolute score.

    After a few layers, equal tokens differ by around a hundred units, in float32 and float64. bfloat16 scores are so
    coarse that 1% to 6% of the rows tie by chance, and a tolerance in its units would tie half of the rows. So the unit
    is at most that of float32, and 16-bit scores tie only if they are equal.
    """
    value = torch.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0)
    size = torch.maximum(-value.amin(dim, keepdim=True), value.amax(dim, keepdim=True))
    if scale is not None:  # scores much smaller than their summands have a larger rounding error
        size = torch.maximum(size, scale / SMALL)
    return size * rounding_unit(context, value.dtype)


def rounding_unit(context: Context, dtype: torch.dtype) -> float:
    return context.tolerance * min(context.eps(dtype), torch.finfo(torch.float32).eps)


def weigh(operation: Operation, shares: Series, values: Series) -> None:
    """Count the outputs that an undecided tie may change: none if the tied keys have equal values.

    A lower term may have broken the tie, so `shares` may have one key of several that tie. Where these are not known,
    every output counts.
    """
    p, v = shares.tied, values.top.value
    if p is None:
        operation.context.doubtful += shares.shape[:-1].numel() * (v.shape[-1] if v.dim() > 1 else 1)
        return
    squares = torch.matmul(p, v.square())
    spread = squares - torch.matmul(p, v).square()
    noise = 4096 * operation.context.eps(v.dtype) * squares.amax(-1, keepdim=True)
    operation.context.doubtful += int((spread > noise).sum())
