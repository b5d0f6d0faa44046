"""The published levels of saturation (Figure 2) as a result, so that they can be drawn over measured ones.

The paper counts layers from 1, records count from 0. Its line of T5 is the decoder's, and its line of the trained XLNet
has 11 layers.
"""

from collections.abc import Mapping

import numpy as np

from normgrowth.network.measured import ModelInfo
from normgrowth.network.saturation.result import Saturation
from normgrowth.paper.published.tables import Column, published
from normgrowth.records import Block, Records

RUNS = {"t5-base": "t5-base, decoder"}  # model in the tables -> run; other runs have the name of the model
# table -> the quantity that a measurement of the same thing has
QUANTITIES = {
    "saturation_pretrained": "saturation",
    "saturation_random_init": "saturation_random",
}


def figure2() -> Saturation:
    """Saturation at c = 1000, with trained and with random weights; a run for each model."""
    tables = {name: published(name) for name in QUANTITIES}
    parts = []
    for model in dict.fromkeys(tables["saturation_pretrained"]["model"].tolist()):
        blocks = [
            block for name, quantity in QUANTITIES.items() for block in _blocks(tables[name], model, quantity)
        ]
        parts.append(Records.from_blocks(RUNS.get(str(model), str(model)), blocks))
    records = Records.joined(parts)
    return Saturation(
        records=records,
        source="; ".join(table.source for table in tables.values()),
        models={run: ModelInfo(run) for run in records.distinct("run")},
        c=(1000.0,),
        exact=False,
        random_init=1,
        notes=(
            "The published line of t5-base is that of its decoder.",
            "The published line of the trained xlnet-base-cased has 11 layers.",
        ),
    )


def _blocks(table: Mapping[str, Column], model: str, quantity: str) -> list[Block]:
    own = table["model"] == model
    layers, values = (table["layer"][own] - 1).tolist(), table["cosine"][own]
    names, none = [f"layer.{layer}" for layer in layers], [None] * len(layers)
    mean, axes = {quantity: np.array([[values.mean()]])}, {"scale": 1000.0}
    return [
        Block("layer", names, layers, none, [0], {quantity: values[None]}, constants=axes),
        Block("model", ["model"], [None], [None], [0], mean, constants=axes),
    ]
