"""Run all checks: copies first, then single tensors, then the trajectory of the whole model."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from normgrowth.lint.checks.copies import Same, tensor_copies, whole_copies
from normgrowth.lint.checks.mixture import named_apart, two_runs
from normgrowth.lint.checks.order import (
    order_faults,
    run_faults,
    stored_order,
    unrelated,
    untrained,
)
from normgrowth.lint.checks.tensors import index_faults, nonfinite_faults
from normgrowth.lint.checks.trajectory import Trajectory
from normgrowth.lint.checks.unchanged import unchanged_tensors
from normgrowth.lint.step_table import StepTable
from normgrowth.text import natural_order
from normgrowth.trace.sampling.finding import KINDS, Finding
from normgrowth.trace.sampling.sample_log import SampleLog
from normgrowth.trace.sampling.sampled_steps import SampledStep


def in_order(findings: Iterable[Finding], sampled: Sequence[SampledStep]) -> list[Finding]:
    """Sort findings by step, faults first; findings without a step come last."""
    place = {sample.label: sample.position for sample in sampled}
    findings = list(findings)
    rank = {name: i for i, name in enumerate(natural_order(sorted({f.name for f in findings})))}

    def key(f: Finding) -> tuple[float, str, int, int, int]:
        step = np.inf if f.step is None else f.step
        return step, f.severity, KINDS.index(f.kind), place.get(f.label, -1), rank[f.name]

    return sorted(findings, key=key)


def judge_samples(log: SampleLog) -> tuple[Finding, ...]:
    """Return the findings for the sampled steps of a trace."""
    if not log.sampled:
        return ()
    table = StepTable(log.sampled, log.sampler.origin)
    return tuple(in_order(judge(table, log.sampler.buffers, log.same), log.sampled))


@np.errstate(all="ignore")  # damaged weights may have any magnitude; NaN results are not judged
def judge(e: StepTable, buffers: Mapping[str, str], same: Same) -> list[Finding]:
    """Return all findings for the sampled steps. A copy or a misplaced checkpoint is reported only once."""
    routes = e.routes()
    copied, copies = whole_copies(e, routes, same)
    partly, more = tensor_copies(e, routes, copies, same)
    copies |= more
    findings = [*index_faults(e), *nonfinite_faults(e, buffers), *copied, *untrained(e)]
    if routes is not None:
        known = _Known(copies, [*copied, *partly])
        breaks = _trajectory(e, routes, known, range(len(e.sampled)))
        if parts := named_apart(e) if _whole(breaks) else []:
            each = [finding for part in parts for finding in _trajectory(e, routes, known, part)]
            if _whole(each) < _whole(breaks):
                return [*findings, two_runs(e, parts), *each]
        findings += breaks
    return [*findings, *partly, *unchanged_tensors(e, copies, buffers)]


@dataclass(frozen=True)
class _Known:
    """Rows and findings that are already explained by copies."""

    rows: set[int]
    findings: Sequence[Finding]


def _trajectory(e: StepTable, routes: Trajectory, known: _Known, rows: Sequence[int]) -> list[Finding]:
    """Return findings for those of the rows that are out of order, of another run or re-initialized."""
    line = [place for place, row in enumerate(routes.rows) if row not in known.rows and row in rows]
    if alone := unrelated(e, routes, line):
        return alone
    moved, healed = order_faults(e, routes, line)
    wrong = {finding.step for finding in moved if finding.severity == "fault"}
    others = set(range(len(e.sampled))) - set(rows)
    misplaced = {row for row, sample in enumerate(e.sampled) if sample.step in wrong}
    stored = list(stored_order(e, known.rows | misplaced | others))
    whole = wrong | {finding.step for finding in (*known.findings, *stored) if not finding.name}
    single = {(finding.step, finding.name) for finding in known.findings}
    strange = run_faults(e, routes, healed, others)
    return [*moved, *stored, *(f for f in strange if f.step not in whole and (f.step, f.name) not in single)]


def _whole(findings: Sequence[Finding]) -> int:
    return sum(not finding.name for finding in findings)
