"""A comparison: the first differences of two runs, and the growth of their layers."""

from collections.abc import Callable
from math import isfinite

from normgrowth.compare.result import Comparison
from normgrowth.report.difference_grid import TITLES
from normgrowth.report.numbers import cosine, number, percent, signed, small, times
from normgrowth.report.table_columns import Column, numbers, words
from normgrowth.text import visible

Write = Callable[[float], str]
Columns = dict[str, tuple[str, Write, int]]  # field of `Values` -> title, number format, rank
COLUMNS: Columns = {
    "norm": ("norm", number, 0),
    "factor": ("factor", times, 1),
    "cosine_first": ("cosine\nto first", cosine, 3),
    "alignment": ("alignment", small, 4),
}
SHARE: Columns = {"total_share_steps": ("growth\nby steps", percent, 2)}
TERMS: Columns = {
    "total_growth": ("growth of\n‖θ‖²", signed, 4),
    "total_growth_steps": ("of ‖θ‖²\nby steps", signed, 2),
    "total_growth_alignment": ("of ‖θ‖² by\nalignment", signed, 2),
}


def partings(comparison: Comparison, room: int | None = None) -> list[Column]:
    """The first difference of each stage. room: characters for names of tensors."""
    found = comparison.partings
    return [
        words("first difference of", [TITLES[one.stage] for one in found]),
        numbers("step", [one.step for one in found], "{:,.0f}".format),
        words("largest in", [_middle(one.name, room) for one in found], widest=0.4),
        numbers("a", [one.a for one in found], number, 2),
        numbers("b", [one.b for one in found], number, 2),
        numbers("relative\ndifference", [one.difference for one in found], "{:.1e}".format),
        numbers("noise\nfloor", [one.floor for one in found], "{:.1e}".format, 1),
        numbers("tensors", [one.tensors for one in found], "{:,.0f}".format, 3),
    ]


def growth(comparison: Comparison) -> list[Column]:
    """A row for each layer: shares of ‖θ‖² by steps, or the terms of its growth if some shares are outside [0, 1]."""
    rows = comparison.rows
    shares = [side.total_share_steps for row in rows for side in (row.a, row.b)]
    additive = all(share is None or not isfinite(share) or 0 <= share <= 1 for share in shares)
    columns = [words("layer", [row.name for row in rows])]
    for field, (title, write, rank) in {**COLUMNS, **(SHARE if additive else TERMS)}.items():
        columns.append(numbers(f"{title}\na", [getattr(row.a, field) for row in rows], write, rank))
        columns.append(numbers(f"{title}\nb", [getattr(row.b, field) for row in rows], write, rank))
        if field in ("norm", "factor"):
            ratios = [getattr(row, f"{field}_ratio") for row in rows]
            columns.append(numbers(f"{title}\nb/a", ratios, times, 5 * rank))
    return columns


def _middle(name: str, room: int | None) -> str:
    """A long name without its middle."""
    name = visible(name)
    if room is None or len(name) <= room:
        return name
    return f"{name[: room // 2]}…{name[len(name) - (room - 1 - room // 2) :]}"
