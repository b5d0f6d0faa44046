"""`Comparison`: what `normgrowth.compare` returns."""

from dataclasses import dataclass
from typing import ClassVar

from normgrowth.results import Result
from normgrowth.text import one_line


@dataclass(frozen=True)
class Side:
    """One of the two traces. parameters: which it counts, in words."""

    source: str
    run: str
    step: int
    parameters: str = ""


@dataclass(frozen=True)
class Values:
    """Of one layer or the model, at the step that is compared; None where a value is undefined."""

    norm: float | None = None
    factor: float | None = None  # the norm over that at the first step
    cosine_first: float | None = None
    alignment: float | None = None
    total_share_steps: float | None = None


@dataclass(frozen=True)
class Row:
    """One layer, or the model, in both traces. Ratios are b over a."""

    __repr__ = one_line

    level: str
    name: str
    a: Values
    b: Values

    @property
    def norm_ratio(self) -> float | None:
        return _ratio(self.a.norm, self.b.norm)

    @property
    def factor_ratio(self) -> float | None:
        return _ratio(self.a.factor, self.b.factor)


def _ratio(a: float | None, b: float | None) -> float | None:
    return b / a if a and b is not None else None


@dataclass(frozen=True, kw_only=True)
class Comparison(Result):
    """Two traces side by side: a row for each layer and for the model, which comes last.

    matched: both are taken at the same step, the last that they share.
    """

    kind: ClassVar[str] = "comparison"

    a: Side
    b: Side
    matched: bool
    rows: tuple[Row, ...]

    @property
    def comparable(self) -> bool:
        """Whether both count the same parameters."""
        return self.a.parameters == self.b.parameters
