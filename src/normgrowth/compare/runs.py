"""Compare two traces: align them, compute differences, compare these with the noise floor, name the cause."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from normgrowth.compare.alignment import Aligned, aligned
from normgrowth.compare.clipping import before_clipping, clipped_alike
from normgrowth.compare.diagnosis.diagnose import diagnose
from normgrowth.compare.noise import (
    OF_SUMS,
    Floats,
    Floor,
    compute_epsilon,
    differences,
    epsilon,
    only_rounding,
    step_unit,
    unjudged,
)
from normgrowth.compare.optimizer_settings import differing_settings
from normgrowth.compare.partings import Judged, judge, noise_before
from normgrowth.compare.result import Alignment, Comparison, Side
from normgrowth.compare.side_by_side import growth_side_by_side
from normgrowth.compare.step_stages import STAGES, levels_in, run_values
from normgrowth.errors import InputError
from normgrowth.records import Block, Records
from normgrowth.results import Provenance
from normgrowth.stored_result import StoredResult
from normgrowth.text import labels
from normgrowth.trace.result import Trace

Source = Trace | Records | str | Path


def compared_runs(a: Source, b: Source, control: Source | None, tolerance: float) -> Comparison:
    """Return the comparison of two runs; see `normgrowth.compare` for the parameters."""
    if not 0 <= tolerance < 1:
        raise InputError(f"tolerance must be >= 0 and < 1, got {tolerance}")
    traces = [_trace(a), _trace(b)]
    growth = growth_side_by_side(*traces)
    sides = _told_apart(growth.a, growth.b, a, b)
    third = None if control is None else _trace(control)
    level = _common_level(traces if third is None else [*traces, third])
    runs = [run_values(trace, level) for trace in (traces if third is None else [*traces, third])]
    pair = aligned(*runs[:2])
    if clipped_alike(pair):
        runs = [before_clipping(run) for run in runs]
        pair = aligned(*runs[:2])
    found = differences(pair.a, pair.b)
    if pair.a.tracked != pair.b.tracked:  # a tracker measures single steps, a trace whole intervals
        found = {stage: values for stage, values in found.items() if stage == "weights_after"}
    found = {stage: found[stage] for stage in STAGES if stage in found and np.isfinite(found[stage]).any()}
    exempt = unjudged(pair.a, pair.b)
    seen = {} if third is None else _of_control(pair, aligned(pair.a, runs[2]), exempt)
    units = step_unit(pair.a, pair.b), compute_epsilon(pair.a, pair.b)
    floor = Floor(epsilon(pair.a, pair.b), list(found), tolerance, seen, *units)
    settings = differing_settings(pair.a, pair.b)
    judged = judge(pair, found, exempt, floor)
    return Comparison(
        records=Records.joined([growth.records, *_records(pair, judged, level)]),
        a=sides[0],
        b=sides[1],
        matched=growth.matched,
        rows=growth.rows,
        alignment=_alignment(pair, level, list(found)),
        partings=judged.partings,
        diagnoses=diagnose(pair, judged, settings),
        noise=noise_before(judged, exempt, pair.a.steps, "control" if seen else "dtypes"),
        tolerance=tolerance,
        control="" if third is None else third.source or third.run,
        settings=settings,
        provenance=Provenance.now(),
    )


def _told_apart(a: Side, b: Side, *given: Source) -> tuple[Side, Side]:
    """The sides; two folders whose runs have the same name are called by the ends of their paths."""
    folders = [one for one in given if isinstance(one, str | Path)]
    if a.source != b.source or len(folders) < 2:
        return a, b
    first, second = labels(folders)
    return replace(a, source=first), replace(b, source=second)


def _trace(given: Source) -> Trace:
    if isinstance(given, Trace):
        return given
    if isinstance(given, Records):
        return Trace.from_records(given)
    return Trace.from_stored(StoredResult.read(given))


def _common_level(traces: list[Trace]) -> str:
    """Return the finest level at which all runs have norms."""
    there = [levels_in(trace) for trace in traces]
    return next((level for level in there[0] if all(level in levels for levels in there)), "model")


def _of_control(pair: Aligned, control: Aligned, exempt: np.ndarray) -> dict[str, Floats]:
    """Return for each stage the largest difference between the first run and the control up to each step.

    Stages without a difference are left out: a run that is repeated exactly does not show how large rounding is.
    """
    place = {name: i for i, name in enumerate(pair.names)}
    kept = [i for i, name in enumerate(control.names) if name in place and not exempt[place[name]]]
    found = {}
    for stage, values in differences(control.a, control.b).items():
        if stage == "gradient":
            values = np.where(only_rounding(control.a, control.b), 0.0, values)
        if not (values[:, kept] > OF_SUMS).any():
            continue
        largest = np.fmax.reduce(np.nan_to_num(values[:, kept]), axis=1)
        at = np.searchsorted(control.a.steps, pair.a.steps, side="right")
        running = np.concatenate([[0.0], np.maximum.accumulate(largest)])
        found[stage] = running[at]
    return found


def _alignment(pair: Aligned, level: str, stages: list[str]) -> Alignment:
    steps = pair.a.steps
    return Alignment(
        level,
        len(steps),
        int(steps[0]) if len(steps) else None,
        int(steps[-1]) if len(steps) else None,
        tuple(pair.names),
        tuple(stages),
        pair.renamed,
        tuple(pair.only_a),
        tuple(pair.only_b),
    )


def _records(pair: Aligned, judged: Judged, level: str) -> list[Records]:
    """Return the relative differences of all stages and their floors as records."""
    steps = pair.a.steps.tolist()
    if not steps or not pair.names:
        return []
    layers, roles = [item.layer for item in pair.a.items], [item.role for item in pair.a.items]
    own = Block(level, pair.names, layers, roles, steps, dict(judged.differences))
    floors = {stage: values[:, None] for stage, values in judged.floors.items()}
    return [
        Records.from_blocks("difference", [own]),
        Records.from_blocks("floor", [Block("model", ["model"], [None], [None], steps, floors)]),
    ]
