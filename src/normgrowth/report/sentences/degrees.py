"""Degrees in words: what is dropped, and which modules are alike."""

from collections.abc import Sequence

from normgrowth.limit.degrees import Degrees, ModuleDegree
from normgrowth.limit.module_names import grouped


def counts(result: Degrees) -> str:
    """How much has no part in the limit."""
    dropped = [term for term in result.dropped_terms if term.kind != "constant"]
    return (
        f"{len(dropped):,} sums drop a term of lower degree; {len(result.vanished):,} of "
        f"{len(result.parameters):,} parameters have no part in the limit."
    )


def alike(modules: Sequence[ModuleDegree]) -> list[tuple[str, ModuleDegree]]:
    """Rows that differ only in the number of their block, as one; with the name that they share."""
    found = grouped(
        modules,
        lambda row: row.module,
        lambda row: (row.class_name, row.by_run, row.lower, row.inputs_by_run),
    )
    return [(name, rows[0]) for name, rows in found]
