"""`Saturation`: how close a network is to its saturated limit, layer by layer (the paper's section 4.1).

The level of a layer is the mean over real tokens of cos(f(x; θ), s f(x; θ)), where s f is the exact limit of
f(x; cθ) as c grows (`saturated`), or, as in the paper, f(x; cθ) itself at a large c.

    saturation                 against the exact limit; in rows with a value c in the column `scale`, against f(x; cθ)
    saturation_hard_attention  against the same weights with every attention softmax replaced by its limit
    …_others                   the same, but with the saturated states of the other tokens of the sentence
    …_stderr                   standard error over sentences, because tokens of one sentence are not independent
    …_random, …_random_std     mean and standard deviation over networks with random weights
    evaluation_tokens, evaluation_sentences    size of the text (level "model")

Only the excess over the cosine to *other* tokens indicates saturation: if all states of a network share a
direction, each state is close to every saturated state, with or without saturation.

Level "layer": the embeddings (name "embeddings", no layer number), then the output of each block, numbered from 0
as in every record; the last one is the output of the network, after its final norm if it has one. Level "model":
the mean over blocks. A level that is undefined for one token (overflow; a state of zero) is NaN, and notes say so.
"""

from dataclasses import dataclass, field
from math import inf, nan
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from normgrowth.checkpoints.parameters.selection import CountedParameters, Selection
from normgrowth.network.measured import ModelInfo
from normgrowth.records import Records
from normgrowth.results import Result
from normgrowth.trace.sampling.finding import Finding

Floats = NDArray[np.float64]
Stack = Literal["encoder", "decoder"]
DecoderInput = Literal["shifted", "start"]
EXACT, HARD = "saturation", "saturation_hard_attention"
EMBEDDINGS = -1  # number of the embeddings in `LayerCurve.layers`


def quantity_at(c: float | None) -> str:
    """The quantity of levels at c; infinity is the exact limit, None is hard attention."""
    return HARD if c is None else EXACT


def scale_at(c: float | None) -> float | None:
    """The value of the column `scale` in the rows of levels at c."""
    return None if c is None or c == inf else c


@dataclass(frozen=True)
class LayerCurve:
    """The levels of one network at one c: embeddings, blocks, and the mean over blocks.

    c: infinity is the exact limit, None is hard attention. baseline: whether this is the mean over networks of the same
    architecture with random weights. layers: EMBEDDINGS, then block numbers from 0. errors: standard error over
    sentences; for a baseline, standard deviation over seeds. others: levels against other tokens' saturated states.
    """

    run: str
    c: float | None
    random_weights: bool
    baseline: bool
    layers: list[int]
    values: Floats
    errors: Floats
    others: Floats
    mean: float

    @property
    def blocks(self) -> list[int]:
        """Indices of the blocks in `layers`: all but the embeddings."""
        return [i for i, layer in enumerate(self.layers) if layer != EMBEDDINGS]


@dataclass(frozen=True, kw_only=True)
class Saturation(Result):
    """Saturation levels of models, or of every checkpoint of a series together with its trace.

    models: models by run. c: the factors of the weights. exact, hard_attention: whether these were measured. stack: the
    measured stack of an encoder-decoder model. as_published: measured as in the authors' script. random_init: number of
    networks with random weights per model. For a series: config is the architecture of the checkpoints, steps are the
    steps with levels, and selection, counted and findings come from its trace.
    """

    kind: ClassVar[str] = "saturation"
    many_tensors: ClassVar[bool] = True

    source: str = ""
    models: dict[str, ModelInfo] = field(default_factory=dict)
    c: tuple[float, ...] = ()
    exact: bool = True
    hard_attention: bool = False
    stack: Stack | None = None
    as_published: bool = False
    fixed: tuple[str, ...] = ()
    random_init: int = 0
    seed: int = 0
    config: str | None = None
    steps: tuple[int, ...] = ()
    selection: Selection | None = None
    counted: CountedParameters | None = None
    findings: tuple[Finding, ...] | None = None

    @property
    def scales(self) -> list[float | None]:
        """Every measured c: first infinity (the exact limit), last None (hard attention)."""
        return [*([inf] if self.exact else []), *self.c, *([None] if self.hard_attention else [])]

    @property
    def curves(self) -> list[LayerCurve]:
        """Levels by layer of models without a series: for each model and c, the model and then its baseline."""
        found = []
        for run in self.records.distinct("run"):
            own_rows = self.records.where(run=run)
            known = self.models.get(run) or ModelInfo(run)
            for c in self.scales:
                method, rows = quantity_at(c), _levels(own_rows.where(scale=scale_at(c)))
                for baseline, own, error in ((False, "", "_stderr"), (True, "_random", "_random_std")):
                    if f"{method}{own}" in rows:
                        names = (f"{method}{own}", f"{method}{error}", f"{method}_others{own}")
                        found.append(_curve(rows, names, run, c, known.random_weights or baseline, baseline))
        return found


def _levels(records: Records) -> dict[str, dict[int | None, float]]:
    """quantity -> layer -> level; the mean over blocks under None."""
    found: dict[str, dict[int | None, float]] = {}
    for row in records.table.to_pylist():
        if row["quantity"].startswith(EXACT):
            layer = EMBEDDINGS if row["layer"] is None else row["layer"]
            layer = None if row["level"] == "model" else layer
            found.setdefault(row["quantity"], {})[layer] = row["value"]
    return found


def _curve(
    rows: dict[str, dict[int | None, float]],
    quantities: tuple[str, str, str],
    run: str,
    c: float | None,
    random_weights: bool,
    baseline: bool,
) -> LayerCurve:
    level = rows[quantities[0]]
    layers = sorted(layer for layer in level if layer is not None)
    values, errors, others = (
        np.array([rows.get(quantity, {}).get(layer, nan) for layer in layers]) for quantity in quantities
    )
    return LayerCurve(run, c, random_weights, baseline, layers, values, errors, others, level.get(None, nan))
