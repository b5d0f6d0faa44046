"""Lint a source: open the series, read it once, run the checks."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from normgrowth.checkpoints.checkpoint import Checkpoint
from normgrowth.checkpoints.local_files import find_checkpoints
from normgrowth.checkpoints.parameters.selection import Selection
from normgrowth.checkpoints.remote.discovery import is_remote
from normgrowth.checkpoints.remote.hub.revisions import is_hub
from normgrowth.checkpoints.remote.web.website import redact_url
from normgrowth.checkpoints.series import CheckpointSeries, _roots, open_source
from normgrowth.checkpoints.steps import explicit_step, guessed_step
from normgrowth.engine import Progress
from normgrowth.errors import InputError, NoTensors, SeriesWarning, SharedStep
from normgrowth.lint.checks.mixture import UnreadFile, other_series, unreadable
from normgrowth.lint.judge import in_order, judge
from normgrowth.lint.reading import read_series
from normgrowth.lint.result import Findings
from normgrowth.lint.step_table import StepTable
from normgrowth.results import Provenance
from normgrowth.trace.by_step import measure_checkpoint
from normgrowth.trace.result import Trace
from normgrowth.trace.sampling.sampled_steps import SampledStep


def findings_of_trace(trace: Trace) -> Findings:
    """Return the findings that are stored in a trace."""
    if trace.findings is None:
        raise InputError(f"{trace.source} was traced without integrity checks; run lint on its checkpoints")
    counted = trace.counted
    return Findings(
        source=trace.source,
        steps=trace.steps,
        selection=trace.selection or Selection(),
        tensors=counted.tensors if counted else 0,
        of_tensors=counted.of_tensors if counted else 0,
        findings=trace.findings,
        notes=trace.notes,
        provenance=trace.provenance,
    )


def lint_series(
    source: str | Path | Iterable[str | Path],
    *,
    include: str = "all",
    select: str | None = None,
    exclude: str | None = None,
    endpoint: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Findings:
    source = source if isinstance(source, str | Path) else list(source)
    series, broken = _open(source, endpoint)
    for note in series.notes:
        warnings.warn(note, SeriesWarning, stacklevel=2)

    selection = Selection(include, select, exclude)
    found = read_series(series, selection, workers, progress)
    unread = found.unread
    main, others = found.mixture.series()
    if [member.entry for member in main] != found.chosen:  # the first pass read the wrong series
        series = replace(series, entries=tuple(member.entry for member in main))
        found = read_series(series, selection, workers, progress)
        unread = [*unread, *found.unread]
    sampled, sampler = found.sampled, found.sampler
    unread += [
        UnreadFile(label, None, str(error).removeprefix(f"{label}: "), isinstance(error, NoTensors))
        for label, error in series.damaged
    ]
    findings = [
        *unreadable([*broken, *unread], [member.named for member in main]),
        *found.unsupported,
        *other_series(main, others),
        *judge(StepTable(sampled, sampler.origin), sampler.buffers, _Comparison(series, sampled, workers)),
    ]
    steps = tuple(sample.step for sample in sampled)
    return Findings(
        source=series.label,
        steps=steps,
        selection=selection,
        tensors=found.parameters[0],
        of_tensors=found.parameters[1],
        findings=tuple(in_order(findings, sampled)),
        notes=tuple(series.notes),
        provenance=Provenance.now(),
    )


class _Comparison:
    """Reads two checkpoints again and returns which tensors are equal. Called only if their sums agree."""

    def __init__(self, series: CheckpointSeries, sampled: Sequence[SampledStep], workers: int | None) -> None:
        self.series, self.sampled, self.workers = series, sampled, workers

    def __call__(self, i: int, j: int, names: Sequence[str]) -> NDArray[np.bool_]:
        opened: list[Checkpoint] = []
        try:
            views: list[Checkpoint] = []
            for sample in (self.sampled[i], self.sampled[j]):
                opened.append(self.series.entries[sample.position].open())
                views.append(opened[-1].renamed({name: sample.spelling(name) for name in names}))
            found = measure_checkpoint(views[1], [("other", views[0])], list(names), workers=self.workers)
            return found.against["other"].delta == 0
        except (InputError, OSError):  # readable in the first pass but not now: equality is not proven
            return np.zeros(len(names), bool)
        finally:
            for checkpoint in opened:
                checkpoint.close()


def _open(
    source: str | Path | Sequence[str | Path], endpoint: str | None
) -> tuple[CheckpointSeries, list[UnreadFile]]:
    """Open the series. If damaged parts prevent this, open it without them and return these."""
    try:
        return open_source(source, endpoint=endpoint), []
    except SharedStep:
        raise
    except InputError:
        parts = _parts(source)
        if len(parts) < 2:
            raise
        sound: list[str | Path] = []
        broken: list[UnreadFile] = []
        for part in parts:
            try:
                if not isinstance(part, Path) or find_checkpoints(part):
                    open_source(part, endpoint=endpoint)
                    sound.append(part)
            except SharedStep:
                raise
            except InputError as error:
                where = redact_url(str(part))
                name = Path(where).name
                step = explicit_step(name)
                step = guessed_step(name) if step is None else step
                reason = str(error).removeprefix(f"{where}: ")
                broken.append(UnreadFile(where, step, reason, isinstance(error, NoTensors)))
        if not broken or not sound:
            raise
        series = open_source(sound, endpoint=endpoint)
        return replace(series, label=str(source) if isinstance(source, str | Path) else series.label), broken


def _parts(source: str | Path | Sequence[str | Path]) -> Sequence[str | Path]:
    """Return the parts of a source: the items of a list, the matches of a pattern, or the subfolders of a folder."""
    if not isinstance(source, str | Path):
        return source
    if isinstance(source, str) and (is_hub(source) or is_remote(source)):
        return []
    folder = Path(source)
    if not folder.is_dir():
        return _roots(source)
    return sorted(p for p in folder.iterdir() if p.is_dir() and p.name[0] != ".")
