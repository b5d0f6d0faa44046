"""What a claim is, and how it is judged.

A claim is a class, and an instance of it is what was measured: its fields are the numbers. `measure` takes them from
the evidence and sees no verdict; `judge` sees the numbers and no evidence. The docstring is the rule that readers see.

    @dataclass(frozen=True)
    class NormSqrt(Claim):
        \"\"\"Holds if r² of a√t + b is at least 0.995.\"\"\"

        id, where, figure = "norm-sqrt", "§3, Fig. 1", "fig1"
        statement = "The parameter norm of T5-base grows as √t."
        published, source = "r² = 1.00, 104 checkpoints", "published (Figure 1)"
        scope = "encoder and decoder blocks of T5-base, and the encoder alone; no embeddings"
        would_change = "The norms of the checkpoints themselves, if they differ from the figure."
        r2: float = number("r² of a√t + b")

A discrepancy has the same form, with `differs` instead of `judge`: the paper is wrong as printed (`errata`), the
authors' code does something else than their text (`departures`), or a true statement has a limit that readers should
know (remarks, in `errata`).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from inspect import cleandoc
from math import isfinite
from typing import Any, ClassVar, Self, TypeVar

from normgrowth.errors import InputError
from normgrowth.paper.evidence import Evidence
from normgrowth.paper.reproduction import Check, Judgment, Verdict, finite


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
    return Ruling("holds in part", reason)


def fails(reason: str) -> Ruling:
    return Ruling("does not hold", reason)


def not_shown(reason: str) -> Ruling:
    """The numbers decide neither way, or come from models that are too small to judge by."""
    return Ruling("not shown", reason)


def not_measured(reason: str) -> Ruling:
    return Ruling("not measured here", reason)


@dataclass(frozen=True)
class Measured(ABC):
    """What claims and discrepancies have in common. needs: the stages whose results `measure` reads."""

    id: ClassVar[str]
    where: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @abstractmethod
    def measure(cls, evidence: Evidence, /) -> Self:
        """The numbers of the evidence; raises MissingEvidence if it lacks them."""

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
    """where: section and figure of the paper. published: what is printed; source: where that is from.

    scope: what the verdict is about. would_change: which measurement would change it.
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


@dataclass(frozen=True)
class Discrepancy(Measured):
    """stated: what is printed, or what the authors' code does. correct: what is true, or what their text says."""

    stated: ClassVar[str]
    correct: ClassVar[str]

    @abstractmethod
    def differs(self) -> bool:
        """Whether the numbers show that the two differ."""


def rule(claim: type[Claim]) -> str:
    """The docstring, in one line."""
    return " ".join(cleandoc(claim.__doc__ or "").split())


def judge(claim: type[Claim], evidence: Evidence) -> Judgment:
    """A claim whose stage failed, or was not run, is not measured here."""
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
    """The numbers, and the measurement, or why there is none."""
    try:
        measured = kind.measure(evidence)
    except InputError as error:
        return {}, str(error), None
    numbers = measured.numbers()
    unknown = [label for label, value in numbers.items() if not isfinite(value)]
    return (numbers, f"{unknown[0]} is not a number", None) if unknown else (numbers, "", measured)
