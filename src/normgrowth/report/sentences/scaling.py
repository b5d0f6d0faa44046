"""What scaling curves show, in sentences."""

import numpy as np

from normgrowth.network.scaling.result import Scaling, ScalingCurves


def sentences(result: Scaling, published: Scaling | None = None) -> list[str]:
    """Sentences on the curves, and on their distance to the published ones."""
    own = result.curves
    return [*_rates(own), *_overflows(own), *_doubts(own), *_biases(own), *_distances(own, published)]


def _distances(own: list[ScalingCurves], published: Scaling | None) -> list[str]:
    """The distance of each measured curve to the published one, as one sentence."""
    distances = []
    for theirs in published.curves if published else []:
        for curves in own:
            if (curves.kind, curves.bias) == (theirs.kind, theirs.bias):
                ours = np.stack([curves.at("cosine_flattened", c) for c in theirs.scales])  # (scales, seeds)
                apart = ours.mean(1) - theirs.of("cosine_flattened")[0]
                worst = int(np.abs(apart).argmax())
                distances.append(
                    f"{curves.run} {np.abs(apart).mean():.3f} ({apart[worst]:+.3f} at c = {theirs.scales[worst]:.2g})"
                )
    if not distances:
        return []
    return [f"Mean distance to the published curves (and the largest difference): {'; '.join(distances)}."]


def _rates(own: list[ScalingCurves]) -> list[str]:
    """A sentence for each rate, with the networks whose error falls like that."""
    networks: dict[str, list[str]] = {}
    for curves in own:
        rates = [one.rate.sentence() for one in curves.networks if one.rate is not None]
        for sentence in dict.fromkeys(rates):
            count, seeds = rates.count(sentence), len(rates)
            where = f" ({count} of {seeds} seeds)" if count < seeds else ""
            networks.setdefault(sentence, []).append(f"{curves.run}{where}")
    return [f"{'; '.join(names)}: the error {sentence}." for sentence, names in networks.items()]


def _overflows(own: list[ScalingCurves]) -> list[str]:
    return [
        f"{curves.run}: a norm overflows from c = {curves.overflow:,.0f} on; these values are not drawn."
        for curves in own
        if curves.overflow is not None
    ]


def _doubts(own: list[ScalingCurves]) -> list[str]:
    """A sentence for the networks whose limit may depend on orders that were not computed."""
    counts = {curves.run: sum(one.undecided for one in curves.networks) for curves in own}
    said = [f"{run} ({count:,})" for run, count in counts.items() if count]
    return (
        [f"Values of the limit may depend on orders that were not computed: {', '.join(said)}."]
        if said
        else []
    )


def _biases(own: list[ScalingCurves]) -> list[str]:
    """How much biases change the cosine of each kind of network, as one sentence."""
    changes = [
        f"{bare.kind} by at most {most:.3f} (at c = {c:.3g})"
        for bare in own
        for biased in own
        if bare.kind == biased.kind and bare.bias is False and biased.bias is True
        for most, c in _change(bare, biased)
    ]
    return [f"Biases change the mean cosine of {', '.join(changes)}."] if changes else []


def _change(bare: ScalingCurves, biased: ScalingCurves) -> list[tuple[float, float]]:
    """The largest change of the mean cosine and its c; nothing if the curves are not comparable."""
    known = all("cosine_saturated" in curves.values for curves in (bare, biased))
    if not known or not np.array_equal(bare.scales, biased.scales):
        return []
    apart = np.abs(bare.mean("cosine_saturated") - biased.mean("cosine_saturated"))
    if not np.isfinite(apart).any():
        return []
    worst = int(np.nanargmax(apart))
    return [(float(apart[worst]), float(bare.scales[worst]))]
