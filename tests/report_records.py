"""Records that several tests of the report share: names that attack, a large run, a small sweep."""

import math

import numpy as np

from normgrowth.records import Block, Records
from normgrowth.stored_result import StoredResult

HOSTILE = (
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    '"><svg onload="window.hacked = 1">',
    "<!-- <script>",
    "layer.0\u202egnp.exe",
    "a\nb\x00c\u2028d",
    "@x $name {{step}} ]]> &lt;b&gt;",
)
RATES, DECAYS = [1e-3, 1e-2, 0.1], [1e-3, 1e-2, 0.1, 1.0]


def big(folder, steps=1000, tensors=1000, layers=48):
    """As large as asked: every tensor at every checkpoint, and layers with all that a trace measures of them."""
    rng = np.random.default_rng(0)
    at = list(range(0, steps * 1000, 1000))
    names = [f"model.layers.{i % layers}.self_attn.projection_{i:04}.weight" for i in range(tensors)]

    def walk(items):
        return 100 + rng.normal(size=(steps, items)).cumsum(axis=0)

    quantities = ("norm", "cosine", "angle", "alignment", "step_size", "relative_step")
    stack = [f"layer.{i}" for i in range(layers)]
    by_layer = {quantity: walk(layers) for quantity in quantities}
    blocks = [
        Block("tensor", names, [None] * tensors, ["attention"] * tensors, at, {"norm": walk(tensors)}),
        Block("layer", stack, list(range(layers)), [None] * layers, at, by_layer),
        Block("layer", stack, list(range(layers)), [None] * layers, at, {"cosine": walk(layers)}, "first"),
        Block("model", ["model"], [None], [None], at, {q: walk(1) for q in quantities}),
        Block("model", ["model"], [None], [None], at, {"cosine": walk(1)}, "first"),
    ]  # fmt: skip
    write_trace(Records.from_blocks("large", blocks), folder)
    return folder


def write_trace(records, folder, fields=None):
    """The folder of a trace with these records. fields: others than its source."""
    StoredResult(records, {"command": "trace", **({"source": "walk"} if fields is None else fields)}).write(
        folder
    )


def sweep_records(edge=(0.02, 0.2, math.inf), diverged=(), missing=(), cell=None, column=None, **fields):
    """cell, column: quantities to add or to put in the place of these."""
    cells = [(i, j) for i in range(3) for j in range(4) if (i, j) not in missing]
    factor = [1 + 0.5 * math.log10(min(max(edge[i], 1e-9), 1e3) / DECAYS[j]) / 10 for i, j in cells]
    values = {
        "lr": [RATES[i] for i, _ in cells],
        "weight_decay": [DECAYS[j] for _, j in cells],
        "factor": [math.nan if cell in diverged else f for cell, f in zip(cells, factor, strict=True)],
        "diverged": [float(cell in diverged) for cell in cells],
        "steps": [500.0] * len(cells),
        **(cell or {}),
    }
    columns = {
        "edge": list(edge),
        "edge_predicted": [0.04, 0.4, 4.0],
        "edge_below": [0.01, 0.1, 1.0],
        "edge_above": [0.1, 1.0, math.inf],
        "edge_alignment": [0.9, 0.8, math.nan],
        "edge_steps": [0.1, 0.2, math.nan],
        "once": [1.0, 0.0, 1.0],
        **(column or {}),
    }

    def block(level, names, values):
        arrays = {quantity: np.array([column]) for quantity, column in values.items()}
        return Block(level, names, [None] * len(names), [None] * len(names), [500], arrays)

    blocks = [
        block("cell", [f"cell {cell}" for cell in cells], values),
        block("column", [f"lr={rate}" for rate in RATES], columns),
    ]
    shape = {"layers": 2, "width": 32, "heads": 2}
    settings = {"corpus": "wikitext-2", "kind": "post_norm", **shape, "optimizer": "adamw"}
    facts = {
        "command": "sweep",
        "settings": settings,
        "corpus": {"name": "wikitext-2"},
        "x": {"setting": "lr", "values": RATES},
        "y": {"setting": "weight_decay", "values": DECAYS},
        "notes": [],
        "problems": [],
        **fields,
    }
    return StoredResult(Records.from_blocks("sweep", blocks), facts)
