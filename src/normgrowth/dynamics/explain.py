"""The implementation of `normgrowth.dynamics.dynamics`."""

from dataclasses import fields, replace
from math import isfinite, isnan, nan
from pathlib import Path

import numpy as np

from normgrowth import schedules
from normgrowth.dynamics.growth_models import MODELS, fit_model, verdict
from normgrowth.dynamics.observed.budget import growth_budget
from normgrowth.dynamics.observed.direction import direction
from normgrowth.dynamics.observed.intervals import Floats, Steps, intervals_of, rows_of, sizes_between
from normgrowth.dynamics.observed.rounding import rounding
from normgrowth.dynamics.observed.uniformity import shares, uniformity
from normgrowth.dynamics.prediction import Decay, Model
from normgrowth.dynamics.result import Dynamics, MatrixGrowth, ModelFit, OpenQuestion, Verdict
from normgrowth.dynamics.weight_decay import (
    EquilibriumAt,
    OptimizerSettings,
    as_recorded,
    decoupled_equivalent,
    equilibria,
)
from normgrowth.errors import InputError
from normgrowth.fit.vector_share import vector_share
from normgrowth.measurements import read_measurement
from normgrowth.moments.levels import DOMINANT, LAYER_MATRICES, MATRICES
from normgrowth.records import Block, Records
from normgrowth.results import Provenance, Result
from normgrowth.schedules import Schedule

TERMS = ("total_growth_steps", "total_growth_alignment")
PARTS = {**dict.fromkeys(("layer", LAYER_MATRICES, "role"), ("norm", *TERMS)), "tensor": ("norm",)}


def explain(
    trace: Result | Records | Path | str,
    schedule: Schedule | str | None,
    *,
    level: str,
    name: str | None,
    kappa: float | None,
    weight_decay: float | None,
    settings: OptimizerSettings,
) -> Dynamics:
    """Explain the growth of a norm; see `normgrowth.dynamics.dynamics` for the parameters."""
    if level == "model" and name is not None:
        raise InputError(f"name {name} needs a level (--level): part, layer, role or tensor")
    measured = read_measurement(trace, {**PARTS, "part": None, "model": None, level: None})
    records = measured.records
    if level != "model" and name is None:
        names = ", ".join(records.where(level=level, quantity="norm").distinct("name")[:20])
        raise InputError(f"level {level} needs a name (--name): {names or f'the trace has no {level}s'}")
    given = schedule if schedule is not None else measured.schedule
    rates = schedules.parse(given) if isinstance(given, str) else given
    notes: tuple[str, ...] = ()
    gradient: float | None = None  # as recorded
    if schedule is None and rates is not None and measured.optimizer_groups:
        gradient = _gradient_norm(rows_of(records, level, name))
        groups, optimizer = measured.optimizer_groups, measured.optimizer
        weight_decay, settings, notes = as_recorded(groups, optimizer, weight_decay, settings, gradient)
        if measured.optimizer_changes:
            changes = "; ".join(measured.optimizer_changes)
            notes += (
                f"the optimizer's settings changed during the run, and its last ones are used: {changes}",
            )
    if rates is None and (kappa is not None or weight_decay is not None):
        what = "kappa" if kappa is not None else "weight_decay"
        raise InputError(f"{what} needs a schedule (--schedule), for example {schedules.EXAMPLES['cosine']}")
    rows = intervals_of(records, level, name)
    steps, norms = rows.series("norm", level=level)
    if len(steps) < 2:
        raise InputError(f"dynamics needs at least 2 checkpoints, got {len(steps)}")
    if not (np.isfinite(norms[0]) and norms[0] > 0):
        raise InputError(
            f"the norm at the first checkpoint must be finite and > 0, got {norms[0]} at step {steps[0]}"
        )
    sizes = sizes_between(rows, level, steps)
    settings = replace(settings, numel=_numel(rows_of(records, level, name)))
    decay: Decay = "eq3" if settings.decay == "eq3" else "decoupled"
    decoupled = None if weight_decay is None else decoupled_equivalent(weight_decay, settings)
    decoupled = None if decoupled is None or isnan(decoupled) else decoupled
    models: dict[Model, ModelFit] = {}
    found: Verdict | None = None
    settled: tuple[EquilibriumAt, ...] = ()
    if rates is not None:
        lam = decoupled or 0.0
        options = {"kappa": kappa, "weight_decay": lam, "decay": decay}
        models = {model: fit_model(model, steps, norms, sizes, rates, **options) for model in MODELS}
        found = verdict(models, norms, uncertain=kappa is None and not lam)
        if weight_decay is not None:
            used = models["misaligned"].kappa if kappa is None else kappa
            settled = equilibria(steps, norms, rates, weight_decay, settings, used)
    budget = growth_budget(rows, level, steps, norms, rates, decoupled, decay)
    cosines = rows.series("alignment", level=level)[1]
    gaps = np.diff(steps)
    levels = [part for part in PARTS if part in records.distinct("level")]
    run = rows.single_run()
    result = Dynamics(
        records=_joined(run, rows, level, models, steps, [shares(records, level=part) for part in levels]),
        source=measured.source,
        run=run,
        parameters=measured.parameters,
        level=level,
        name=name or "model",
        schedule=rates,
        kappa=kappa,
        weight_decay=weight_decay,
        optimizer=settings,
        steps=tuple(steps.tolist()),
        norms=tuple(norms.tolist()),
        step_sizes=tuple(sizes.tolist()),
        alignments=tuple(cosines.tolist()),
        alignment=float(np.nanmean(cosines)) if np.isfinite(cosines).any() else nan,
        checkpoint_gap=(int(gaps.min()), int(gaps.max())),
        budget=budget,
        aligned=models.get("aligned"),
        misaligned=models.get("misaligned"),
        verdict=found,
        direction=direction(records, level=level, name=name),
        uniformity={part: uniformity(records, level=part) for part in levels},
        equilibria=settled,
        rounding=rounding(rows, level, steps, norms, sizes, budget),
        notes=notes,
        provenance=Provenance.now(),
    )
    result = replace(result, open_questions=_open_questions(result))
    if level == "model" and (share := vector_share(records)) > DOMINANT:
        if settings.gradient_norm is not None and settings.gradient_norm == gradient:
            settings = replace(settings, gradient_norm=_gradient_norm(rows_of(records, "part", MATRICES)))
        options = {"kappa": kappa, "weight_decay": weight_decay, "settings": settings}
        return _with_matrices(result, share, explain(records, rates, level="part", name=MATRICES, **options))
    return result


def _with_matrices(result: Dynamics, share: float, own: Dynamics) -> Dynamics:
    """Return the dynamics of the model with those of its matrices."""
    shared = {one.name: getattr(own, one.name) for one in fields(MatrixGrowth) if one.name != "vector_share"}
    records = Records.joined([result.records, own.records.where(level="part", name=MATRICES)])
    return replace(result, records=records, matrices=MatrixGrowth(share, **shared))


def _numel(rows: Records) -> int | None:
    """Return the number of weights, or None if the records do not contain it."""
    counts = rows.where(quantity="numel").table["value"].to_pylist()
    return int(counts[-1]) if counts and isfinite(counts[-1]) else None


def _gradient_norm(rows: Records) -> float | None:
    """Return √E‖g‖² over the recorded steps, or None if no gradient was recorded."""
    norms = rows.where(quantity="gradient_norm").table["value"].to_numpy()
    norms = norms[np.isfinite(norms)]
    return float(np.sqrt(np.mean(norms**2))) if len(norms) and norms.any() else None


def _joined(
    run: str,
    rows: Records,
    level: str,
    models: dict[Model, ModelFit],
    steps: Steps,
    parts: list[Block],
) -> Records:
    """Return the measured rows, the predictions, and the shares of layers, roles and tensors."""
    table = rows.table.slice(0, 1)
    name, layer, role = (table[column][0].as_py() for column in ("name", "layer", "role"))
    predicted: dict[str, Floats] = {
        f"norm_if_{model}": np.array(fit.predicted)[:, None] for model, fit in models.items()
    }
    blocks = [Block(level, [name], [layer], [role], steps.tolist(), predicted)] if predicted else []
    return Records.joined([rows, Records.from_blocks(run, [*blocks, *parts])])


def _open_questions(d: Dynamics) -> tuple[OpenQuestion, ...]:
    """Return the questions that the trace leaves open; empty without a schedule."""
    if d.misaligned is None:
        return ()
    sparse = d.checkpoint_gap[1] > 1 and d.kappa is None
    asked: dict[OpenQuestion, bool] = {
        "model": d.verdict == "both",
        "single_steps": sparse,
        "one_direction": sparse and d.budget.displacement > 3 and len(d.step_sizes) > 3,
        "weight_decay": d.weight_decay is None,
        "kappa_interval": not isfinite(d.misaligned.kappa_low),
    }
    return tuple(question for question, is_open in asked.items() if is_open)
