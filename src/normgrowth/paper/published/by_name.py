"""The paper's numbers by name, which verbs accept as "published:NAME"; see `normgrowth.measurements`."""

from typing import Any

from normgrowth.errors import InputError
from normgrowth.paper.published import load_published
from normgrowth.paper.published.figure1 import SCHEDULE
from normgrowth.paper.published.tables import published
from normgrowth.results import Result

TRACES = ("t5", "t5-encoder", "t5-decoder")


def is_trace(name: str) -> bool:
    """Whether the name belongs to a trace rather than to a table."""
    return name in TRACES


def series(name: str, quantity: str) -> tuple[str, dict[str, tuple[Any, Any]]]:
    """The steps and values of a table: one series, or one series for each layer."""
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
    # The figure counts the layers of the encoder from 1.
    return source, {f"encoder.{n - 1}": (rows["step"], rows[quantity]) for n, rows in layers.items()}


def load_trace(name: str) -> tuple[Result, str]:
    """A published trace of T5, and its schedule."""
    if not is_trace(name):
        raise InputError(f"published:{name} is not a trace; known: {', '.join(TRACES)}")
    return load_published(name), SCHEDULE
