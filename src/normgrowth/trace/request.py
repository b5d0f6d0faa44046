"""The pipeline of a trace, from a series of checkpoints to records.

    open the series -> plan the comparisons -> list the counted tensors -> measure each step -> result

The moments of a step depend only on the checkpoints they compare, and are stored by step. After an interruption, when
the series has grown, or when older checkpoints were deleted, the trace computes only the missing moments. The
resulting records are bit-identical to those of an uninterrupted trace.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from glob import has_magic
from itertools import takewhile
from pathlib import Path
from typing import Any

from normgrowth.checkpoints.parameters.selection import Selection
from normgrowth.checkpoints.remote.hub.revisions import is_hub
from normgrowth.checkpoints.remote.web.website import redact_url
from normgrowth.checkpoints.series import open_source
from normgrowth.engine import Progress
from normgrowth.errors import InputError
from normgrowth.measurements import where
from normgrowth.results import Provenance
from normgrowth.trace.measured_steps import MeasuredSteps
from normgrowth.trace.output.identity import TraceFacts, changed_files
from normgrowth.trace.output.store import Store
from normgrowth.trace.plan import Plan, TraceStep
from normgrowth.trace.result import Finding, Trace
from normgrowth.trace.sampling.sample_log import SampleLog
from normgrowth.trace.stream import Counted, Reader, Window, counted_tensors, measure_all, own_sums
from normgrowth.trace.trainer_state import recorded_groups, recorded_schedule
from normgrowth.workspace import Workspace

Judge = Callable[[SampleLog], tuple[Finding, ...]]


@dataclass(frozen=True)
class Tracing:
    """A request for a trace; see `trace` for what the fields mean."""

    source: str | Path | list[str | Path]
    selection: Selection
    lags: tuple[int, ...] = ()
    first: bool = True
    tokens_per_step: float | None = None
    run: str | None = None
    judge: Judge | None = None  # integrity checks of the samples; None: take no samples
    endpoint: str | None = None  # address of the hub, if not the default
    scalars: bool = False

    def __post_init__(self) -> None:
        if any(lag < 1 for lag in self.lags):
            raise InputError(f"lags must be >= 1, got {min(self.lags)}")
        if self.tokens_per_step is not None and not 0 < self.tokens_per_step < float("inf"):
            raise InputError(f"tokens_per_step must be a positive number, got {self.tokens_per_step}")

    def into(
        self, workspace: Workspace, how: Reader, progress: Progress | None = None, **more: Any
    ) -> tuple[Trace, Sequence[TraceStep]]:
        """Claim the folder and measure the missing steps; return the trace, not yet saved, and all its steps.

        more: further fields of the request that the folder stores.
        """
        request = {**asdict(self.selection), "lags": self.lags, "first": self.first, **more}
        request["scalars"] = self.scalars
        workspace.check(request)
        series = open_source(self.source, scratch=workspace.scratch, endpoint=self.endpoint)
        store, facts = Store(workspace.folder), self._facts(workspace, series.label)
        plan = Plan.of(series.entries, {} if workspace.overwrite else store.load(), self.lags, self.first)
        with Window(plan) as window:
            counted = counted_tensors(plan, window, self.selection)
            sums = partial(own_sums, window, counted, how)
            changed = changed_files(plan, workspace, facts, counted.other, store.has_stripes, sums)
            workspace.claim(request, asdict(facts))
            for stored in changed:
                store.save(stored)
            steps = measure_all(
                plan, window, counted, store, how, progress, samples=bool(self.judge), scalars=self.scalars
            )
        return self._result(facts, counted, steps, (*series.notes, *window.notes)), steps.places

    def _result(
        self, facts: TraceFacts, counted: Counted, steps: MeasuredSteps, notes: tuple[str, ...]
    ) -> Trace:
        return Trace(
            records=steps.records(facts.run, facts.tokens_per_step),
            source=facts.source,
            run=facts.run,
            steps=tuple(place.step for place in steps.places),
            step_origins=tuple(place.step_origin for place in steps.places),
            checkpoints=tuple(place.label for place in steps.places),
            selection=self.selection,
            counted=counted.chosen.counts(steps.copies),
            lags=self.lags,
            tokens_per_step=facts.tokens_per_step,
            findings=self.judge(steps.samples) if self.judge and steps.samples else None,
            notes=(*notes, *steps.notes()),
            problems=tuple(steps.problems()),
            schedule=recorded_schedule(self.source),
            optimizer_groups=recorded_groups(self.source),
            provenance=Provenance.now(),
        )

    def _facts(self, workspace: Workspace, label: str) -> TraceFacts:
        """Return the facts to store in the folder; values that are not given keep their stored value."""
        old = TraceFacts() if workspace.overwrite else TraceFacts.remembered(workspace)
        tokens = old.tokens_per_step if self.tokens_per_step is None else self.tokens_per_step
        run = self.run or old.run or run_name(self.source) or label
        return TraceFacts(label, where(self.source), run, tokens)


def run_name(source: str | Path | list[str | Path]) -> str:
    """Return the last name of a path; for a pattern or several paths, the name of their common folder."""
    parts = [source] if isinstance(source, str | Path) else source
    folders = [_fixed(str(part), alone=len(parts) == 1) for part in parts]
    common = takewhile(lambda names: len(set(names)) == 1, zip(*folders, strict=False))
    return next((names[0] for names in reversed(list(common)) if names[0]), "")


def _fixed(part: str, *, alone: bool) -> list[str]:
    """Return the names of a path up to the first pattern; for one of several paths, the names of its folder."""
    if is_hub(part):
        return part.partition("@")[0].split("/")
    path = redact_url(part) if "://" in part else str(Path(part).expanduser().absolute())
    names = path.rstrip("/").split("/")
    pattern = next((k for k, name in enumerate(names) if has_magic(name)), None)
    if pattern is not None and not os.path.exists(path):
        return names[:pattern]
    return names if alone else names[:-1]
