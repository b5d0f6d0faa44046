"""The noise floor: how much two correct runs may differ by rounding, which training amplifies.

At the first step, a stage may differ by some units of the coarser dtype (BASE). The allowed difference then grows by a
factor of JUMP from one measured step to the next, and by GROWTH for each unmeasured step in between, up to LIMIT.
There is a limit because norms of two runs that differ only by rounding stay close even if their weights do not. After
the first step at which a stage exceeds its floor, the floor no longer rises with observed differences.

Where the weights differ by rounding, the gradient may jump by KINK at kinks of activations: see `kinks`. What is
computed from the gradient may differ by PASSED_ON times its largest difference so far.

With a control run, the floor is MARGIN times the largest difference so far between the control and the first run.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from normgrowth.compare.step_stages import RunValues
from normgrowth.schedules import SEVERAL

Floats = NDArray[np.float64]

# The unit of rounding of each dtype; unknown dtypes are treated as float32.
EPSILON = {
    "F64": 2.0**-52,
    "F32": 2.0**-23,
    "F16": 2.0**-10,
    "BF16": 2.0**-7,
    "F8_E4M3": 0.125,
    "F8_E5M2": 0.25,
}
# Floor of each stage at the first step: units of rounding, and upper limit. It is ten times the largest difference in
# test runs that differ only by rounding: Adam divides small gradients by their own size and amplifies their rounding.
BASE = {
    "weights_before": (64, 0.01),
    "gradient": (256, 0.1),
    "decay_part": (512, 0.02),
    "gradient_part": (1024, 0.25),
    "step": (1024, 0.25),
    "weights_after": (64, 0.01),
}
# With autocast, gradients and steps have the floor of the coarser dtype from the first step on, other stages later.
# Optimizers that compute their steps in a coarser dtype than the weights: Muon orthogonalizes in bfloat16. Units of
# this dtype by which a step may differ. All later stages may then differ as if the weights had this dtype.
STEP_DTYPE = {"Muon": "BF16"}
STEP_UNITS = 4
OF_SUMS = 1e-14  # relative rounding error of the norms themselves
RATE = 1e-6  # learning rates are set, not computed
LIMIT = {
    "weights_before": 0.02,
    "gradient": 0.5,
    "decay_part": 0.02,
    "gradient_part": 0.3,
    "step": 0.3,
    "weights_after": 0.02,
}
OF_STEP = ("gradient_part", "step")
AFTER_GRADIENT = (*OF_STEP, "weights_after")
JUMP, GROWTH, MARGIN = 10.0, 1.5, 4.0
# The largest difference of a gradient by kinks; 8e-4 is the largest seen for a single one, of 590,000 activations.
KINK = 0.01
# What is computed from a gradient may differ by these multiples of the gradient's difference. Adam divides small values
# by their own size: 4.5 times is the largest seen. Weights that are 0 at first differ as their steps do, on average.
PASSED_ON = dict.fromkeys(OF_STEP, 20.0) | dict.fromkeys(
    ("decay_part", "weights_before", "weights_after"), 4.0
)
UNMEASURED = 1e-4  # assumed difference of the gradient by kinks at steps that are not measured
LARGEST_ROUNDING = (
    1e-3  # fraction of the model's gradient norm: a larger gradient is not only rounding, in any dtype
)
ROUNDING_UNITS = 16  # gradients below this many units of the model's gradient norm are only rounding
LEAST_GRADIENT = 1e-4  # fraction of the model's gradient norm: the smallest scale for relative differences


def epsilon(*runs: RunValues) -> float:
    """Return the unit of rounding of the coarsest dtype."""
    return max(_unit(coarsest(run)) for run in runs)


def compute_epsilon(*runs: RunValues) -> float:
    """Return the unit of rounding of the computation: a coarser dtype counts only if all runs compute in one."""
    computed = min(max([epsilon(run), *map(_unit, run.compute_dtypes)]) for run in runs)
    return max(epsilon(*runs), computed)


def coarsest(run: RunValues) -> str:
    """Return the coarsest dtype of a run; float32 if no dtype is known."""
    return max(run.dtypes, key=_unit, default="F32")


def _unit(dtype: str) -> float:
    return EPSILON.get(dtype, EPSILON["F32"])


def base(stage: str, unit: float) -> float:
    if stage == "learning_rate":
        return RATE
    units, most = BASE[stage]
    return min(units * unit, most)


def step_unit(*runs: RunValues) -> float:
    """Return the unit of rounding of the coarsest steps; 0 if steps have the dtype of the weights."""
    names = [name for run in runs for name in run.optimizer.split(SEVERAL)]
    return max((_unit(STEP_DTYPE[name]) for name in names if name in STEP_DTYPE), default=0.0)


def differences(a: RunValues, b: RunValues) -> dict[str, Floats]:
    """Return the relative differences of each stage, steps × items: |a − b| over the larger value.

    A difference is NaN if neither run has a finite value, and 1 if only one has. For a step, it is the larger of the
    differences in size and in direction.
    """
    found = {}
    for stage in a.values:
        if stage not in b.values:
            continue
        x, y = a.values[stage], b.values[stage]
        found[stage] = gradient_differences(a, b) if stage == "gradient" else _relative(x, y, 0.0)
        if (
            stage == "gradient_part"
        ):  # undefined if decay is part of the gradient, which is reported as a difference of decay
            found[stage] = np.where(np.isnan(x) ^ np.isnan(y), np.nan, found[stage])
        if stage == "step":
            with np.errstate(invalid="ignore"):
                found[stage] = np.fmax(found[stage], np.abs(a.alignment - b.alignment) / 2)
    for stage in ("weights_before", "weights_after"):
        found[stage] = np.where(a.infinite ^ b.infinite, 1.0, found[stage])
    # An item without a norm at a step was not measured there.
    for run in (a, b):
        missing = np.isnan(run.values["weights_after"]) & ~run.infinite
        found = {stage: np.where(missing, np.nan, values) for stage, values in found.items()}
    return found


def gradient_differences(a: RunValues, b: RunValues, factor: float = 1.0) -> Floats:
    """Return the relative differences of gradients, with those of b divided by a factor.

    If cos(gradient, weights) was recorded, it is the larger of the differences in size and in direction.
    """
    x, y = a.values["gradient"], b.values["gradient"] / factor
    scale = _gradient_scale(a, b)
    with np.errstate(invalid="ignore", divide="ignore"):
        larger = np.maximum(x, y)
        turned = np.abs(a.gradient_alignment - b.gradient_alignment) / 2 * np.minimum(larger / scale, 1.0)
        return np.fmax(_relative(x, y, scale), turned)


def only_rounding(a: RunValues, b: RunValues) -> NDArray[np.bool_]:
    """Return whether the gradients of both runs are only rounding errors of 0, steps × items.

    Rounding may have reasons that the dtypes do not show, so key biases are only rounding up to a larger size.
    """
    unit = min(ROUNDING_UNITS * compute_epsilon(a, b), LARGEST_ROUNDING)
    most = np.where(_key_biases(a), LARGEST_ROUNDING, unit)
    gradients = [run.values["gradient"] for run in (a, b)]
    whole = np.fmax(*(np.sqrt(np.nansum(gradient**2, axis=1)) for gradient in gradients))[:, None]
    with np.errstate(invalid="ignore"):
        return (np.maximum(*gradients) < most * whole) & (np.maximum(*gradients) > 0)


def _key_biases(run: RunValues) -> NDArray[np.bool_]:
    names = [item.name.rpartition(".")[2] for item in run.items]
    return np.array(
        [
            item.role == "attention.key" and "bias" in name
            for item, name in zip(run.items, names, strict=True)
        ],
        bool,
    )


def _relative(x: Floats, y: Floats, scale: Floats | float) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        larger = np.maximum(np.maximum(np.abs(x), np.abs(y)), scale)
        relative = np.where(larger > 0, np.abs(x - y) / larger, 0.0)
    relative = np.where(np.isfinite(x) ^ np.isfinite(y), 1.0, relative)
    return np.where(np.isfinite(x) | np.isfinite(y), relative, np.nan)


def _gradient_scale(a: RunValues, b: RunValues) -> Floats:
    """Return the smallest scale for gradients at each step, because some gradients are only rounding errors of 0."""
    least = max(LEAST_GRADIENT, 4 * compute_epsilon(a, b))
    whole = [np.sqrt(np.nansum(run.values["gradient"] ** 2, axis=1)) for run in (a, b)]
    return least * np.fmax(*whole)[:, None]


def unjudged(a: RunValues, b: RunValues) -> NDArray[np.bool_]:
    """Return the items whose steps and weights depend only on rounding.

    A key bias adds the same value to all scores of a query, so its exact gradient is 0. Adam turns the rounding error
    into a full-sized step.
    """
    keys = [
        item.role in ("attention.key", "attention.qkv") and "bias" in item.name.rpartition(".")[2]
        for item in a.items
    ]
    if "gradient" not in a.values or "gradient" not in b.values:
        return np.array(keys, bool)
    unit = min(BASE["gradient"][0] * compute_epsilon(a, b), LARGEST_ROUNDING)
    rounded = np.zeros(len(keys), bool)
    for run in (a, b):
        gradient = run.values["gradient"]
        whole = np.sqrt(np.nansum(gradient**2, axis=1))[:, None]
        with np.errstate(invalid="ignore"):
            rounded |= ((gradient > 0) & (gradient < unit * whole)).any(axis=0)
    return np.array(keys, bool) | rounded


class Floor:
    """The noise floor of each stage, step by step."""

    def __init__(
        self,
        unit: float,
        stages: Sequence[str],
        tolerance: float = 0.0,
        control: Mapping[str, Floats] | None = None,
        step_unit: float = 0.0,
        compute_unit: float = 0.0,
    ) -> None:
        self._base = {stage: base(stage, unit) for stage in stages}
        compared = [stage for stage in LIMIT if stage in self._base]
        steps = {stage: base(stage, step_unit) for stage in compared}
        steps |= {stage: STEP_UNITS * step_unit for stage in compared if stage in OF_STEP}
        computed = {stage: base(stage, compute_unit) for stage in compared}
        if compute_unit > unit:  # the weights of tensors that are 0 at first differ as much as their steps
            computed |= {stage: LIMIT[stage] for stage in compared if stage.startswith("weights")}
        self._raise(steps, [stage for stage in compared if stage in AFTER_GRADIENT])
        self._raise(computed, [stage for stage in compared if stage in ("gradient", *AFTER_GRADIENT)])
        # The floors of all stages after the first step
        self._coarse = {stage: max(steps[stage], computed[stage]) for stage in compared}
        self._level = {stage: value / JUMP for stage, value in self._base.items()}
        self.has_kinks = unit >= EPSILON["F32"]  # float64 hardly ever changes the sign of an activation
        self._tolerance, self._control = tolerance, control or {}

    def at(self, place: int, gap: int, *, kinks: bool = False) -> dict[str, float]:
        """Return the floor at a step. place: its index among the compared steps. gap: steps since the previous one.

        kinks: whether the gradient may have jumped at kinks.
        """
        found = {}
        for stage, least in self._base.items():
            grown = 0.0
            if stage in self._control:
                seen = self._control[stage][: place + 1]
                grown = MARGIN * float(np.nanmax(seen)) if np.isfinite(seen).any() else 0.0
            elif stage in LIMIT:
                level = JUMP * self._level[stage]
                grown = min(level * GROWTH ** min(max(gap - 1, 0), 500), max(LIMIT[stage], level))
            kink = KINK if kinks and stage == "gradient" else 0.0
            found[stage] = max(least, grown, kink, self._tolerance)
        return found

    def passed_on(self, floors: Mapping[str, float], earlier: float, now: float) -> dict[str, float]:
        """Return the floors, raised where gradients differ.

        earlier, now: the largest difference of gradients before this step, and including it.
        """
        raised = {
            stage: min(times * (now if stage in AFTER_GRADIENT else earlier), LIMIT[stage])
            for stage, times in PASSED_ON.items()
        }
        return {stage: max(value, raised.get(stage, 0.0)) for stage, value in floors.items()}

    def _raise(self, floors: Mapping[str, float], stages: Sequence[str]) -> None:
        self._base |= {stage: max(self._base[stage], floors[stage]) for stage in stages}

    def learn(self, largest: Mapping[str, float], step: int) -> None:
        """Raise the floor to the largest differences at a step where the runs agree; later ones may grow from them."""
        if step:
            self._raise(self._coarse, list(self._coarse))
        for stage, value in largest.items():
            self._level[stage] = max(self._level[stage], value)
