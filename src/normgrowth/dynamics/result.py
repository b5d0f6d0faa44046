"""`Dynamics`: the result of `normgrowth.dynamics`."""

from dataclasses import dataclass, field, fields, replace
from math import nan
from typing import ClassVar, Literal

from normgrowth.dynamics.observed.direction import Direction
from normgrowth.dynamics.observed.uniformity import Uniformity
from normgrowth.dynamics.prediction import Model
from normgrowth.dynamics.weight_decay import EquilibriumAt, OptimizerSettings
from normgrowth.moments.levels import MATRICES
from normgrowth.results import Result
from normgrowth.schedules import Schedule
from normgrowth.serialization.checksums import JsonObject
from normgrowth.text import one_line, visible

Verdict = Literal["aligned", "misaligned", "both", "between", "neither", "undecided"]
OpenQuestion = Literal["model", "single_steps", "one_direction", "weight_decay", "kappa_interval"]


@dataclass(frozen=True)
class GrowthBudget:
    """Where the growth of ‖θ‖² comes from, summed over all intervals up to the step `until`.

    until: the last step with finite sums. growth: the growth of ‖θ‖². by_alignment, by_steps: the shares of 2⟨θ,δ⟩ and
    of ‖δ‖² in this growth. by_decay: the loss of ‖θ‖² to weight decay; NaN if unknown. displacement:
    ‖θ_T − θ_0‖²/Σ‖δ‖², which is 1 if intervals are independent and their number if all have the same direction.
    """

    until: int
    growth: float
    by_alignment: float
    by_steps: float
    by_decay: float
    displacement: float


@dataclass(frozen=True)
class ModelFit:
    """One model of the dynamics, aligned or misaligned, fitted to a trace.

    kappa, kappa_low, kappa_high: κ in ‖δ‖ = κη‖θ‖, fitted to the step sizes, with a 95% confidence interval, which is
    NaN for few intervals. kappa_drift: κ of the later half over κ of the earlier half; 1 under Assumption 1.
    kappa_by_interval: κ of each interval; NaN if undefined. growth_kappa: the κ that reproduces the growth of the norm;
    it equals kappa if the model is right. predicted: norms at the steps, from the given κ or else the fitted one.
    error: rms of log(predicted/measured).
    """

    __repr__ = one_line

    model: Model
    kappa: float
    kappa_low: float
    kappa_high: float
    kappa_drift: float
    kappa_by_interval: tuple[float, ...]
    growth_kappa: float
    predicted: tuple[float, ...]
    error: float


@dataclass(frozen=True)
class Rounding:
    """Bounds of the errors that rounding of published digits can cause.

    norms, step_sizes, alignments: of the fields of these names. growth: of the growth of ‖θ‖². share: of the shares of
    both terms in it.
    """

    __repr__ = one_line

    norms: tuple[float, ...]
    step_sizes: tuple[float, ...]
    alignments: tuple[float, ...]
    growth: float
    share: float


@dataclass(frozen=True)
class MatrixGrowth:
    """The growth of the matrices, with the fields that `Dynamics` has for the model.

    vector_share: the share of gains, biases and other vectors in ‖θ‖², the larger of the first and the last step.
    """

    __repr__ = one_line

    vector_share: float
    norms: tuple[float, ...]
    step_sizes: tuple[float, ...]
    alignments: tuple[float, ...]
    alignment: float
    budget: GrowthBudget
    aligned: ModelFit | None
    misaligned: ModelFit | None
    verdict: Verdict | None
    direction: Direction
    equilibria: tuple[EquilibriumAt, ...]
    open_questions: tuple[OpenQuestion, ...]


@dataclass(frozen=True, kw_only=True)
class Dynamics(Result):
    """Why the norm of a model, or of a part of it, grew.

    steps, norms: steps and norms of the checkpoints. step_sizes, alignments: ‖δ‖ and cos(δ, θ) of each interval.
    alignment: the mean of the alignments. checkpoint_gap: smallest and largest number of optimizer steps between
    checkpoints.
    aligned, misaligned, verdict: None without a schedule. verdict: the model that predicts the norm; "between" means
    that the norm grew more than misaligned dynamics predict and less than aligned dynamics, "undecided" that it changed
    too little compared with the error of the closest model. It is that of the model or of the part `name`; if vectors
    hide the matrices, tables and pages lead with `leading.verdict`, which is `matrices.verdict`. kappa: the given κ.
    open_questions: questions that the trace cannot answer.
    rounding: for published numbers, bounds of their rounding errors; else None.
    matrices: the growth of the matrices, if vectors make so much of ‖θ‖² of the model that they hide it; else None.
    uniformity: by level. equilibria: at the largest and at the last learning rate, if weight decay is known.
    records: the measured rows, with the predictions `norm_if_aligned` and `norm_if_misaligned`, and the
    `share` of each layer, role and tensor in ‖θ‖².
    """

    kind: ClassVar[str] = "dynamics"

    source: str
    run: str
    parameters: str = ""  # description of the counted parameters, if known
    level: str = "model"
    name: str = "model"
    schedule: Schedule | None = None
    kappa: float | None = None
    weight_decay: float | None = None
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    steps: tuple[int, ...]
    norms: tuple[float, ...]
    step_sizes: tuple[float, ...]
    alignments: tuple[float, ...]
    alignment: float = nan
    checkpoint_gap: tuple[int, int]
    budget: GrowthBudget
    aligned: ModelFit | None = None
    misaligned: ModelFit | None = None
    verdict: Verdict | None = None
    direction: Direction
    uniformity: dict[str, Uniformity] = field(default_factory=dict)
    equilibria: tuple[EquilibriumAt, ...] = ()
    open_questions: tuple[OpenQuestion, ...] = ()
    rounding: Rounding | None = None
    matrices: MatrixGrowth | None = None

    @property
    def leading(self) -> "Dynamics":
        """Return what tables, figures and pages show first: the dynamics of the matrices if vectors hide them."""
        if self.matrices is None:
            return self
        of_matrices = {one.name: getattr(self.matrices, one.name) for one in fields(self.matrices)}
        del of_matrices["vector_share"]
        return replace(self, level="part", name=MATRICES, matrices=None, **of_matrices)

    def to_json(self, *, tensors: bool | None = None) -> JsonObject:
        """Return all fields and the records; rows of tensors only with `tensors` or if a tensor is explained."""
        return super().to_json(tensors=tensors or self.level == "tensor")

    def __repr__(self) -> str:
        """Return one line with the verdict."""
        return f"Dynamics({visible(self.name)}, {len(self.steps):,} checkpoints; verdict: {self.verdict})"
