"""What a claim is, and how it is judged: evidence -> numbers -> a verdict with its reason.

Two functions for each claim, so that neither can cheat. `measure` takes numbers from records and knows no verdict;
`judge` takes numbers and knows no records. Whoever doubts a rule feeds it numbers of his own: a test does, and each
rule says no to a counter-example.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from normgrowth.errors import InputError
from normgrowth.records import Records

Verdict = Literal["holds", "in part", "does not hold", "undecided", "needs weights that are not here"]
HOLDS, IN_PART, FAILS, UNDECIDED, WEIGHTS = (
    "holds",
    "in part",
    "does not hold",
    "undecided",
    "needs weights that are not here",
)
Numbers = Mapping[str, float]
Evidence = Mapping[str, Records]  # by stage


@dataclass(frozen=True)
class Ruling:
    verdict: Verdict
    reason: str  # in a sentence, with the numbers that decide


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One row of the table.

    where      section and figure of the paper
    published  what is printed, in words; `source` says where from
    stages     whose records it is judged by; none: by the published numbers alone
    rule       what `judge` does, with its tolerances
    """

    id: str
    where: str
    statement: str
    published: str
    source: str
    stages: tuple[str, ...]
    measure: Callable[[Evidence], dict[str, float]]
    rule: str
    judge: Callable[[Numbers], Ruling]


@dataclass(frozen=True)
class Judged:
    """A claim with what was measured of it here."""

    claim: Claim
    numbers: dict[str, float]
    ruling: Ruling


def lacking(stages: Sequence[str], evidence: Evidence, failed: Mapping[str, str] | None) -> str:
    """What stands in the way of measuring on these stages, if anything."""
    for stage in stages:
        if stage not in evidence:
            return f"The stage {stage} has no records: {(failed or {}).get(stage, 'it was not run')}"
    return ""


def judged(claim: Claim, evidence: Evidence, failed: Mapping[str, str] | None = None) -> Judged:
    """Judge one claim. A stage that failed, or was not run, leaves its claims undecided."""
    if why := lacking(claim.stages, evidence, failed):
        return Judged(claim, {}, Ruling(UNDECIDED, f"{why}."))
    try:
        numbers = claim.measure(evidence)
    except InputError as error:
        return Judged(claim, {}, Ruling(UNDECIDED, f"The records do not tell: {error}."))
    unknown = [name for name, value in numbers.items() if not isfinite(value)]
    if unknown:
        return Judged(claim, numbers, Ruling(UNDECIDED, f"{unknown[0]} is no number in these records."))
    return Judged(claim, numbers, claim.judge(numbers))
