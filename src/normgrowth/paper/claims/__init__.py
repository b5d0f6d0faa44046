"""The claims of the paper, in its order; `normgrowth.paper.claim` defines a claim."""

from normgrowth.paper.claim import Claim
from normgrowth.paper.claims import (
    decay_and_schedule,
    homogeneity,
    predicted_growth,
    published_levels,
    saturated_models,
    saturation_curves,
    t5_growth,
    trained_models,
)

MODULES = (
    *(t5_growth, trained_models, saturated_models, homogeneity),
    *(saturation_curves, published_levels, decay_and_schedule, predicted_growth),
)
CLAIMS: dict[str, type[Claim]] = {claim.id: claim for module in MODULES for claim in module.CLAIMS}
