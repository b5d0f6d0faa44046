"""`Degrees`: the degree of every part of a model, the sums that drop a term, and the parameters that vanish.

A part of degree k grows like c^k when all parameters are multiplied by c. The records have the quantity `degree` of
every submodule (level "module"); NaN if its output is exactly zero.
"""

import re
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Literal

from normgrowth.errors import InputError
from normgrowth.results import Result
from normgrowth.text import one_line, visible

if TYPE_CHECKING:
    pass

Degree = Fraction | None  # None: exactly zero
SumKind = Literal["bias", "constant", "stream", "branch", "same", "other"]
Why = Literal["zero", "dropped", "unused"]


@dataclass(frozen=True)
class ModuleDegree:
    """A submodule: one row of the table.

    lower: lower degrees in its output. inputs: degrees of its tensor arguments. by_run, inputs_by_run: degrees in every
    run of a module that runs several times; `degree`, `lower` and `inputs` are from the last run. owns: whether it has
    parameters outside its submodules. grows: whether its output depends on parameters.
    """

    __repr__ = one_line

    module: str
    class_name: str
    degree: Degree
    lower: tuple[Fraction, ...] = ()
    inputs: tuple[Degree, ...] = ()
    by_run: tuple[Degree, ...] = ()
    inputs_by_run: tuple[tuple[Degree, ...], ...] = ()
    owns: bool = False
    grows: bool = False

    @property
    def runs(self) -> int:
        return len(self.by_run)


@dataclass(frozen=True)
class DroppedTerm:
    """A sum whose terms differ in degree: the lower term is dropped in the limit.

    kept_from, dropped_from: the module that computed the term; None if it is not the output of a single module.
    dropped_parameters: parameters that only the dropped term depends on. kind: the relation of the terms: the dropped
    term is a bias, a constant, the residual stream from which the kept term was computed, or a branch computed from
    the kept term; or both depend on the same parameters. runs: runs of the module with this sum, from 0.
    """

    module: str
    kept: Fraction
    dropped: Fraction
    kept_from: str | None
    dropped_from: str | None
    dropped_parameters: tuple[str, ...]
    kind: SumKind
    runs: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class TiedScores:
    """Softmax rows in which several keys tie for the largest score.

    rows: all softmax rows of the module. tied: rows with a tie in the leading order. near: tied rows whose scores are
    equal only within the tolerance. uniform: rows whose tie no order breaks, so that the keys get equal weight.
    undecided: rows with a tie that an omitted order might break.
    """

    module: str
    rows: int
    tied: int
    near: int
    uniform: int
    undecided: int


@dataclass(frozen=True)
class LimitFinding:
    """A warning about a limit, such as a finite mask that growing scores outgrow."""

    kind: str
    module: str
    degree: Fraction
    operation: str = ""
    value: float | None = None
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Degrees(Result):
    """The degree of every part of a model.

    model: its class. outputs: the degree of each output; None: exactly zero. vanished: parameters that no output
    depends on in the limit, with the reason. parameters: names of all parameters that grow. orders: number of computed
    orders. undecided_values: number of values that further orders might change. cancelled: by module, the number of
    leading terms that cancel to 0 without a computed lower order. explanation: all of this in sentences.
    """

    kind: ClassVar[str] = "degrees"

    source: str = ""
    model: str = ""
    input: str = "given"  # description of the inputs
    unknown_share: float | None = None  # share of unknown tokens; None: not text
    fixed: tuple[str, ...] = ()  # parameters that do not grow, as names or patterns
    outputs: dict[str, Degree] = field(default_factory=dict)
    modules: tuple[ModuleDegree, ...] = ()
    dropped_terms: tuple[DroppedTerm, ...] = ()
    vanished: dict[str, Why] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    ties: tuple[TiedScores, ...] = ()
    orders: int = 1
    undecided_values: int = 0
    cancelled: dict[str, int] = field(default_factory=dict)
    findings: tuple[LimitFinding, ...] = ()
    explanation: tuple[str, ...] = ()

    def select(self, pattern: str = "", depth: int | None = None) -> "Degrees":
        """The result for modules whose name matches a regular expression and has at most `depth` parts."""
        try:
            chosen = re.compile(pattern)
        except re.error as error:
            raise InputError(f"invalid regular expression {pattern!r}: {error}") from None
        modules = [
            row
            for row in self.modules
            if chosen.search(row.module) and (not depth or len(row.module.split(".")) <= depth)
        ]
        return replace(self, modules=tuple(modules))

    def __repr__(self) -> str:
        """One line, because a model has hundreds of submodules."""
        vanished = f"{len(self.vanished):,} of {len(self.parameters):,} parameters vanish"
        return f"Degrees({visible(self.model)}; {len(self.modules):,} modules; {vanished})"
