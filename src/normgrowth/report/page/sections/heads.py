"""The attention heads as an atlas and as a table."""

from collections.abc import Sequence
from math import isfinite

import numpy as np

from normgrowth.network.heads.result import Heads, HeadTable
from normgrowth.report.numbers import number, percent
from normgrowth.report.page.content import Content
from normgrowth.report.page.pieces import ChartAxis, Map, Section, SummaryRow
from normgrowth.report.sentences.heads import KINDS, attended_sentence, model_sentences, tables
from normgrowth.report.table_columns import Table, numbers, words
from normgrowth.text import visible


def sections(content: Content) -> list[Section]:
    items: list[Map | Table] = []
    said: list[str] = []
    results = content.results(Heads)
    for place, (result, heads) in enumerate((one, table) for one in results for table in tables(one)):
        said += [f"{visible(heads.run)}: {text}" for text in model_sentences(heads, result.tolerance)]
        for kinds, which in ((heads.kinds, "soft"), (heads.saturated_kinds, "saturated")):
            if any(kinds):
                items.append(_atlas(heads, kinds, which, place))
        items.append(_head_table(heads))
    return [Section("heads", "What the heads do", said, items)] if items else []


def rows(content: Content) -> list[SummaryRow]:
    """A row for each model: the number of heads of each kind."""
    return [
        SummaryRow(visible(table.run), "heads", found=_kinds(table))
        for result in content.results(Heads)
        for table in tables(result)
    ]


def _kinds(table: HeadTable) -> str:
    kinds = list(table.kinds if any(table.kinds) else table.saturated_kinds)
    return f"{len(table.names)} heads: {', '.join(f'{kinds.count(k)} {k}' for k in KINDS if k in kinds)}"


def summary(content: Content) -> list[str]:
    """How many heads of the saturated network attend to one position; the table has the number of each kind."""
    found = [table for result in content.results(Heads) for table in tables(result)]
    return [f"{visible(table.run)}: {text}" for table in found if (text := attended_sentence(table))]


def _atlas(heads: HeadTable, kinds: Sequence[str], which: str, place: int) -> Map:
    wide = max(heads.layers.count(layer) for layer in set(heads.layers))
    values = np.full((wide, len(heads.depth)), np.nan)
    texts = [[""] * len(heads.depth) for _ in range(wide)]
    seen = dict.fromkeys(heads.depth, 0)
    for name, layer, kind in zip(heads.names, heads.layers, kinds, strict=True):
        if layer is None:
            continue
        x, y = seen[layer], heads.depth.index(layer)
        seen[layer] += 1
        if kind not in KINDS:
            continue
        values[x, y] = KINDS.index(kind)
        texts[x][y] = f"{name}: {kind}"
    counts = ", ".join(f"{list(kinds).count(kind)} {kind}" for kind in KINDS if kind in kinds)
    x, y = (
        ChartAxis("head", ticks=tuple(map(str, range(wide)))),
        ChartAxis("layer", ticks=tuple(map(str, heads.depth))),
    )
    title = f"Heads of {heads.run}, {which}"
    slug = "atlas" if which == "soft" else "atlas-saturated"
    alt = f"Heads by kind: {counts}."
    return Map(f"{slug}-{place}", title, alt, x, y, values, texts, kinds=KINDS)


def _head_table(heads: HeadTable) -> Table:
    columns = [words("head", heads.names)]
    if any(heads.kinds):
        columns.append(words("kind", heads.kinds))
    if any(heads.saturated_kinds):
        columns.append(words("saturated", heads.saturated_kinds))
    for title, quantity, write in (
        ("attended in the limit", "attended", lambda x: number(x, 3)),
        ("share of visible", "attended_share", percent),
        ("entropy / log n", "entropy_share", percent),
        ("on first token", "first_share", percent),
        ("on previous token", "previous_share", percent),
        ("largest weight", "largest_share", percent),
        ("distance", "distance", lambda x: number(x, 3)),
        ("distance in the limit", "attended_distance", lambda x: number(x, 3)),
    ):
        values = [float(value) for value in heads.of(quantity)]
        if any(map(isfinite, values)):
            columns.append(numbers(title, values, write))
    return Table(f"Heads of {heads.run}", columns)
