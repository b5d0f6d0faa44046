"""Results that several tests of the report share: known numbers, names that attack, a large run, a small sweep."""

import math
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa

from normgrowth.network.heads.result import Heads
from normgrowth.records import Block, Records
from normgrowth.serialization.record_schema import SCHEMA
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
HEAD_KINDS = ("argmax-like", "previous-token", "sink", "mean-like", "in between")
RATES, DECAYS = [1e-3, 1e-2, 0.1], [1e-3, 1e-2, 0.1, 1.0]


def numbers(*sentences):
    """The numbers that sentences state, as they are written."""
    return re.findall(r"[+-]?\d+(?:,\d{3})*(?:\.\d+)?", " ".join(sentences))


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


def of_kind(kind, **fields):
    """The fields of a stored result."""
    return {"kind": kind, "schema": SCHEMA, **fields}


def write_trace(records, folder, fields=None):
    """The folder of a trace with these records. fields: others than its source."""
    StoredResult(records, of_kind("trace") | ({"source": "walk"} if fields is None else fields)).write(folder)


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
        **of_kind("sweep"),
        "settings": settings,
        "corpus": {"name": "wikitext-2"},
        "x": {"setting": "lr", "values": RATES},
        "y": {"setting": "weight_decay", "values": DECAYS},
        "notes": [],
        "problems": [],
        **fields,
    }
    return StoredResult(Records.from_blocks("sweep", blocks), facts)


def known_trace(steps=(0, 100, 200), run="run", scale=1.0, names=("layer.0", "layer.1"), **model):
    """Two layers and a model whose numbers can be checked by eye."""
    early = {
        "norm": [[3, 4], [6, 6], [9, 6]],
        "rms": [[0.1, 0.2]] * 3,
        "largest": [[1, 2]] * 3,
        "nonfinite": [[0, 0]] * 3,
    }
    whole = {"norm": [[5], [8.4], [10.8]], "rms": [[0.15]] * 3, "largest": [[2]] * 3, "nonfinite": [[0]] * 3}
    later = {
        "cosine": [[0.9, 0.91], [0.99, 0.999987]],
        "cosine_first": [[0.9, 0.91], [0.8, 0.75]],
        "alignment": [[0.5, 0.25], [0.125, -0.0625]],
        "step_size": [[3.5, 2.25], [3.25, 1.5]],
        "relative_step": [[1.1, 0.5], [0.5, 0.25]],
        "total_share_steps": [[0.75, 0.5], [0.6, 1.2]],
        "total_growth": [[27, 20], [72, 20]],
        "total_growth_alignment": [[6.75, 10], [28.8, -4]],
        "total_growth_steps": [[20.25, 10], [43.2, 24]],
    }
    whole_later = {
        "cosine": [[0.95], [0.99712]],
        "cosine_first": [[0.95], [0.85]],
        "alignment": [[0.3], [0.1]],
        "step_size": [[4.2], [3.6]],
        "relative_step": [[0.8], [0.4]],
        "total_share_steps": [[0.7], [0.65]],
        "total_growth": [[45], [92]],
        "total_growth_alignment": [[13.5], [32.2]],
        "total_growth_steps": [[31.5], [59.8]],
    } | model
    n = len(steps)

    def block(level, names, layers, values, at):
        arrays = {q: np.array(v, float)[: len(at)] * (scale if q == "norm" else 1) for q, v in values.items()}
        return Block(level, names, layers, [None] * len(names), at, arrays)

    blocks = [block("layer", names, range(2), early, steps), block("model", ["model"], [None], whole, steps)]
    to_first = [values.pop("cosine_first") for values in (later, whole_later)]
    if n > 1:
        own = [("layer", names, range(2)), ("model", ["model"], [None])]
        for thing, values in zip(own, to_first, strict=True):
            blocks.append(replace(block(*thing, {"cosine": values}, steps[1:]), reference="first"))
    if n > 1:
        blocks.append(block("layer", names, range(2), later, steps[1:]))
        blocks.append(block("model", ["model"], [None], whole_later, steps[1:]))
    return Records.from_blocks(run, blocks)


def replaced(records, quantity, value, **where):
    """The same records with one value of the model changed at the last step."""
    table = records.to_rows()
    last = max(row["step"] for row in table)
    for row in table:
        if row["quantity"] == quantity and row["level"] == "model" and row["step"] == where.get("step", last):
            row["value"] = value
        row["value"] = math.nan if row["value"] is None else row["value"]
    return Records(pa.Table.from_pylist(table, schema=records.table.schema))


def known_heads(run="model", layers=3, count=5, window=83, exact=True, shown=False, seed=0):
    """Heads whose kinds go round; in the saturated network every second one is a mean."""
    rng = np.random.default_rng(seed)
    names = [f"layer.{layer}.head.{h}" for layer in range(layers) for h in range(count)]
    numbers = [layer for layer in range(layers) for _ in range(count)]
    total = len(names)
    spread = np.arange(total) % 2 * 1.0
    values = {
        "entropy_share": rng.uniform(0, 1, total),
        "largest_share": rng.uniform(0, 1, total),
        "first_share": rng.uniform(0, 1, total),
        "previous_share": rng.uniform(0, 1, total),
        "hard_scale": np.where(spread > 0, np.inf, 12.0),
        "visible": np.full(total, 11.0),
        "one_share": np.full(total, 0.12),
        "visible_distance": np.full(total, 5.5),
    }
    if exact:
        values |= {
            "attended": 1 + spread * 10,
            "attended_share": np.where(spread > 0, 1.0, 0.12),
            "attended_spread": spread,
            "attended_distance": 2.5 + 3 * spread,
        }
        values |= {"attended_window": 1 + spread * 41} if window else {}
    known: dict[str, object] = {
        "model": {"name": run, "text": {"source": "text", "sentences": 9, "tokens": 120}}
    }
    known["kinds"] = {name: HEAD_KINDS[i % len(HEAD_KINDS)] for i, name in enumerate(names)}
    if exact:
        hard = {name: "mean-like" if s else "argmax-like" for name, s in zip(names, spread, strict=True)}
        known["saturated_kinds"] = hard
    if shown:
        tokens = ["<eos>", "the", "[red]cat[/red]", "$x_1$"]
        weights = np.tril(np.ones((4, 4))) / np.arange(1, 5)[:, None]
        both = {"soft": weights.tolist(), "saturated": np.eye(4).tolist()}
        known["patterns"] = {"tokens": tokens, "heads": {names[0]: both, names[3]: both}}
    fields = {"source": run, "window": window, "models": {run: known}}
    none = [None] * total
    by_layer = {q: v.reshape(layers, count).mean(1)[None] for q, v in values.items()}
    whole = {q: np.array([[np.median(v) if q == "hard_scale" else v.mean()]]) for q, v in values.items()}
    whole |= {"tokens": np.array([[120.0]]), "sentences": np.array([[9.0]])}
    blocks = [
        Block("head", names, numbers, none, [0], {q: v[None] for q, v in values.items()}),
        Block("layer", [f"layer.{i}" for i in range(layers)], range(layers), [None] * layers, [0], by_layer),
        Block("model", ["model"], [None], [None], [0], whole),
    ]
    return Heads.from_stored(StoredResult(Records.from_blocks(run, blocks), fields))
