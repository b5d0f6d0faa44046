"""A comparison of two runs: where they diverge, a heat map of their differences, and a table of their growth."""

from collections.abc import Callable, Sequence
from math import nan

import numpy as np

from normgrowth.compare.result import Comparison
from normgrowth.report.difference_grid import FULL, TITLES, DifferenceGrid, difference_grid
from normgrowth.report.numbers import number, times
from normgrowth.report.page.content import Content
from normgrowth.report.page.pieces import ChartAxis, Column, Map, Section, SummaryRow, Table, column, words
from normgrowth.report.sentences.comparison import sentences, verdict
from normgrowth.report.sentences.parting_cause import short_cause
from normgrowth.report.terminal.comparison import columns_of
from normgrowth.text import visible

MOST_ROWS, MOST_COLUMNS = 100, 200  # size of the heat map


def sections(content: Content) -> list[Section]:
    results = content.results(Comparison)
    said = [visible(text) for result in results for text in (*verdict(result), *sentences(result))]
    items: list[Map | Table] = []
    for place, result in enumerate(results):
        if result.partings:
            items.append(_partings(result))
        grid = difference_grid(result, most_rows=MOST_ROWS, most_columns=MOST_COLUMNS)
        if grid is not None:
            items.append(_heat_map(result, grid, place))
        items.append(_table(result))
    return [Section("comparison", "Where two runs diverge", said, items)] if results else []


def rows(content: Content) -> list[SummaryRow]:
    """A row for each comparison: the step at which the runs diverge, and the cause."""
    found = []
    for result in content.results(Comparison):
        if not result.judged:
            said = "not comparable"
        elif not result.parted:
            said = "no difference beyond rounding"
        else:
            causes = list(map(short_cause, result.diagnoses))
            said = causes[0] if causes else f"diverge at step {result.partings[0].step:,}"
        aligned = result.alignment
        span = f"{aligned.first_step or 0:,} to {aligned.last_step or 0:,} ({aligned.steps:,} common)"
        pair = f"{visible(result.a.source)} (a), {visible(result.b.source)} (b)"
        found.append(SummaryRow(pair, "compare", span, found=said))
    return found


def summary(content: Content) -> list[str]:
    """Where and why the runs diverge."""
    return [visible(text) for result in content.results(Comparison) for text in verdict(result)[:1]]


def _partings(result: Comparison) -> Table:
    found = result.partings
    columns = [
        words("first difference of", [TITLES[one.stage] for one in found]),
        column("step", [one.step for one in found], lambda step: f"{step:,.0f}"),
        words("largest in", [visible(one.name) for one in found]),
        _column("a", [one.a for one in found], number),
        _column("b", [one.b for one in found], number),
        column("relative difference", [one.difference for one in found], "{:.1e}".format),
        column("noise floor", [one.floor for one in found], "{:.1e}".format),
        column("tensors", [one.tensors for one in found], "{:,}".format),
    ]
    return Table(f"Where {result.a.source} (a) and {result.b.source} (b) diverge", columns)


def _heat_map(result: Comparison, grid: DifferenceGrid, place: int) -> Map:
    values = np.where(np.isnan(grid.values), np.nan, grid.over_floor).T[:, ::-1]
    names = [visible(name) for name in grid.names][::-1]
    texts = [
        [
            f"step {step:,}, {name}: {difference:.1e}, floor {floor:.1e}"
            for name, difference in zip(names, column[::-1].tolist(), strict=True)
        ]
        for step, floor, column in zip(grid.steps, grid.floors.tolist(), grid.values.T, strict=True)
    ]
    title = (
        f"Relative difference of the {TITLES[grid.stage]}: {result.a.source} (a) and {result.b.source} (b)"
    )
    alt = "Red cells differ by more than rounding explains, blue ones by less."
    steps = ChartAxis("training step", ticks=tuple(f"{step:,}" for step in grid.steps))
    return Map(f"parting-{place}", title, alt, steps, ChartAxis("", ticks=tuple(names)), values, texts, FULL)


def _table(result: Comparison) -> Table:
    rows = result.rows
    columns = [words("layer", [row.name for row in rows])]
    for field, (title, write, _) in columns_of(result).items():
        name = title.replace("\n", " ")
        columns.append(_column(f"{name}, a", [getattr(row.a, field) for row in rows], write))
        columns.append(_column(f"{name}, b", [getattr(row.b, field) for row in rows], write))
        if field in ("norm", "factor"):
            columns.append(_column(f"{name}, b/a", [getattr(row, f"{field}_ratio") for row in rows], times))
    return Table(f"{result.a.source} (a) and {result.b.source} (b)", columns)


def _column(title: str, values: Sequence[float | None], write: Callable[[float], str]) -> Column:
    return column(title, [nan if value is None else value for value in values], write)
