"""Computes quantities from the sums of many steps, by the definitions of `normgrowth.moments.moments`.

A step is stored as one row per tensor: the kernel's columns, then columns that only a run has.
Expanding many steps at once costs little more than expanding one, so a tracker defers it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from normgrowth.checkpoints.parameters.adapters import Adapter
from normgrowth.checkpoints.parameters.parameter_names import Reading
from normgrowth.moments.levels import LEVELS as LEVELS
from normgrowth.moments.levels import levels_of
from normgrowth.moments.moments import BUDGET, PREVIOUS, Moments, accumulated, by_reference
from normgrowth.records import Block
from normgrowth.trace.lora_updates import update_blocks

Floats = NDArray[np.float64]
Totals = Mapping[str, Mapping[str, Sequence[float]]]  # level -> name -> the three budget sums so far

# Columns that only a run has: per tensor, and per model (the same value in every row).
OF_MODEL = ("attention_logit", "logit_rms", "logit_largest", "clip_coefficient")
STATE = ("decay_so_far",)  # state for resuming a run: Σηλ over all steps
RULES = ("learning_rate", "decay", "equilibrium_norm", "equilibrium_angle")
OF_OPTIMIZER = (
    "gradient_dot",
    "first_moment",
    "second_moment",
)  # on request: Σgθ, Σm² and Σv of Adam's moments
UPDATE = "lora_update"  # of a model with adapters: ‖scale·BA‖² in the row of B
OF_RUN = ("gradient", *RULES, *OF_MODEL, *STATE)
OF_WEIGHTS = 3  # number of kernel columns for the weights themselves, before those for references
NONFINITE = 2  # kernel column with the number of NaN and infinite values
TOTALS = tuple(f"total_{term}" for term in BUDGET)


def columns_of_run(*, optimizer_state: bool = False, lora: bool = False) -> list[str]:
    """The columns of a step after the kernel's columns."""
    gradient, *others = OF_RUN
    return [gradient, *(OF_OPTIMIZER if optimizer_state else ()), *others, *([UPDATE] if lora else ())]


@dataclass(frozen=True)
class StepLayout:
    """The meaning of the columns and rows of a step; the same for all steps of a file.

    totals: every step is measured, so that the budgets of the steps add up to the budget of the run.
    """

    run: str
    readings: list[Reading]
    numel: list[int]
    references: list[str]
    levels: list[str]
    totals: bool
    of_run: list[str] = field(default_factory=columns_of_run)
    adapters: list[Adapter] = field(default_factory=list)

    @property
    def sums(self) -> int:
        """The number of kernel columns, before the columns of the run."""
        return OF_WEIGHTS + 3 * len(self.references)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of one step: tensors, columns."""
        return len(self.readings), self.sums + len(self.of_run)


def record_blocks(
    layout: StepLayout, steps: Sequence[int], rows: Floats, before: Totals | None
) -> Iterator[Block]:
    """All quantities of these steps. rows: (steps, tensors, columns).

    before: the budget sums up to the first of these steps; None: without totals.
    """
    if layout.adapters:
        squares = rows[:, _rows_of_updates(layout), layout.sums + layout.of_run.index(UPDATE)]
        yield from update_blocks(layout.adapters, steps, squares, layout.levels)
    if steps[0] == 0:
        yield from _start_blocks(layout, rows[0])
        steps, rows = steps[1:], rows[1:]
    if not steps:
        return
    kernel = layout.sums
    moments, run = unpacked_step(layout, rows)
    for level, names, layers, roles, group in levels_of(layout.readings):
        if level not in layout.levels:
            continue
        group = np.arange(len(names)) if group is None else np.asarray(group, np.intp)
        # The groups of each step have numbers of their own, so that one call sums the groups of all steps.
        offset = np.arange(len(steps))[:, None] * len(names)
        place = np.where(group >= 0, offset + group, -1).reshape(-1)
        size = len(steps) * len(names)
        with np.errstate(invalid="ignore"):  # sums are NaN for steps that ran out of memory
            by = by_reference(moments.grouped(place, size))
        by[None] |= _of_run(moments, run, place, size)
        for reference, values in by.items():
            shaped = {quantity: value.reshape(len(steps), len(names)) for quantity, value in values.items()}
            yield Block(level, names, layers, roles, steps, shaped, reference)
            if reference == PREVIOUS and before is not None:
                totals = _totals([shaped[term] for term in BUDGET], level, names, before)
                yield Block(level, names, layers, roles, steps, totals)
    for i, quantity in enumerate(layout.of_run):
        values = rows[:, 0, kernel + i]
        if quantity in OF_MODEL and "model" in layout.levels and (known := ~np.isnan(values)).any():
            at = np.asarray(steps, np.int64)[known].tolist()
            yield Block("model", ["model"], [None], [None], at, {quantity: values[known][:, None]})
    yield from _learning_rates(layout, steps, rows[:, :, kernel + layout.of_run.index("learning_rate")])


def _start_blocks(layout: StepLayout, rows: Floats) -> Iterator[Block]:
    """Blocks of step 0: the weights before the first step, without a comparison."""
    moments = Moments.from_columns(np.asarray(layout.numel, np.int64), rows[:, :OF_WEIGHTS], [])
    for level, names, layers, roles, group in levels_of(layout.readings):
        if level in layout.levels:
            group = np.arange(len(names)) if group is None else np.asarray(group, np.intp)
            values = by_reference(moments.grouped(group, len(names)))[None]
            yield Block(
                level, names, layers, roles, [0], {name: value[None] for name, value in values.items()}
            )


def _rows_of_updates(layout: StepLayout) -> list[int]:
    place = {reading.name: i for i, reading in enumerate(layout.readings)}
    return [place[adapter.up] for adapter in layout.adapters]


def with_updates(layout: StepLayout, rows: Floats, squares: Floats) -> Floats:
    """The rows of a step with ‖scale·BA‖² of each adapter."""
    if layout.adapters:
        rows[_rows_of_updates(layout), layout.sums + layout.of_run.index(UPDATE)] = squares
    return rows


def packed_start(layout: StepLayout, sums: Floats) -> Floats:
    """The rows of step 0: the sums of the weights, and a Σηλ of zero."""
    rows = np.full(layout.shape, np.nan)
    rows[:, :OF_WEIGHTS] = sums
    rows[:, layout.of_run.index("decay_so_far") - len(layout.of_run)] = 0.0
    return rows


def packed_step(
    layout: StepLayout,
    columns: Floats,
    rules: Floats,
    of_run: Sequence[float],
    decay_before: Floats,
    passed: int,
) -> Floats:
    """The rows of one step: its sums (`measure`), an `UpdateRule` per tensor, and the values of `OF_MODEL`.

    decay_before: Σηλ of each tensor up to the last measured step, `passed` steps ago.
    """
    rate, decay, per_sqrt_numel, per_gradient, angle = rules.T
    root = np.sqrt(np.asarray(layout.numel, np.float64))
    gradient = np.sqrt(columns[:, layout.sums])
    norm = np.where(np.isnan(per_sqrt_numel), per_gradient * gradient, per_sqrt_numel * root)
    of_model = np.broadcast_to(np.asarray(of_run, np.float64), (len(columns), len(of_run)))
    # With coupled decay, ηλ is derived from the equilibrium angle, which is about √(2ηλ).
    pace = np.nan_to_num(np.where(np.isnan(decay), angle**2 / 2, decay))
    so_far = decay_before + passed * pace
    own = np.stack([rate, decay, norm, angle], axis=1)
    updates = np.full((len(columns), 1 if layout.adapters else 0), np.nan)
    return np.concatenate([columns, own, of_model, so_far[:, None], updates], axis=1)


def unpacked_step(layout: StepLayout, rows: Floats) -> tuple[Moments, dict[str, Floats]]:
    """The moments of all tensors at all steps, step after step, and the columns of the run."""
    flat = rows.reshape(-1, rows.shape[-1])
    kernel = layout.sums
    numel = np.tile(np.asarray(layout.numel, np.int64), len(flat) // len(layout.numel))
    columns = flat[:, :kernel]
    if np.isnan(columns[:, NONFINITE]).any():  # a step that ran out of memory: its counts are unknown, too
        columns = columns.copy()
        columns[:, NONFINITE] = np.nan_to_num(columns[:, NONFINITE])
    moments = Moments.from_columns(numel, columns, layout.references)
    return moments, {name: flat[:, kernel + i] for i, name in enumerate(layout.of_run)}


def _of_run(
    moments: Moments, run: Mapping[str, Floats], place: NDArray[np.intp], size: int
) -> dict[str, Floats]:
    """Quantities from the optimizer: the gradient, the two parts of the step, the equilibrium.

    With d = ηλ the step is δ = −dθ + u, and ‖u‖² = ‖δ + dθ‖² = Σδ² + 2dΣθδ + d²Σθ².

    The equilibrium of a group combines those of its tensors: squared norms add, and the correlation of a step is the
    mean weighted by these squares. It is NaN if one tensor has no equilibrium.
    """
    chosen = place >= 0

    def added(values: Floats) -> Floats:
        return np.bincount(place[chosen], values[chosen], size).astype(np.float64, copy=False)

    def added_known(values: Floats) -> Floats:
        """Without NaN, unless all are NaN: a frozen tensor has no moments."""
        known = ~np.isnan(values)
        return np.where(added(known.astype(np.float64)) > 0, added(np.where(known, values, 0.0)), np.nan)

    pair, d = moments.against["previous"], run["decay"]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        decay = d * d * pair.square
        rest = np.where(d == 0, pair.delta, pair.delta + 2 * d * pair.dot + decay)
        settled = run["equilibrium_norm"] ** 2
        turned = added(settled * np.sin(run["equilibrium_angle"] / 2) ** 2) / added(settled)
        gradient = np.sqrt(added(run["gradient"]))
        found = {
            "gradient_norm": gradient,
            "decay_step": np.sqrt(added(decay)),
            "gradient_step": np.sqrt(added(np.maximum(rest, 0.0))),
            "equilibrium_norm": np.sqrt(added(settled)),
            "equilibrium_angle": 2 * np.arcsin(np.sqrt(turned)),
        }
        if "gradient_dot" in run:
            weights = np.sqrt(added(pair.square))
            first, second = (np.sqrt(added_known(run[name])) for name in ("first_moment", "second_moment"))
            found |= {
                "gradient_alignment": added(run["gradient_dot"]) / (gradient * weights),
                "first_moment_norm": first,
                "second_moment_norm": second,
                "moment_ratio": first / second,
            }
        return found


def _totals(terms: list[Floats], level: str, names: Sequence[str], before: Totals) -> dict[str, Floats]:
    known = before.get(level, {})
    start = np.array([known.get(name, (0.0, 0.0, 0.0)) for name in names]).T
    whole = [np.concatenate([first[None], term]) for first, term in zip(start, terms, strict=True)]
    return {quantity: value[1:] for quantity, value in accumulated(*whole).items()}


def _learning_rates(layout: StepLayout, steps: Sequence[int], rates: Floats) -> Iterator[Block]:
    """One rate for the model at steps where all tensors agree, else one per tensor. rates: (steps, tensors)."""
    lowest, highest = np.fmin.reduce(rates, axis=1), np.fmax.reduce(rates, axis=1)
    at = np.asarray(steps, np.int64)
    alike, mixed = lowest == highest, lowest < highest  # both False where the optimizer has no parameters
    if alike.any() and "model" in layout.levels:
        value = {"learning_rate": lowest[alike][:, None]}
        yield Block("model", ["model"], [None], [None], at[alike].tolist(), value)
    if mixed.any() and "tensor" in layout.levels:
        readings = layout.readings
        names, layers, roles = zip(*((r.name, r.layer, r.role) for r in readings), strict=True)
        yield Block("tensor", names, layers, roles, at[mixed].tolist(), {"learning_rate": rates[mixed]})
