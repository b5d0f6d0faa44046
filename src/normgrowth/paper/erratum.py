"""What an erratum is, and how it is checked: numbers of both sides, and a rule that says from them whether one fails.

None is taken for granted: if what is printed held, or the code did what the text says, the rule would say so.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from normgrowth.errors import InputError
from normgrowth.paper.claim import Evidence, Numbers, lacking

Kind = Literal["erratum", "departure"]


@dataclass(frozen=True, kw_only=True)
class Erratum:
    """stages: whose records it is measured on. fails: whether the printed statement, or the code, does."""

    id: str
    kind: Kind
    where: str
    printed: str
    true: str
    stages: tuple[str, ...]
    measure: Callable[[Evidence], dict[str, float]]
    fails: Callable[[Numbers], bool]


@dataclass(frozen=True)
class Checked:
    erratum: Erratum
    numbers: dict[str, float]
    fails: bool | None  # None: not measured
    why: str = ""  # it was not


def checked(erratum: Erratum, evidence: Evidence, failed: Mapping[str, str] | None = None) -> Checked:
    if why := lacking(erratum.stages, evidence, failed):
        return Checked(erratum, {}, None, why)
    try:
        numbers = erratum.measure(evidence)
    except InputError as error:
        return Checked(erratum, {}, None, str(error))
    if not all(isfinite(value) for value in numbers.values()):
        return Checked(erratum, numbers, None, "the records have no number for it")
    return Checked(erratum, numbers, erratum.fails(numbers))
