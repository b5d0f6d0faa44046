"""The claims of the paper, in its order; `normgrowth.paper.claim` defines a claim."""

from normgrowth.paper.claim import Claim
from normgrowth.paper.claims import (
    decay_and_schedule,
    homogeneity,
    saturation_curves,
    t5_growth,
    trained_models,
)

CLAIMS: dict[str, type[Claim]] = {
    claim.id: claim
    for module in (t5_growth, trained_models, homogeneity, saturation_curves, decay_and_schedule)
    for claim in module.CLAIMS
}
