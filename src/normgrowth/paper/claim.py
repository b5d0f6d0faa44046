"""What a claim is, and how it is judged.

A claim is a class, and an instance is a measurement: its fields are the numbers (each subclass is a frozen dataclass).
`measure` reads the numbers from the evidence and knows no verdict; `judge` knows only the numbers. The docstring is the
rule that readers see.

    class NormSqrt(Claim):
        \"\"\"Holds if r² of a√t + b is at least 0.995.\"\"\"

        id, where, figure = "norm-sqrt", "§3, Fig. 1", "fig1"
        statement = "The parameter norm of T5-base grows as √t."
        published, source = "r² = 1.00, 104 checkpoints", "published (Figure 1)"
        scope = "encoder and decoder blocks of T5-base, and the encoder alone; no embeddings"
        would_change = "The norms of the checkpoints themselves, if they differ from the figure."
        r2: float = number("r² of a√t + b")

A discrepancy has the same form, with `differs` instead of `judge`: the paper is wrong as printed (`errata`), the
authors' code differs from their text (`departures`), or a true statement has a limit that readers should know
(`caveats`).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from inspect import cleandoc
from math import isfinite
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from normgrowth.errors import InputError
from normgrowth.paper.evidence import Evidence
from normgrowth.paper.reproduction import Check, Judgment, Verdict, finite


def number(label: str, **default: Any) -> Any:
    """A field with the label that readers see. If its value is a dictionary, the label precedes each key."""
    return field(metadata={"label": label}, **default)


@dataclass(frozen=True)
class Ruling:
    """A verdict with its reason: a sentence with the numbers that decide."""

    verdict: Verdict
    reason: str


def holds(reason: str) -> Ruling:
    return Ruling("holds", reason)


def in_part(reason: str) -> Ruling:
    return Ruling("holds in part", reason)


def fails(reason: str) -> Ruling:
    return Ruling("does not hold", reason)


def not_shown(reason: str) -> Ruling:
    """The ruling if the numbers are inconclusive, or come from models that are too small."""
    return Ruling("not shown", reason)


def not_measured(reason: str) -> Ruling:
    return Ruling("not measured here", reason)


@dataclass_transform(frozen_default=True, field_specifiers=(number,))
@dataclass(frozen=True)
class Measured(ABC):
    """The common base of claims and discrepancies. needs: the stages whose results `measure` reads."""

    id: ClassVar[str]
    where: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    @classmethod
    @abstractmethod
    def measure(cls, evidence: Evidence, /) -> Self:
        """Read the numbers from the evidence. Raises MissingEvidence if it lacks them."""

    def numbers(self) -> dict[str, float]:
        """The numbers by label, without those that are None."""
        found: dict[str, float] = {}
        for one in fields(self):
            value, label = getattr(self, one.name), one.metadata["label"]
            if isinstance(value, Mapping):
                found |= {f"{label}{name}": float(item) for name, item in value.items()}
            elif value is not None:
                found[label] = float(value)
        return found


class Claim(Measured):
    """A claim of the paper. where: section and figure. published: what the paper prints. source: of these numbers.

    scope: what the verdict covers. would_change: which measurement would change the verdict.
    """

    statement: ClassVar[str]
    published: ClassVar[str]
    source: ClassVar[str]
    scope: ClassVar[str]
    would_change: ClassVar[str]
    figure: ClassVar[str | None] = None

    @abstractmethod
    def judge(self) -> Ruling:
        """The verdict of the rule, with its reason."""


class Discrepancy(Measured):
    """An erratum, a departure or a caveat.

    stated: what is printed, or what the authors' code does. correct: what is true, or what their text says.
    """

    stated: ClassVar[str]
    correct: ClassVar[str]

    @abstractmethod
    def differs(self) -> bool:
        """Whether the numbers show that `stated` and `correct` differ."""


def rule(claim: type[Claim]) -> str:
    """The rule of a claim: its docstring, in one line."""
    return " ".join(cleandoc(claim.__doc__ or "").split())


def judge(claim: type[Claim], evidence: Evidence) -> Judgment:
    """Judge a claim; its verdict is "not measured here" if a stage that it needs failed or was not run."""
    numbers, why, measured = _measured(claim, evidence)
    ruling = measured.judge() if measured is not None else not_measured(f"Not measured: {why}.")
    return Judgment(
        id=claim.id,
        where=claim.where,
        statement=claim.statement,
        published=claim.published,
        source=claim.source,
        rule=rule(claim),
        verdict=ruling.verdict,
        reason=ruling.reason,
        scope=claim.scope,
        data="; ".join(
            [evidence.t5.data_of(claim.source), *(evidence.described(stage) for stage in claim.needs)]
        ),
        would_change=claim.would_change,
        measured=finite(numbers),
        needs=claim.needs,
        figure=claim.figure,
    )


def check(one: type[Discrepancy], evidence: Evidence) -> Check:
    numbers, why, measured = _measured(one, evidence)
    return Check(
        id=one.id,
        where=one.where,
        stated=one.stated,
        correct=one.correct,
        measured=finite(numbers),
        differs=None if measured is None else bool(measured.differs()),
        reason=why,
    )


M = TypeVar("M", bound=Measured)


def _measured(kind: type[M], evidence: Evidence) -> tuple[dict[str, float], str, M | None]:
    """The numbers, the reason if the measurement is missing, and the measurement."""
    try:
        measured = kind.measure(evidence)
    except InputError as error:
        return {}, str(error), None
    numbers = measured.numbers()
    unknown = [label for label, value in numbers.items() if not isfinite(value)]
    return (numbers, f"{unknown[0]} is not a number", None) if unknown else (numbers, "", measured)
