"""The paper's numbers by name: what verbs take as "published:NAME"; see `normgrowth.named_data`."""

from typing import Any

from normgrowth.errors import InputError
from normgrowth.paper.published.figure1 import SCHEDULE, t5_records
from normgrowth.paper.published.tables import published
from normgrowth.records import Records


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


def trace(name: str) -> tuple[Records, str]:
    """The series of T5 as records, and its schedule."""
    if name != "t5":
        raise InputError(f"published:{name} is no trace; published:t5 is")
    return t5_records(), SCHEDULE
