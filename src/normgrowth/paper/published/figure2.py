"""The published levels of saturation (Figure 2) as records, so that they can be drawn over measured ones.

The paper counts layers from 1, records from 0. Its line of the trained XLNet has 11 layers.
"""

from collections.abc import Mapping

import numpy as np

from normgrowth.paper.published.tables import Column, published
from normgrowth.records import Block, Records

# table -> the quantity that a measurement of the same thing has
QUANTITIES = {
    "saturation_pretrained": "saturation_c1000",
    "saturation_random_init": "saturation_c1000_random",
}


def saturation_records() -> Records:
    """A run for each model; at c = 1000, of its trained weights and of random ones."""
    tables = {name: published(name) for name in QUANTITIES}
    parts = []
    for model in dict.fromkeys(tables["saturation_pretrained"]["model"].tolist()):
        blocks = [
            block for name, quantity in QUANTITIES.items() for block in _blocks(tables[name], model, quantity)
        ]
        parts.append(Records.from_blocks(model, blocks, {}))
    made_by = {
        "command": "published",
        "source": "; ".join(table.source for table in tables.values()),
        "notes": ["The published line of the trained xlnet-base-cased has 11 layers."],
        "problems": [],
    }
    return Records.joined(parts, made_by)


def _blocks(table: Mapping[str, Column], model: str, quantity: str) -> list[Block]:
    own = table["model"] == model
    layers, values = (table["layer"][own] - 1).tolist(), table["cosine"][own]
    names, none = [f"layer.{layer}" for layer in layers], [None] * len(layers)
    mean = {quantity: np.array([[values.mean()]])}
    return [
        Block("layer", names, layers, none, [0], {quantity: values[None]}),
        Block("model", ["model"], [None], [None], [0], mean),
    ]
