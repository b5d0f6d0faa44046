"""What a language model predicts when it is saturated, in sentences."""

from math import isfinite

from normgrowth.network.behavior.behavior import Behavior, Estimate, NetworkBehavior
from normgrowth.report.numbers import percent

TITLES = {"soft": "as it is", "hard_attention": "hard attention", "saturated": "saturated"}


def title(one: NetworkBehavior) -> str:
    """What a network is called."""
    return f"c = {one.c:g}" if one.c is not None else TITLES[one.network]


def with_interval(estimate: Estimate | None) -> str:
    """A share with its interval: "51.2% [49.0, 53.1]"."""
    if estimate is None:
        return "-"
    ends = f" [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]" if isfinite(estimate.low) else ""
    return f"{percent(estimate.value)}{ends}"


def by_run(result: Behavior) -> dict[str, list[NetworkBehavior]]:
    """The networks of each run."""
    found: dict[str, list[NetworkBehavior]] = {}
    for one in result.networks:
        found.setdefault(one.run, []).append(one)
    return found


def sentences(result: Behavior) -> list[str]:
    """How much of its predictions each model keeps in the limit, and what that is by chance."""
    said = []
    for run, networks in by_run(result).items():
        known = {one.network: one for one in networks if one.network != "scaled"}
        soft = known.get("soft")
        for name in ("hard_attention", "saturated"):
            one = known.get(name)
            if one is None or soft is None or not isfinite(one.agreement.value):
                continue
            random = one.agreement.random
            chance = f" (with random weights: {percent(random)})" if isfinite(random) else ""
            form = "hard attention" if name == "hard_attention" else "saturated weights"
            said.append(
                f"{run}: with {form} the model ranks the same token first at {with_interval(one.agreement)} of the "
                f"places{chance}; its accuracy goes from {with_interval(soft.accuracy)} to "
                f"{with_interval(one.accuracy)}."
            )
        saturated = known.get("saturated")
        if saturated and soft and saturated.legal_share and soft.legal_share:
            said.append(
                f"{run}: what it ranks first is legal at {with_interval(soft.legal_share)} of the places, "
                f"saturated at {with_interval(saturated.legal_share)}."
            )
    return said
