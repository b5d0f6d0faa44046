"""The published T5 series as records, so that every figure of a trace can be drawn of it, or over it.

The paper counts layers from 1, records from 0. Its total covers encoder and decoder blocks, its layers
are the encoder's alone: their squares do not add up to the total's.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from normgrowth.checkpoints.selection import Selection
from normgrowth.moments.moments import PREVIOUS
from normgrowth.paper.published.tables import Column, published
from normgrowth.record_schema import COMPARISONS
from normgrowth.records import Block, Records
from normgrowth.trace.result import Trace

RUN = "T5-base, published"
SCHEDULE = "inverse_sqrt:lr=0.01,hold=10000"  # its learning rates


def t5_trace() -> Trace:
    """Norm and cosine as published; step size, alignment, angle and budget derived from them."""
    model = {name: published(name) for name in ("t5_norm", "t5_direction", "t5_steps")}
    layers = {name: published(f"{name}_by_layer") for name in model}
    blocks = _blocks("model", ["model"], [None], [dict(table) for table in model.values()])
    numbers = sorted(set(layers["t5_norm"]["layer"].tolist()))
    for number in numbers:
        tables = [table.layer(number) for table in layers.values()]
        blocks += _blocks("layer", [f"encoder.{number - 1}"], [number - 1], tables)
    return Trace(
        records=Records.from_blocks(RUN, blocks),
        source=f"{RUN} ({model['t5_norm'].source})",
        run=RUN,
        steps=tuple(model["t5_norm"]["step"].tolist()),
        selection=Selection("blocks"),  # the total's; see the notes
        notes=(
            "Norm and cosine are published; step size, alignment, angle and budget are derived from them.",
            "The total covers encoder and decoder blocks, the layers are the encoder's alone.",
        ),
        published=True,
    )


def _blocks(
    level: str, names: list[str], layers: list[int | None], tables: Sequence[Mapping[str, Column]]
) -> list[Block]:
    blocks = []
    for table in tables:
        values: dict[str | None, dict[str, Any]] = {}
        for column, numbers in table.items():
            if column not in ("step", "layer", "interval"):
                name = "cosine" if column == "cosine_to_previous" else column
                reference = PREVIOUS if name in COMPARISONS else None
                values.setdefault(reference, {})[name] = np.asarray(numbers, np.float64)[:, None]
        steps, none = table["step"].tolist(), [None] * len(names)
        blocks += [Block(level, names, layers, none, steps, own, ref) for ref, own in values.items()]
    return blocks
