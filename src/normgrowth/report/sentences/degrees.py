"""Sentences on degrees: how many terms the limit drops; and groups of equal modules."""

from collections.abc import Sequence

from normgrowth.limit.module_names import grouped_modules
from normgrowth.limit.result import Degrees, ModuleDegree


def counts(result: Degrees) -> str:
    """How many terms and parameters do not contribute to the limit."""
    dropped = [term for term in result.dropped_terms if term.kind != "constant"]
    return (
        f"{len(dropped):,} sums drop a term of lower degree; {len(result.vanished):,} of "
        f"{len(result.parameters):,} parameters do not contribute to the limit."
    )


def doubts(result: Degrees) -> list[str]:
    """A warning if orders that were not computed may change values."""
    if not result.undecided_values:
        return []
    return [f"{result.undecided_values:,} values may depend on orders that were not computed"]


def alike(modules: Sequence[ModuleDegree]) -> list[tuple[str, ModuleDegree]]:
    """One row for all modules that differ only in their block number, with their common name."""
    found = grouped_modules(
        modules,
        lambda row: row.module,
        lambda row: (row.class_name, row.by_run, row.lower, row.inputs_by_run),
    )
    return [(name, rows[0]) for name, rows in found]
