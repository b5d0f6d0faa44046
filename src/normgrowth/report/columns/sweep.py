"""The edge of growth of a sweep: a row for each column of the grid."""

import numpy as np

from normgrowth.report.numbers import number, percent, signed, times
from normgrowth.report.sentences.sweep import edge_in_words, edges_in_words, short_value
from normgrowth.report.sweep_grid import SweepGrid
from normgrowth.report.table_columns import PAGE_ONLY, Column, numbers


def edge_columns(found: SweepGrid) -> list[Column]:
    x, edge, predicted = found.x, found.column("edge"), found.column("edge_predicted")
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = edge / predicted
    places = [float(value) if isinstance(value, float) else float(i) for i, value in enumerate(x.values)]
    columns = [
        Column(x.setting, [short_value(value) for value in x.values], places),
        Column(f"growth ends at\n{found.y.setting}", list(map(edge_in_words, edge)), edge.tolist()),
        _limit("not below", found.column("edge_below")),
        _limit("not above", found.column("edge_above")),
    ]
    if np.isfinite(predicted).any():
        columns.append(
            Column("for random\ngradients", list(map(edge_in_words, predicted)), predicted.tolist())
        )
    write = percent if found.additive_edges else signed
    return [
        *columns,
        numbers("ratio", np.where(ratio > 0, ratio, np.nan).tolist(), times, 1, missing=""),
        *(
            numbers(title, terms.tolist(), write, 2, missing="")
            for title, terms in found.edge_terms().items()
        ),
        Column("edges in\nthe grid", edges_in_words(found), rank=3),
    ]


def _limit(title: str, values: np.ndarray) -> Column:
    return numbers(title, values.tolist(), lambda x: number(x, 3), PAGE_ONLY)
