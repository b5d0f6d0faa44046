"""The published histograms of attended positions (Figure 3) as records, to be drawn next to measured ones.

The authors count over windows with padding, 83 tokens for Penn Treebank and 700 for WikiText-2, with a causal mask that
leaks. A head that averages over all positions visible with a true mask attends to 42.0 and 350.5 positions. A head that
averages over the future, which the authors' mask leaks, attends to 41.012 and 349.501. These are the largest published
values.
"""

import numpy as np

from normgrowth.errors import InputError
from normgrowth.network.heads.result import Heads, MeasuredHeads
from normgrowth.network.measured import ModelInfo
from normgrowth.paper.published.tables import published
from normgrowth.records import Block, Records

WINDOWS = {"penn": 83, "wikitext-2": 700}
NOTE = "The published heads could see the future: the authors' mask sets its scores to 0, where −∞ would hide them."


def figure3(window: int | None = None) -> Heads:
    """A run for each model, with a row for each of its 144 heads at the middle of its bar; one window or both."""
    if window not in (None, *WINDOWS.values()):
        raise InputError(
            f"no published numbers for a window of {window}; known: 83 (Penn Treebank), 700 (WikiText-2)"
        )
    table = published("attention_positions")
    parts = []
    for data, size in WINDOWS.items():
        for encoder in dict.fromkeys(table["encoder"].tolist()) if window in (None, size) else ():
            rows = (table["data"] == data) & (table["encoder"] == encoder)
            middles = (table["positions_from"][rows] + table["positions_to"][rows]) / 2
            values = np.repeat(middles, table["heads"][rows].astype(np.int64))
            names, none = [f"head.{i}" for i in range(len(values))], [None] * len(values)
            run = f"{data}, {encoder}"
            block = Block("head", names, none, none, [0], {"attended_window": values[None]})
            parts.append(Records.from_blocks(run, [block]))
    records = Records.joined(parts)
    models = {run: MeasuredHeads(ModelInfo(run)) for run in records.distinct("run")}
    return Heads(records=records, source=table.source, models=models, window=window, notes=(NOTE,))
