"""The paper as a table of claims, each with the rule that judges it (`verdicts` says how)."""

from normgrowth.paper.claims import curves, dynamics, growth, models, networks
from normgrowth.paper.claims.verdicts import Claim

CLAIMS: dict[str, Claim] = {
    claim.id: claim
    for claim in [*growth.CLAIMS, *models.CLAIMS, *networks.CLAIMS, *curves.CLAIMS, *dynamics.CLAIMS]
}
