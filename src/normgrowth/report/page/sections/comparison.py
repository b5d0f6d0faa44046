"""A comparison of two runs: where they diverge, a heat map of their differences, and a table of their growth."""

import numpy as np

from normgrowth.compare.result import Comparison
from normgrowth.report.columns.comparison import growth, partings
from normgrowth.report.difference_grid import FULL, TITLES, DifferenceGrid, difference_grid
from normgrowth.report.page.content import Content
from normgrowth.report.page.pieces import ChartAxis, Map, Section, SummaryRow
from normgrowth.report.sentences.comparison import sentences, verdict
from normgrowth.report.sentences.parting_cause import short_cause
from normgrowth.report.table_columns import Table
from normgrowth.text import visible

MOST_ROWS, MOST_COLUMNS = 100, 200  # size of the heat map


def sections(content: Content) -> list[Section]:
    results = content.results(Comparison)
    said = [visible(text) for result in results for text in (*verdict(result), *sentences(result))]
    items: list[Map | Table] = []
    for place, result in enumerate(results):
        pair = f"{result.a.source} (a) and {result.b.source} (b)"
        if result.partings:
            items.append(Table(f"Where {pair} diverge", partings(result)))
        grid = difference_grid(result, most_rows=MOST_ROWS, most_columns=MOST_COLUMNS)
        if grid is not None:
            items.append(_heat_map(grid, pair, place))
        items.append(Table(pair, growth(result)))
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


def _heat_map(grid: DifferenceGrid, pair: str, place: int) -> Map:
    values = np.where(np.isnan(grid.values), np.nan, grid.over_floor).T[:, ::-1]
    names = [visible(name) for name in grid.names][::-1]
    texts = [
        [
            f"step {step:,}, {name}: {difference:.1e}, floor {floor:.1e}"
            for name, difference in zip(names, column[::-1].tolist(), strict=True)
        ]
        for step, floor, column in zip(grid.steps, grid.floors.tolist(), grid.values.T, strict=True)
    ]
    title = f"Relative difference of the {TITLES[grid.stage]}: {pair}"
    alt = "Red cells differ by more than rounding explains, blue ones by less."
    steps = ChartAxis("training step", ticks=tuple(f"{step:,}" for step in grid.steps))
    return Map(f"parting-{place}", title, alt, steps, ChartAxis("", ticks=tuple(names)), values, texts, FULL)
