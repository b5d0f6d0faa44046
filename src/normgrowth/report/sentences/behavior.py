"""Sentences on the predictions of saturated language models."""

from math import isfinite

from normgrowth.network.behavior.result import Behavior, Estimate, NetworkBehavior
from normgrowth.report.numbers import number, percent

TITLES = {"soft": "soft", "hard_attention": "hard attention", "saturated": "saturated"}


def title(one: NetworkBehavior) -> str:
    """The name of a network in tables."""
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
    """How many predictions each model keeps with hard attention and in the limit, compared with random weights."""
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
                f"{run}: with {form} the top token stays the same at {with_interval(one.agreement)} of the "
                f"positions{chance}; the accuracy changes from {with_interval(soft.accuracy)} to "
                f"{with_interval(one.accuracy)}."
            )
        saturated = known.get("saturated")
        if saturated and soft and saturated.legal_share and soft.legal_share:
            said.append(
                f"{run}: the top token is legal at {with_interval(soft.legal_share)} of the positions in the soft "
                f"network, and at {with_interval(saturated.legal_share)} in the saturated network."
            )
    for one in result.margins:
        if isfinite(one.normalized_median):
            said.append(
                f"{one.run}: the normalized margin, the right token's lead over the other logits divided by "
                f"‖θ‖^{one.degree:g}, has a median of {number(one.normalized_median, 3)} and is at least "
                f"{number(one.normalized_least, 3)}."
            )
    return said
