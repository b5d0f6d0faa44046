"""The paper as a table of claims, each with the rule that judges it (`verdicts` says how)."""

from normgrowth.paper.claim import Claim
from normgrowth.paper.claims import decay_and_schedule as dynamics
from normgrowth.paper.claims import homogeneity as networks
from normgrowth.paper.claims import saturation_curves as curves
from normgrowth.paper.claims import t5_growth as growth
from normgrowth.paper.claims import trained_models as models

CLAIMS: dict[str, Claim] = {
    claim.id: claim
    for claim in [*growth.CLAIMS, *models.CLAIMS, *networks.CLAIMS, *curves.CLAIMS, *dynamics.CLAIMS]
}
