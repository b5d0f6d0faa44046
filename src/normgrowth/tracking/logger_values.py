"""The values of one step by the names under which loggers show them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from normgrowth.tracking.log.step_file import Rows
from normgrowth.tracking.log.step_records import StepLayout, record_blocks

LOGGED = (  # by default
    "norm",
    "relative_step",
    "angle",
    "equilibrium_angle",
    "alignment",
    "gradient_norm",
    "gradient_alignment",
    "moment_ratio",
    "lora_update_norm",
)


def logger_values(
    layout: StepLayout, step: int, rows: Rows, quantities: Sequence[str], levels: Sequence[str]
) -> dict[str, float]:
    """{"norm/model": 2.0, "norm/layer.03": ...} of the rows of a step; NaN values are omitted."""
    layout = replace(layout, levels=list(levels))
    digits = len(str(max((reading.layer or 0 for reading in layout.readings), default=0)))
    found: dict[str, float] = {}
    for block in record_blocks(layout, [step], rows[None], None):
        names = [_padded(name, digits) if block.level == "layer" else name for name in block.names]
        for quantity in quantities:
            for name, value in zip(names, block.values.get(quantity, np.zeros((1, 0)))[0], strict=False):
                if not np.isnan(value):
                    found[f"{quantity}/{name}"] = float(value)
    return found


def _padded(layer: str, digits: int) -> str:
    """The name of a layer with leading zeros, so that loggers sort layer.03 before layer.10."""
    stack, _, number = layer.rpartition(".")
    return f"{stack}.{number.zfill(digits)}"
