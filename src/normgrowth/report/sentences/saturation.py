"""What levels of saturation show, in sentences; and norm and saturation over training."""

from collections.abc import Sequence
from math import inf, isfinite, nan

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import InputError
from normgrowth.network.measured import TextInfo
from normgrowth.network.saturation.result import EMBEDDINGS, LayerCurve, Saturation, quantity_at, scale_at
from normgrowth.records import Matrix
from normgrowth.report.grids import Grids
from normgrowth.report.numbers import times

Floats = NDArray[np.float64]
COSINE = "cosine of each token's state to its saturated state, and to those of other tokens; mean over tokens"
EXCESS = (
    "Only the excess over the cosine to other tokens indicates saturation; the rest is shared by all states."
)
ERRORS = "±: standard error over sentences; for random baselines, standard deviation over seeds."
SMALL = 0.05  # an excess below it is no sign of saturation: random networks of Figure 2 have up to 0.05
SHARED = 0.3  # a cosine to other tokens' states above which a sentence warns


def method_name(c: float | None) -> str:
    if c is None:
        return "hard attention"
    return "exact limit" if c == inf else f"c = {c:g}"


def layer_name(layer: int) -> str:
    return "embeddings" if layer == EMBEDDINGS else str(layer)


def level(value: float, error: float = nan) -> str:
    """A saturation with its error, if known: "0.476 ± 0.012"."""
    if not isfinite(value):
        return "NaN"
    return f"{value:.3f} ± {error:.3f}" if isfinite(error) else f"{value:.3f}"


def text_sentence(text: TextInfo) -> str:
    """The number of sentences and tokens of a measurement, and where they come from."""
    counts = ((text.sentences, "sentence"), (text.tokens, "token"))
    size = ", ".join(
        f"{count:,} {unit}{'' if count == 1 else 's'}" for count, unit in counts if count is not None
    )
    return f"measured with {' of '.join(filter(None, (size, text.source)))}" if size or text.source else ""


def checked_curves(result: Saturation) -> list[LayerCurve]:
    """The curves of a result. Raises InputError if it has no saturation."""
    if not (found := result.curves):
        raise InputError(
            "no saturation in these records; measure it with `normgrowth saturation MODEL -o DIR`"
        )
    return found


def level_sentences(curves: Sequence[LayerCurve]) -> list[str]:
    """The mean level of each network, at the first c that was measured."""
    found = []
    for curve in curves:
        if curve.c == curves[0].c:
            own = "random baseline" if curve.baseline else "saturation"
            others = curve.others[curve.blocks]
            known = np.isfinite(others).all() and len(others)
            more = (
                f", {others.mean():.3f} to other tokens: an excess of {_excess(curve.mean - others.mean())}"
                if known
                else ""
            )
            found.append(f"{curve.run}: {own} {curve.mean:.3f} on average over blocks{more}.")
    return found


def _excess(value: float) -> str:
    """The excess over the cosine to other tokens, and what it means if it is small."""
    return f"{round(value, 3) + 0.0:.3f}{' (no sign of saturation)' if value < SMALL else ''}"


class Profile:
    """Saturation and norm over training, for layers and steps that have both."""

    def __init__(self, result: Saturation) -> None:
        self._grids = grids = Grids(result.records)
        model = result.records.where(level="model")
        self.scales = [
            c for c in result.scales if len(model.where(quantity=quantity_at(c), scale=scale_at(c)))
        ]
        if not self.scales or not len(model.where(quantity="norm")):
            raise InputError(
                "no saturation of a series in these records; measure it with `normgrowth saturation SERIES --config`"
            )
        self.c = self.scales[0]
        self.run = grids.run
        levels, norms = self._levels("layer", self.c), grids.of("layer", "norm")
        layers = [name for name in levels.names if name in norms.names]
        self.steps = [int(s) for s in np.intersect1d(levels.steps, norms.steps)]
        self.layers = Matrix(
            layers,
            [levels.layers[levels.names.index(name)] for name in layers],
            np.array(self.steps, np.int64),
            np.stack([self._at(levels, name) for name in layers], 1)
            if layers
            else np.zeros((len(self.steps), 0)),
        )
        self.norms = {name: self._at(norms, name) for name in layers}
        self.level = self.mean_at(self.c)
        self.norm = self._at(grids.of("model", "norm"), "model")
        others = self._levels("model", self.c, "_others")
        self.others = self._at(others, "model") if others.names else np.full(len(self.steps), np.nan)

    def mean_at(self, c: float | None) -> Floats:
        """The mean over blocks at each step."""
        return self._at(self._levels("model", c), "model")

    def _levels(self, level: str, c: float | None, suffix: str = "") -> Matrix:
        return self._grids.of(level, f"{quantity_at(c)}{suffix}", scale=scale_at(c))

    def _at(self, grid: Matrix, name: str) -> Floats:
        return grid.curve(name)[np.isin(grid.steps, self.steps)]


def sentences(result: Saturation) -> list[str]:
    """The mean saturation of each model; for a series, the change of norm and saturation."""
    if not result.steps:
        return level_sentences(result.curves)
    profile = Profile(result)
    good = np.flatnonzero(np.isfinite(profile.level) & np.isfinite(profile.norm))
    if len(good) < 2:
        return []
    first, last = good[0], good[-1]
    ratio = float(profile.norm[last] / profile.norm[first])
    change = (
        f"grew by a factor of {times(ratio)}" if ratio >= 1 else f"fell to {times(ratio)} times the first"
    )
    said = [
        f"From step {profile.steps[first]:,} to {profile.steps[last]:,} the norm {change}; "
        f"the mean cosine to the saturated network ({method_name(profile.c)}) went from "
        f"{profile.level[first]:.3f} to {profile.level[last]:.3f}."
    ]
    shared = profile.others[good]
    if np.isfinite(shared).any():
        worst = int(np.nanargmax(shared))
        if shared[worst] > SHARED:
            said.append(
                f"At step {profile.steps[good[worst]]:,} the cosine to the saturated states of other tokens is "
                f"{shared[worst]:.3f} (to the token's own: {profile.level[good[worst]]:.3f}): states share a "
                "direction, and a high cosine there does not indicate saturation."
            )
    above = profile.level[good] - shared
    known = np.isfinite(above).all()
    if known:
        said.append(
            f"The excess over the cosine to other tokens went from {above[0]:.3f} to {above[-1]:.3f}."
        )
    if len(good) > 4:
        of_level = rank_correlation(profile.norm[good], profile.level[good])
        of_rest = rank_correlation(profile.norm[good], above) if known else np.nan
        more = f", of norm and excess {of_rest:+.2f}" if known else ""
        said.append(
            f"Over these {len(good)} checkpoints the rank correlation of norm and saturation is {of_level:+.2f}"
            f"{more}; one run does not show which causes which."
        )
    return said


def rank_correlation(x: Floats, y: Floats) -> float:
    """Spearman's rank correlation, with mean ranks for ties; NaN if one variable is constant."""

    def ranks(values: Floats) -> Floats:
        _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
        return (np.cumsum(counts) - (counts - 1) / 2)[place]

    a, b = ranks(x), ranks(y)
    if a.std() == 0 or b.std() == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])
