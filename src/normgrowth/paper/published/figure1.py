"""The published T5 series as a trace, so that all figures of a trace can be drawn.

The paper counts layers from 1, records count from 0. The published total covers encoder and decoder blocks, the
published layers are those of the encoder. `t5_stacks` separates encoder and decoder.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from normgrowth.checkpoints.parameters.selection import Selection
from normgrowth.moments.moments import PREVIOUS
from normgrowth.paper.published.t5_stacks import Stack, t5_sums
from normgrowth.paper.published.tables import PAPER, Column, published
from normgrowth.records import Block, Records
from normgrowth.trace.result import Trace

COMPARISONS = (
    *("cosine", "angle", "step_size", "relative_step", "alignment", "radial", "tangential"),
    *("growth", "growth_alignment", "growth_steps", "share_alignment", "share_steps"),
)
SCHEDULE = "inverse_sqrt:lr=0.01,hold=10000"  # its learning rates
RUNS: dict[Stack, str] = {
    "both": "T5-base, published",
    "encoder": "T5-base encoder, published",
    "decoder": "T5-base decoder, derived",
}
NOTES: dict[Stack, tuple[str, ...]] = {
    "both": (
        "Norm and cosine are published; step size, alignment, angle and budget are derived from them.",
        "The total covers encoder and decoder blocks; the layers are those of the encoder.",
    ),
    "encoder": ("The layers are published; the model is the sum of their squares and inner products.",),
    "decoder": (
        "Nothing is published of the decoder alone: its squares and inner products are those of the published total "
        "minus those of the encoder's layers.",
    ),
}
ROUNDING = (
    "norm_rounding, step_size_rounding and alignment_rounding bound the error that rounding of the published digits "
    "causes."
)


def t5_trace(stack: Stack = "both") -> Trace:
    """The trace of one stack or of both: norms and cosines, and step size, alignment, angle and budget derived."""
    sums = t5_sums(stack)
    norm = published("t5_norm")
    steps = sums.steps()
    if stack == "both":  # the published values, not values recomputed from the sums
        steps["cosine_to_previous"] = published("t5_direction")["cosine_to_previous"]
        model = [{**sums.norms(), "norm": norm["norm"]}, steps]
    else:
        model = [sums.norms(), steps]
    blocks = _blocks("model", ["model"], [None], model)
    if stack != "decoder":
        layers = [published(f"{name}_by_layer") for name in ("t5_norm", "t5_direction", "t5_steps")]
        for number in sorted(set(layers[0]["layer"].tolist())):
            tables = [table.layer(number) for table in layers]
            blocks += _blocks("layer", [f"encoder.{number - 1}"], [number - 1], tables)
    return Trace(
        records=Records.from_blocks(RUNS[stack], blocks),
        source=f"{RUNS[stack]} ({PAPER}, {norm.figure if stack == 'both' else 'Figure 1'})",
        run=RUNS[stack],
        steps=tuple(norm["step"].tolist()),
        selection=Selection("blocks" if stack == "both" else stack),
        notes=(*NOTES[stack], ROUNDING),
        published=True,
    )


def t5_encoder() -> Trace:
    return t5_trace("encoder")


def t5_decoder() -> Trace:
    return t5_trace("decoder")


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
