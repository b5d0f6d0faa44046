"""The log of one forward pass in the limit: sums of unequal degree, ties, findings, and the current module."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch

from normgrowth.errors import NoLimit, UnsupportedOperation
from normgrowth.limit.limit_findings import PassFinding

Degree = Fraction | None  # None: exactly zero


@dataclass(frozen=True)
class Sum:
    """A sum whose terms differ in degree: only the higher term remains in the limit."""

    module: str
    kept: Fraction
    dropped: Fraction
    kept_sources: int
    dropped_sources: int
    run: int = 0  # which run of the module, from 0: a shared layer runs several times


@dataclass(frozen=True)
class Tie:
    """Softmax rows in which several keys tie for the largest score."""

    module: str
    rows: int  # number of all rows
    tied: int  # rows with a tie in the leading order
    near: int  # tied rows that are equal only within the tolerance
    uniform: int  # rows with a tie that no order breaks; the tied keys get equal weights
    undecided: int  # rows with a tie that an omitted order might break


@dataclass
class Context:
    orders: int = 1
    tolerance: float = 256  # units of rounding of the largest score
    attention_only: bool = False
    exponentials: bool = False  # compute parts that are smaller than any power of c
    parameters: list[str] = field(default_factory=list)  # parameters that grow; one bit of `sources` each
    training: bool = False  # some module is in training mode
    sums: list[Sum] = field(default_factory=list)
    ties: list[Tie] = field(default_factory=list)
    cancelled: Counter[str] = field(
        default_factory=Counter
    )  # module -> number of leading terms that cancel to 0
    doubtful: int = 0  # values that depend on a tie that an omitted order might break
    unranked: int = 0  # values that depend on an exponentially small part that was not computed
    findings: dict[PassFinding, int] = field(default_factory=dict)  # finding -> count
    coarsest: float = 0.0  # largest unit of rounding among dtypes that coefficients were cast to
    path: list[str] = field(default_factory=list)
    entered: Counter[str] = field(default_factory=Counter)  # module -> number of started runs

    def eps(self, dtype: torch.dtype) -> float:
        """The unit of rounding of a dtype, at least that of the coarsest dtype that the network cast to."""
        return max(torch.finfo(dtype).eps, self.coarsest)

    @property
    def module(self) -> str:
        return self.path[-1] if self.path else ""

    @contextmanager
    def inside(self, module: str) -> Iterator[None]:
        self.path.append(module)
        try:
            yield
        finally:
            self.path.pop()

    def find(self, finding: PassFinding) -> None:
        self.findings[finding] = self.findings.get(finding, 0) + 1

    def refuse(self, operation: Any, why: str, degrees: Sequence[Degree] = ()) -> UnsupportedOperation:
        return UnsupportedOperation(str(operation), self.module, degrees, why)

    def diverges(self, operation: Any, degrees: Sequence[Degree], sources: int) -> NoLimit:
        """The error for a value that grows faster than any power of c."""
        names = [name for bit, name in enumerate(self.parameters) if sources >> bit & 1]
        return NoLimit(str(operation), self.module, degrees, parameters=names)
