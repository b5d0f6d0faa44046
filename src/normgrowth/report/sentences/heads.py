"""What attention heads do, in sentences."""

from collections import Counter
from math import inf, isfinite, nan

import numpy as np

from normgrowth.errors import InputError
from normgrowth.network.heads.result import Heads, HeadTable
from normgrowth.report.numbers import number, percent

KINDS = (
    "argmax-like",
    "previous-token",
    "sink",
    "mean-like",
    "in between",
)  # in the order of tables and legends


def tables(result: Heads) -> list[HeadTable]:
    """The head tables of a result. Raises InputError if it has no heads."""
    if not (found := result.tables):
        raise InputError("no heads in these records; measure them with `normgrowth heads MODEL -o DIR`")
    return found


def sentences(result: Heads) -> list[str]:
    found = tables(result)
    said = [(table, model_sentences(table, result.tolerance)) for table in found]
    return [f"{table.run}: {text}" for table, texts in said for text in texts]


def model_sentences(heads: HeadTable, tolerance: float) -> list[str]:
    """Sentences on the heads of one model."""
    found, total = [], len(heads.names)
    for kinds, where in (
        (heads.kinds, "in the soft network"),
        (heads.saturated_kinds, "in the saturated network"),
    ):
        if any(kinds):
            counts = Counter(kinds)
            words = [f"{counts[kind]} {kind}" for kind in KINDS if counts[kind]]
            found.append(f"Kinds of the {total} heads {where}: {', '.join(words)}.")
    if attended := attended_sentence(heads):
        found.append(attended)
    away, seen = (heads.model.get(name, nan) for name in ("attended_distance", "visible_distance"))
    if isfinite(away) and isfinite(seen):
        found.append(
            f"Attended positions of the saturated network are {few(away)} tokens away from the query on average, "
            f"visible positions {few(seen)}."
        )
    scale = heads.model.get("hard_scale", nan)
    if isfinite(scale):
        found.append(
            f"The median head becomes hard (all but {percent(tolerance)} of the weight on the largest score, for 9 of "
            f"10 queries) when its scores are multiplied by {factor(scale)}."
        )
    elif scale == inf:
        found.append(
            "No scaling of its scores makes the median head hard: more than one query in ten has a tie."
        )
    return found


def attended_sentence(heads: HeadTable) -> str:
    """How many heads attend to one position in the limit; "" if this was not measured."""
    attended, spread = heads.of("attended"), heads.of("attended_spread")
    if not np.isfinite(attended).all():
        return ""
    one, every = int((spread <= 1e-9).sum()), int((spread >= 1 - 1e-9).sum())
    rest = f", {every} to all visible positions" if every else ""
    return (
        f"In the saturated network {one} of {len(heads.names)} heads always attend to exactly one position{rest}. "
        f"A query sees {few(heads.model.get('visible', nan))} positions on average."
    )


def few(x: float) -> str:
    return number(x, 3 if abs(x) < 100 else 4) if isfinite(x) else "-"


def factor(x: float) -> str:
    return "∞" if x == inf else number(x, 3) if x < 100 else number(x, 4)
