"""What a claim is, and how it is judged.

A claim is a class, and an instance of it is what was measured: its fields are the numbers. `measure` takes them from
the evidence and sees no verdict; `judge` sees the numbers and no evidence. The docstring is the rule that readers see.

    @dataclass(frozen=True)
    class NormSqrt(Claim):
        \"\"\"Holds if r² of a√t + b is at least 0.995.\"\"\"

        id, where, figure = "norm-sqrt", "§3, Fig. 1", "fig1"
        statement = "The parameter norm of T5-base follows a√t + b."
        published, source = "r² = 1.00, 104 checkpoints", "published (Figure 1)"
        r2: float = number("r2 of a√t + b")

Errata (the paper is wrong as printed) and departures (the authors' code does something else than their text) have the
same form, with `differs` instead of `judge`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from inspect import cleandoc
from math import isfinite
from typing import Any, ClassVar, Self, TypeVar

from normgrowth.errors import InputError
from normgrowth.paper.evidence import Evidence
from normgrowth.paper.reproduction import Check, Judgement, Verdict, finite


def number(label: str, **default: Any) -> Any:
    """A field with the label that readers see. Of a dictionary, the label is put before each key."""
    return field(metadata={"label": label}, **default)


@dataclass(frozen=True)
class Ruling:
    """reason: a sentence with the numbers that decide."""

    verdict: Verdict
    reason: str


def holds(reason: str) -> Ruling:
    return Ruling("holds", reason)


def in_part(reason: str) -> Ruling:
    return Ruling("in part", reason)


def fails(reason: str) -> Ruling:
    return Ruling("does not hold", reason)


def undecided(reason: str) -> Ruling:
    return Ruling("undecided", reason)


def needs_weights(reason: str) -> Ruling:
    return Ruling("needs weights that are not here", reason)


@dataclass(frozen=True)
class Measured:
    """What claims, errata and departures have in common. needs: the stages whose results `measure` reads."""

    id: ClassVar[str]
    where: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def measure(cls, evidence: Evidence, /) -> Self:
        raise NotImplementedError

    def numbers(self) -> dict[str, float]:
        """By label; numbers that are None are left out."""
        found: dict[str, float] = {}
        for one in fields(self):
            value, label = getattr(self, one.name), one.metadata["label"]
            if isinstance(value, Mapping):
                found |= {f"{label}{name}": float(item) for name, item in value.items()}
            elif value is not None:
                found[label] = float(value)
        return found


@dataclass(frozen=True)
class Claim(Measured):
    """where: section and figure of the paper. published: what is printed; source: where that is from."""

    statement: ClassVar[str]
    published: ClassVar[str]
    source: ClassVar[str]
    figure: ClassVar[str | None] = None

    def judge(self) -> Ruling:
        raise NotImplementedError


@dataclass(frozen=True)
class Erratum(Measured):
    """A statement that is wrong as printed."""

    printed: ClassVar[str]
    correct: ClassVar[str]

    def differs(self) -> bool:
        """Whether the numbers show that the printed statement fails."""
        raise NotImplementedError


@dataclass(frozen=True)
class Departure(Measured):
    """code: what the authors' code or runs do. should: what their text says, or would be right."""

    code: ClassVar[str]
    should: ClassVar[str]

    def differs(self) -> bool:
        """Whether the numbers show that the two differ."""
        raise NotImplementedError


def rule(claim: type[Claim]) -> str:
    """The docstring, in one line."""
    return " ".join(cleandoc(claim.__doc__ or "").split())


def judge(claim: type[Claim], evidence: Evidence) -> Judgement:
    """A claim whose stage failed, or was not run, is undecided."""
    numbers, why, measured = _measured(claim, evidence)
    ruling = measured.judge() if measured is not None else undecided(f"Not measured: {why}.")
    return Judgement(
        id=claim.id,
        where=claim.where,
        statement=claim.statement,
        published=claim.published,
        source=claim.source,
        rule=rule(claim),
        verdict=ruling.verdict,
        reason=ruling.reason,
        measured=finite(numbers),
        needs=claim.needs,
        figure=claim.figure,
    )


def check(one: type[Erratum] | type[Departure], evidence: Evidence) -> Check:
    numbers, why, measured = _measured(one, evidence)
    stated, correct = (one.printed, one.correct) if issubclass(one, Erratum) else (one.code, one.should)
    return Check(
        id=one.id,
        where=one.where,
        stated=stated,
        correct=correct,
        measured=finite(numbers),
        differs=None if measured is None else bool(measured.differs()),
        reason=why,
    )


M = TypeVar("M", bound=Measured)


def _measured(kind: type[M], evidence: Evidence) -> tuple[dict[str, float], str, M | None]:
    """The numbers, and the measurement, or why there is none."""
    try:
        measured = kind.measure(evidence)
    except InputError as error:
        return {}, str(error), None
    numbers = measured.numbers()
    unknown = [label for label, value in numbers.items() if not isfinite(value)]
    return (numbers, f"{unknown[0]} is not a number", None) if unknown else (numbers, "", measured)
