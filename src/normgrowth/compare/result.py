"""`Comparison`: what `normgrowth.compare` returns."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from normgrowth.results import Result
from normgrowth.text import one_line


@dataclass(frozen=True)
class Side:
    """One of the two runs. parameters: which it counts, in words."""

    source: str
    run: str
    step: int
    parameters: str = ""
    ranks: int = 1
    dtypes: dict[str, int] = field(default_factory=dict)  # number of tensors of each number type


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


@dataclass(frozen=True)
class Alignment:
    """What was compared. steps: how many are shared; renamed: name in a -> in b; only_a, only_b: of one run alone."""

    level: str = "tensor"
    steps: int = 0
    first_step: int | None = None
    last_step: int | None = None
    names: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    renamed: dict[str, str] = field(default_factory=dict)
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()


@dataclass(frozen=True)
class Parting:
    """The first step at which a stage differs by more than rounding explains, and the tensor that differs most there.

    difference: that of a and b over the larger. floor: what rounding explains. tensors: how many differ at this step.
    a, b: the values, None where they are not finite. previous: the step before, at which they agreed; None if none.
    """

    stage: str
    step: int
    name: str
    a: float | None
    b: float | None
    difference: float
    floor: float
    tensors: int
    previous: int | None = None


@dataclass(frozen=True)
class Diagnosis:
    """A cause, by rule, with its evidence: the tensors that differ at the step, out of how many.

    a, b: the values of the first of them, or the thresholds that gradients are clipped to. factor: b over a, where one
    factor fits all of these tensors. group: what the tensors have in common ("layer 3", "role norm"). only_a: tensors
    of a alone, or whose value is 0 in b; only_b: likewise. run: the run with the peculiarity, where one can be named;
    ranks: of this run, else the larger number; dtype: its number type, where that matters. previous: the step before,
    at which they agreed.
    """

    cause: str
    stage: str
    step: int
    tensors: tuple[str, ...]
    of: int
    difference: float
    floor: float
    a: float | None = None
    b: float | None = None
    factor: float | None = None
    group: str = ""
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    run: str = ""
    ranks: int = 1
    dtype: str = ""
    previous: int | None = None


@dataclass(frozen=True)
class Noise:
    """The largest relative difference of the weights before the runs part, and its growth per step.

    growth: None where it is unknown. source: where the noise floor comes from ("dtypes", "control"). blind_from: the
    step from which on rounding may have grown so far that smaller faults cannot be seen; None if it has not.
    """

    source: str = "dtypes"
    first_step: int | None = None
    first: float = 0.0
    last_step: int | None = None
    last: float = 0.0
    growth: float | None = None
    blind_from: int | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison(Result):
    """Where two runs part, and their growth side by side: a row for each layer and for the model, which comes last.

    matched: growth is taken at the same step, the last that both share. partings: the first difference of each stage,
    the earliest first; none if the runs agree. diagnoses: causes, the earliest first. The records have the relative
    difference of each tensor, step and stage (run "difference") and the noise floor (run "floor").
    """

    kind: ClassVar[str] = "comparison"

    a: Side
    b: Side
    matched: bool
    rows: tuple[Row, ...]
    alignment: Alignment = field(default_factory=Alignment)
    partings: tuple[Parting, ...] = ()
    diagnoses: tuple[Diagnosis, ...] = ()
    noise: Noise = field(default_factory=Noise)
    tolerance: float = 0.0
    control: str = ""

    def to_json(self, *, tensors: bool = False) -> dict[str, Any]:
        """All fields and the rows of the model and layers; with `tensors` also those of single tensors."""
        return super().to_json(tensors=tensors)

    @property
    def comparable(self) -> bool:
        """Whether both count the same parameters."""
        return self.a.parameters == self.b.parameters

    @property
    def parted(self) -> bool:
        """Whether they differ by more than rounding explains."""
        return bool(self.partings)

    @property
    def judged(self) -> bool:
        """Whether they share any step and tensor to compare."""
        return bool(self.alignment.steps and self.alignment.names)

    @property
    def main_stage(self) -> str:
        """The stage of the earliest difference; the weights after a step, if there is none."""
        return self.partings[0].stage if self.partings else "weights_after"
