"""The growth laws that the page shows of a run."""

from typing import Any

from normgrowth.errors import InputError
from normgrowth.records import Records


def growth_laws(records: Records) -> dict[str, Any]:
    """Laws of the norm of the model and its layers, and the curve of the model's best law."""
    from normgrowth.fit.fitting import fit_records

    found: dict[str, Any] = {}
    for level in ("model", "layer"):
        try:
            fits = fit_records(records, level, bootstrap=0)
        except InputError:
            continue
        found |= {name: one.facts() for name, one in fits.items()}
        if level == "model" and found.get("model", {}).get("best"):
            steps = records.series("norm")[0]
            found["model"]["curve"] = steps, fits["model"].best.predict(steps)
    return found
