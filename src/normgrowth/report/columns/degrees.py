"""Degrees: a row for each module, or for a group of equal modules."""

from collections.abc import Sequence

from normgrowth.limit.result import ModuleDegree
from normgrowth.report.table_columns import Column, words
from normgrowth.text import by_run


def columns(rows: Sequence[tuple[str, ModuleDegree]]) -> list[Column]:
    """rows: the name of a module or of a group of equal ones, and its degrees."""
    return [
        words("module", [name or "(the model)" for name, _ in rows], widest=0.6),
        words("class", [row.class_name for _, row in rows], 2, widest=0.3),
        Column("in", [by_run([one[0] for one in row.inputs_by_run if one]) for _, row in rows], rank=1),
        Column("degree", [by_run(row.by_run) for _, row in rows]),
        Column("lower parts", [", ".join(map(str, row.lower)) or "-" for _, row in rows], rank=3),
        Column("runs", [str(row.runs) if row.runs > 1 else "-" for _, row in rows], rank=4),
    ]
