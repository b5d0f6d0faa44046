"""The growth laws that the page shows of a run."""

from normgrowth.errors import InputError
from normgrowth.fit import fit
from normgrowth.fit.result import SeriesFit
from normgrowth.records import Records


def growth_laws(records: Records) -> dict[str, SeriesFit]:
    """Laws of the norm of the model and its layers, by name."""
    found: dict[str, SeriesFit] = {}
    for level in ("model", "layer"):
        try:
            found |= fit(records, level=level, bootstrap=0).series
        except InputError:
            continue
    return found
