"""The paper's numbers by name: what verbs take as "published:NAME"; see `normgrowth.measurements`."""

from typing import Any

from normgrowth.errors import InputError
from normgrowth.paper.published import load
from normgrowth.paper.published.figure1 import SCHEDULE
from normgrowth.paper.published.tables import published
from normgrowth.trace.result import Trace


def series(name: str, quantity: str) -> tuple[str, dict[str, tuple[Any, Any]]]:
    """Steps and values of a table: one series, or one for each layer."""
    table = published(name)
    if quantity not in table or "step" not in table:
        raise InputError(
            f"published:{name} has no {quantity} by step; published:t5_norm and published:t5_norm_by_layer have norms"
        )
    source = f"{name} ({table.source})"
    if "layer" not in table:
        return source, {"": (table["step"], table[quantity])}
    layers = {int(number): table.layer(int(number)) for number in table["layer"]}
    return source, {f"layer {number}": (rows["step"], rows[quantity]) for number, rows in layers.items()}


def trace(name: str) -> tuple[Trace, str]:
    """The series of T5, and its schedule."""
    result = load(name)
    if not isinstance(result, Trace):
        raise InputError(f"published:{name} is a {result.kind}, not a trace; published:t5 is one")
    return result, SCHEDULE
