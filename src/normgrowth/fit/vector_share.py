"""How much of the norm of a model its gains, biases and other vectors make, and what shows its growth therefore."""

from math import inf, isfinite

from normgrowth.moments.levels import DOMINANT, LAYER_MATRICES, VECTORS
from normgrowth.records import Records


def vector_share(records: Records) -> float:
    """The share of vectors in ‖θ‖² of the only run, the larger of the first and the last step; 0 if it is unknown."""
    if VECTORS not in records.where(level="part", quantity="norm").distinct("name"):
        return 0.0
    vectors, model = (
        dict(
            zip(*(column.tolist() for column in records.series("norm", level=level, name=name)), strict=True)
        )
        for level, name in (("part", VECTORS), ("model", "model"))
    )
    steps = sorted(step for step in vectors.keys() & model.keys() if 0 < model[step] < inf)
    shares = ((vectors[step] / model[step]) ** 2 for step in (*steps[:1], *steps[-1:]))
    return max((share for share in shares if isfinite(share)), default=0.0)


def layers_level(records: Records, share: float | None = None) -> str:
    """The level that shows how layers grow: their matrices if vectors hide them, as far as the records have them.

    share: the share of vectors in ‖θ‖², if it is known.
    """
    hidden = (vector_share(records) if share is None else share) > DOMINANT
    return LAYER_MATRICES if hidden and len(records.where(level=LAYER_MATRICES, quantity="norm")) else "layer"
