"""Saturation by layer: a row for each layer and one for the mean of the blocks, a column for each network and c."""

from collections.abc import Sequence
from math import nan

import numpy as np

from normgrowth.network.saturation.result import EMBEDDINGS, LayerCurve
from normgrowth.report.sentences.saturation import Floats, layer_name, level, method_name
from normgrowth.report.table_columns import PAGE_ONLY, Column, words
from normgrowth.text import visible


def columns(lines: Sequence[LayerCurve], *, errors: bool = True) -> list[Column]:
    """errors: also write the standard errors. Networks at the first c are never hidden."""
    depth = range(EMBEDDINGS, max(max(line.layers) for line in lines) + 1)
    several = len({line.run for line in lines}) > 1

    def of(
        title: str, line: LayerCurve, values: Floats, spread: Floats | None, mean: float, rank: int
    ) -> Column:
        at = dict(zip(line.layers, values.tolist(), strict=True))
        error = {} if spread is None else dict(zip(line.layers, spread.tolist(), strict=True))
        cells = [level(at[layer], error.get(layer, nan)) if layer in at else "-" for layer in depth]
        return Column(title, [*cells, level(mean)], [*(at.get(layer, nan) for layer in depth), mean], rank)

    found = [words("layer", [*map(layer_name, depth), "mean of blocks"])]
    for line in lines:
        run, baseline = visible(line.run), "\nrandom baseline" if line.baseline else ""
        method, later = method_name(line.c), line.c != lines[0].c
        rank = 2 * line.baseline + 4 * later
        spread = line.errors if errors else None
        found.append(of(f"{run}\n{method}{baseline}", line, line.values, spread, line.mean, rank))
        if np.isfinite(line.others).any():
            at = f",\n{method}" if later else ""
            mean = float(np.mean(line.others[line.blocks]))
            # Hidden last: only the excess over it indicates saturation.
            shown = PAGE_ONLY if later else 2 * line.baseline + several
            found.append(of(f"{run}\nto other tokens{at}{baseline}", line, line.others, None, mean, shown))
    return found
