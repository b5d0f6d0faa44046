"""The paper's numbers by name: what verbs take as "published:NAME"; see `normgrowth.measurements`."""

from typing import Any

from normgrowth.errors import InputError
from normgrowth.paper.published import load
from normgrowth.paper.published.figure1 import SCHEDULE
from normgrowth.paper.published.tables import published
from normgrowth.results import Result

TRACES = ("t5", "t5-encoder", "t5-decoder")


def is_trace(name: str) -> bool:
    """Whether the name is that of a trace rather than of a table."""
    return name in TRACES


def series(name: str, quantity: str) -> tuple[str, dict[str, tuple[Any, Any]]]:
    """Steps and values of a table: one series, or one for each layer."""
    table = published(name)
    if quantity not in table or "step" not in table:
        raise InputError(
            f"published:{name} has no {quantity} by step; use published:t5, published:t5_norm or "
            "published:t5_norm_by_layer"
        )
    source = f"{name} ({table.source})"
    if "layer" not in table:
        return source, {"": (table["step"], table[quantity])}
    layers = {int(number): table.layer(int(number)) for number in table["layer"]}
    return source, {f"layer {number}": (rows["step"], rows[quantity]) for number, rows in layers.items()}


def trace(name: str) -> tuple[Result, str]:
    """A series of T5, and its schedule."""
    if not is_trace(name):
        raise InputError(f"published:{name} is not a trace; these are: {', '.join(TRACES)}")
    return load(name), SCHEDULE
