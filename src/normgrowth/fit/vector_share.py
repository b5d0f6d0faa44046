"""How much of the norm of a model its gains, biases and other vectors make."""

from math import inf, isfinite

from normgrowth.moments.levels import VECTORS
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
