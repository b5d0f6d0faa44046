"""Fit: which growth law norms follow."""

TYPE_CHECKING = False  # as in typing, without its import: `import normgrowth` stays light
if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from normgrowth.fit.result import Fits


def fit(
    steps: "ArrayLike",
    norms: "ArrayLike",
    *,
    laws: "Sequence[str] | str | None" = None,
    seed: int = 0,
    bootstrap: int = 400,
    confidence: float = 0.95,
) -> "Fits":
    """Fit growth laws to norms at training steps; see `normgrowth.fit.laws` for the laws.

    Points may come in any order. Those that are not finite are dropped, and norms at the same step are
    averaged; `notes` says so. `bootstrap` is the number of replicates for the intervals, 0 for none.
    """
    from normgrowth.fit.fitting import fit_points

    return fit_points(steps, norms, laws=laws, seed=seed, bootstrap=bootstrap, confidence=confidence)
