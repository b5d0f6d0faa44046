"""Fit: fit growth laws to norms."""

TYPE_CHECKING = False  # not imported from typing, so that `import normgrowth` stays fast
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    from numpy.typing import ArrayLike

    from normgrowth.fit.result import Fits
    from normgrowth.records import Records
    from normgrowth.results import Result


def fit(
    data: "Result | Records | Path | str | Sequence[Any] | ArrayLike",
    norms: "ArrayLike | None" = None,
    out: "Path | str | None" = None,
    *,
    overwrite: bool = False,
    level: str = "model",
    quantity: str = "norm",
    laws: "Sequence[str] | str | None" = None,
    from_step: float | None = None,
    to_step: float | None = None,
    bootstrap: int = 400,
    confidence: float = 0.95,
    seed: int = 0,
) -> "Fits":
    """Fit growth laws to norms; return confidence intervals and the weight of evidence of each law.

    data: a trace or another result with norms, its records, its folder, a csv with the columns step and norm (and
    layer, name, role, level or run for several series), numbers of the paper ("published:t5", "published:t5-encoder",
    "published:t5-decoder", "published:t5_norm" or "published:t5_norm_by_layer"), a list of several of these,
    or training steps with norms as the second argument.
    out: output folder. overwrite: replace another result in this folder.
    level: for a trace, fit one series for the "model", or one for each "part", "layer", "role", "tensor" or "head";
    "layer_matrices": for the matrices of each layer. If gains and biases hide the growth of the matrices in the norm of
    the model, `matrices` of the result has the fits of the matrices.
    quantity: the non-negative quantity to fit: "norm", or for example "rms".
    laws: names of laws [default: all]. See `normgrowth.fit.laws`.
    from_step, to_step: ignore points before and after these steps.
    bootstrap: number of replicates for the confidence intervals; 0 disables them. seed: random seed of the replicates.

    Points can be in any order. Points that are not finite are dropped, and norms at the same step are averaged; the
    `notes` of a series report both. A series with too few points is part of the result, and each of its laws has a
    `reason`. InputError is raised if no law can be fitted to any series.

    >>> steps = np.arange(1, 101)
    >>> fits = ng.fit(steps, 3 * np.sqrt(steps) + 2, laws=["sqrt", "linear"])
    >>> fits.best.law
    'sqrt'
    >>> {name: round(value, 6) for name, value in fits["sqrt"].params.items()}
    {'a': 3.0, 'b': 2.0}
    >>> by_layer = ng.fit(ng.trace("checkpoints"), level="layer")
    >>> list(by_layer.series)
    ['layer.0', 'layer.1']
    """
    arguments = locals()
    from normgrowth.fit.fitting import fit_data
    from normgrowth.measurements import identities
    from normgrowth.workspace import ResultFolder

    place = ("data", "norms", "out", "overwrite")
    options = {name: value for name, value in arguments.items() if name not in place}
    request = {**identities(out, data=data, norms=norms), **options}
    folder = ResultFolder(out, "fits", request, overwrite)
    found = fit_data(data, norms, **options)
    folder.write(found)
    return found
