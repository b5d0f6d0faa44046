"""Tables of a trace: the growth of its layers, and single weights."""

from collections.abc import Callable, Sequence
from math import exp, nan

from normgrowth.report.grids import Grids
from normgrowth.report.numbers import number, percent, signed, times
from normgrowth.report.quantities import OPTIONAL, QUANTILES, QUANTITIES, SHARES, TERMS
from normgrowth.report.table_columns import PAGE_ONLY, Column, numbers

Row = tuple[Grids, str, str]  # the run, the level and the name


def layer_columns(rows: Sequence[Row]) -> list[Column]:
    """The growth of each row; the sizes, if no run has two checkpoints."""
    runs = {id(run): run for run, *_ in rows}.values()
    if all(len(run.steps) < 2 for run in runs):
        return [of(rows, "norm"), of(rows, "rms", rank=0), of(rows, "largest"), *optional_columns(rows)]
    factors = [run.factor(level, name, run.steps[-1]) for run, level, name in rows]
    return [
        of(rows, "norm", "norm\nat first", place=0),
        of(rows, "norm", "norm\nat last"),
        numbers("factor", factors, times),
        of(rows, "rms", "rms\nat first", rank=PAGE_ONLY, place=0),
        of(rows, "rms"),
        of(rows, "largest", rank=PAGE_ONLY),
        of(rows, "step_size", "last\nstep size"),
        of(rows, "relative_step", "last\nrelative step"),
        of(rows, "cosine"),
        of(rows, "cosine first"),
        of(rows, "alignment", "last\nalignment"),
        *_budget(rows, additive=all(run.additive_terms() for run in runs)),
        *optional_columns(rows),
    ]


def optional_columns(rows: Sequence[Row]) -> list[Column]:
    """Quantities that only some traces have."""
    return [column for quantity in OPTIONAL if (column := of(rows, quantity)).known]


def scalar_columns(rows: Sequence[Row]) -> list[Column]:
    """Single weights at the last checkpoint, compared with the first one."""
    return [
        *(_numbers(rows, f"{quantity} first", title, percent) for quantity, title in SHARES.items()),
        *(
            _numbers(
                rows, f"log_ratio_q{q} first", f"|θ/θ₀|\n{name}", _ratio, PAGE_ONLY * (q in ("25", "75"))
            )
            for q, name in QUANTILES.items()
        ),
    ]


def of(rows: Sequence[Row], shown: str, title: str = "", rank: int | None = None, place: int = -1) -> Column:
    """A quantity of each row, at its first (place 0) or its last step."""
    one = QUANTITIES[shown]
    return _numbers(rows, shown, title or one.column, one.write, one.rank if rank is None else rank, place)


def _budget(rows: Sequence[Row], *, additive: bool) -> list[Column]:
    """The share of the steps in the growth of ‖θ‖², or the terms themselves if one of them is negative."""
    if additive:
        return [of(rows, "total_share_steps")]
    return [_numbers(rows, f"total_growth{term}", title, signed, 1) for term, title in TERMS.items()]


def _numbers(
    rows: Sequence[Row], shown: str, title: str, write: Callable[[float], str], rank: int = 0, place: int = -1
) -> Column:
    quantity, _, reference = shown.partition(" ")
    several = any(len(run.steps) > 1 for run, *_ in rows)
    values = [
        run.value(level, name, quantity, run.steps[place], reference or None)
        if place == 0 or not several or len(run.steps) > 1
        else nan
        for run, level, name in rows
    ]
    return numbers(title, values, write, rank)


def _ratio(log: float) -> str:
    return number(exp(log), 3)
