"""`Comparison`: the result of `normgrowth.compare`."""

from dataclasses import dataclass, field
from typing import ClassVar

from normgrowth.results import Result
from normgrowth.text import one_line, visible


@dataclass(frozen=True)
class Side:
    """One of the two runs. parameters: description of the counted parameters."""

    source: str
    run: str
    step: int
    parameters: str = ""
    ranks: int = 1
    dtypes: dict[str, int] = field(default_factory=dict)  # number of tensors of each dtype
    compute_dtypes: tuple[str, ...] = ()  # of the forward passes, other than those of the weights
    left_out: int = 0  # the number of tensors of the model that are not counted


@dataclass(frozen=True)
class Values:
    """Values of one layer or of the model at the compared step; None if undefined."""

    norm: float | None = None
    factor: float | None = None  # norm over the norm at the first step
    cosine_first: float | None = None
    alignment: float | None = None
    total_share_steps: float | None = None
    total_growth: float | None = None  # of ‖θ‖² since the first step, and its two terms
    total_growth_steps: float | None = None
    total_growth_alignment: float | None = None


@dataclass(frozen=True)
class ComparedRow:
    """One layer or the model in both traces. Ratios are b over a."""

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
    """The compared steps and tensors.

    steps: number of common steps. renamed: name in a -> name in b. only_a, only_b: tensors of only one run.
    """

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

    a, b: the values; None if not finite. difference: abs(a − b) over the larger. floor: the difference that rounding
    explains. tensors: number of tensors that differ at this step. previous: the previous step, at which the runs
    agreed; None if there is none.
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
class Setting:
    """A setting of the optimizer that differs between the runs, with its values as text."""

    name: str
    a: str
    b: str


@dataclass(frozen=True)
class Diagnosis:
    """A cause with its evidence.

    tensors, of: the tensors that differ at the step, and the number of compared tensors.
    a, b: the values of the first of these tensors, or the thresholds of gradient clipping.
    cosines: the cosines of its gradient, or of its step, to its weights in a and b; None if unknown.
    factor: b over a, if one factor fits all of these tensors; for "part", the factor of the others after clipping.
    group: what the tensors have in common ("layer 3", "role norm").
    outliers: tensors that differ by another factor.
    only_a: tensors that only a has, or whose value is 0 in b. only_b: likewise.
    run: the run that deviates, if it can be determined. ranks: number of processes of this run, else the larger number.
    dtype: the dtype of this run, if it matters.
    previous: the previous step, at which the runs agreed.
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
    cosines: tuple[float, float] | None = None
    outliers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Noise:
    """The largest relative difference of the weights before the runs diverge, and its growth per step.

    growth: None if unknown. source: what the noise floor is based on ("dtypes", "control"); "dtypes" if the control run
    is identical to a. blind_from: the step from
    which amplified rounding may hide smaller faults; None if there is no such step.
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
    """Where two runs diverge, and their growth: one row per layer, and a last row for the model.

    matched: growth is compared at the same step, the last common one. partings: the first difference of each stage,
    earliest first; empty if the runs agree. diagnoses: causes, earliest first. settings: those of the optimizers that
    differ. The records contain the relative difference of each tensor, step and stage (run "difference") and the noise
    floor (run "floor").
    """

    kind: ClassVar[str] = "comparison"
    many_tensors: ClassVar[bool] = True

    a: Side
    b: Side
    matched: bool
    rows: tuple[ComparedRow, ...]
    alignment: Alignment = field(default_factory=Alignment)
    partings: tuple[Parting, ...] = ()
    diagnoses: tuple[Diagnosis, ...] = ()
    noise: Noise = field(default_factory=Noise)
    tolerance: float = 0.0
    control: str = ""
    settings: tuple[Setting, ...] = ()

    def __repr__(self) -> str:
        """Return one line: the runs, and the step and cause of the first difference."""
        if self.diagnoses:
            said = f"diverge at step {self.diagnoses[0].step:,}: {self.diagnoses[0].cause}"
        elif self.parted:
            said = f"diverge at step {self.partings[0].step:,}"
        else:
            said = "no difference" if self.judged else "nothing in common"
        return f"Comparison(a: {visible(self.a.source)}, b: {visible(self.b.source)}; {said})"

    @property
    def comparable(self) -> bool:
        """Whether both runs count the same parameters."""
        return self.a.parameters == self.b.parameters

    @property
    def parted(self) -> bool:
        """Whether the runs differ by more than rounding explains."""
        return bool(self.partings)

    @property
    def judged(self) -> bool:
        """Whether the runs have any common step and tensor."""
        return bool(self.alignment.steps and self.alignment.names)

    @property
    def main_stage(self) -> str:
        """Return the stage of the earliest difference; "weights_after" if there is none."""
        return self.partings[0].stage if self.partings else "weights_after"
