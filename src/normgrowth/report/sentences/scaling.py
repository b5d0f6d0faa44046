"""What scaling curves show, in sentences."""

import numpy as np

from normgrowth.network.scaling.scaling import Scaling, ScalingCurves


def sentences(result: Scaling, published: Scaling | None = None) -> list[str]:
    """Sentences on the curves, and on their distance to the published ones."""
    own = result.curves
    said = [text for curves in own for text in _rates(curves)]
    for bare in own:
        for biased in own:
            if bare.kind == biased.kind and bare.bias is False and biased.bias is True:
                said += _biases(bare, biased)
    for theirs in published.curves if published else []:
        for curves in own:
            if (curves.kind, curves.bias) == (theirs.kind, theirs.bias):
                ours = np.stack([curves.at("cosine_flattened", c) for c in theirs.scales])  # (scales, seeds)
                apart = ours.mean(1) - theirs.of("cosine_flattened")[0]
                worst = int(np.abs(apart).argmax())
                said.append(
                    f"{theirs.run}: measured {curves.run} differs by {np.abs(apart).mean():.3f} on average; "
                    f"the largest difference is {apart[worst]:+.3f}, at c = {theirs.scales[worst]:.2g}."
                )
    return said


def _rates(curves: ScalingCurves) -> list[str]:
    rates = [one.rate.sentence() for one in curves.networks if one.rate is not None]
    said = []
    for sentence in dict.fromkeys(rates):
        count, seeds = rates.count(sentence), len(rates)
        where = f" ({count} of {seeds} seeds)" if count < seeds else ""
        said.append(f"{curves.run}: the error {sentence}{where}.")
    if curves.overflow is not None:
        said.append(
            f"{curves.run}: a norm overflows from c = {curves.overflow:,.0f} on; these values are not drawn."
        )
    return said


def _biases(bare: ScalingCurves, biased: ScalingCurves) -> list[str]:
    known = all("cosine_saturated" in curves.values for curves in (bare, biased))
    if not known or not np.array_equal(bare.scales, biased.scales):
        return []
    apart = np.abs(bare.mean("cosine_saturated") - biased.mean("cosine_saturated"))
    if not np.isfinite(apart).any():
        return []
    worst = int(np.nanargmax(apart))
    return [
        f"{bare.kind}: biases change the mean cosine by at most {apart[worst]:.3f}, at c = {bare.scales[worst]:.3g}."
    ]
