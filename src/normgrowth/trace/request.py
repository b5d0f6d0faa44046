"""Trace: a series of checkpoints becomes records.

    open the series -> plan the comparisons -> for each step: moments (stored at once) -> records

The moments of a step depend on nothing but the checkpoints they compare, and are stored by step. Started again after
a Ctrl-C or a kill, on a series that got longer, or on one whose older checkpoints were removed, the trace computes
what is missing and ends with the same records to the bit.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from glob import has_magic
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from normgrowth.checkpoints.parameters import Reading
from normgrowth.checkpoints.remote.hub import is_hub
from normgrowth.checkpoints.remote.website import shown
from normgrowth.checkpoints.selection import Selection
from normgrowth.checkpoints.series import open_source
from normgrowth.engine import no_collection
from normgrowth.errors import InputError
from normgrowth.moments.moments import BUDGET, PREVIOUS, Moments, accumulated, by_reference
from normgrowth.records import Block, Records
from normgrowth.results import Provenance
from normgrowth.trace.identity import changed_files, where
from normgrowth.trace.plan import Place, Plan
from normgrowth.trace.result import Finding, Trace
from normgrowth.trace.sample_log import SampleLog
from normgrowth.trace.store import Store
from normgrowth.trace.stream import (
    Progress,
    Reader,
    Window,
    counted_tensors,
    measure_all,
    own_sums,
)
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
    judge: Judge | None = None  # integrity checks of the samples; without it none are taken
    opening: Mapping[str, Any] = field(default_factory=dict)  # how sources are opened

    def __post_init__(self) -> None:
        if any(lag < 1 for lag in self.lags):
            raise InputError(f"lags must be 1 or more, not {min(self.lags)}")
        if self.tokens_per_step is not None and not 0 < self.tokens_per_step < float("inf"):
            raise InputError(f"tokens per step must be a positive number, not {self.tokens_per_step}")

    def into(
        self, workspace: Workspace, how: Reader, progress: Progress | None = None, **more: Any
    ) -> tuple[Trace, Sequence[Place]]:
        """Claim the folder and measure what is missing: the trace, not yet written, and all steps.

        more: what else the folder is for.
        """
        request = {**asdict(self.selection), "lags": self.lags, "first": self.first, **more}
        workspace.check(request)
        series = open_source(self.source, scratch=workspace.scratch, **self.opening)
        store, facts = Store(workspace.folder), self._facts(workspace, series.label)
        kept = {} if workspace.overwrite else store.load()
        plan = Plan.of(series.entries, kept, self.lags, self.first)
        with Window(plan) as window:
            counted = counted_tensors(plan, window, self.selection)
            sums = partial(own_sums, window, counted, how)
            changed = changed_files(plan, workspace, facts, counted.other, store.has_stripes, sums)
            workspace.claim(request, facts)
            for stored in changed:
                store.save(stored)
            sampled = self.judge is not None
            measured, log = measure_all(plan, window, counted, store, sampled, how, progress)
        notes = [*series.notes, *window.notes, *plan.notes(measured)]
        kept_places = [place for place, found in zip(plan.places, measured, strict=True) if found]
        moments = [found for found in measured if found]
        notes += log.notes(len(moments)) if log else []
        findings = self.judge(log) if self.judge and log else None
        copies = _copies(counted.readings, moments)
        notes += [f"{copy}: equals {name} in every checkpoint; counted once" for copy, name in copies.items()]
        single = [i for i, reading in enumerate(counted.readings) if reading.name not in copies]
        readings = [counted.readings[i] for i in single]
        moments = [m.chosen(single) for m in moments] if copies else moments
        with no_collection():
            whole = next((i for i, found in enumerate(measured) if not found), len(measured))
            records = Records.from_blocks(facts["run"], _blocks(kept_places, readings, moments, whole), {})
            tokens = facts["tokens_per_step"]
            records = records if tokens is None else records.with_tokens(tokens)
        result = Trace(
            records=records,
            source=series.label,
            run=facts["run"],
            steps=tuple(place.step for place in kept_places),
            step_origins=tuple(place.step_origin for place in kept_places),
            checkpoints=tuple(place.label for place in kept_places),
            selection=self.selection,
            counted=counted.chosen.counts(copies),
            lags=self.lags,
            tokens_per_step=tokens,
            findings=findings,
            notes=tuple(notes),
            problems=tuple(_problems(kept_places, readings, moments)),
            provenance=Provenance.now(),
        )
        return result, kept_places

    def _facts(self, workspace: Workspace, label: str) -> dict[str, Any]:
        """What the folder remembers; what is not given is as it was."""
        old = workspace.found.facts if workspace.found and not workspace.overwrite else {}
        run, tokens = old.get("run"), old.get("tokens_per_step")
        return {
            "source": label,
            "where": where(self.source),
            "run": self.run or (run if isinstance(run, str) else None) or run_name(self.source) or label,
            "tokens_per_step": tokens if self.tokens_per_step is None else self.tokens_per_step,
        }


def run_name(source: str | Path | list[str | Path]) -> str:
    """The name of a path; of a pattern, or of several paths, that of the folder they have in common."""
    parts = [source] if isinstance(source, str | Path) else source
    folders = [_fixed(str(part), alone=len(parts) == 1) for part in parts]
    common = takewhile(lambda names: len(set(names)) == 1, zip(*folders, strict=False))
    return next((names[0] for names in reversed(list(common)) if names[0]), "")


def _fixed(part: str, *, alone: bool) -> list[str]:
    """The names of a path, up to the first that is a pattern; of one path among several, those of its folder."""
    if is_hub(part):
        return part.partition("@")[0].split("/")
    path = shown(part) if "://" in part else str(Path(part).expanduser().absolute())
    names = path.rstrip("/").split("/")
    pattern = next((k for k, name in enumerate(names) if has_magic(name)), None)
    if pattern is not None and not os.path.exists(path):
        return names[:pattern]
    return names if alone else names[:-1]


def _copies(readings: list[Reading], moments: list[Moments]) -> dict[str, str]:
    """Heads that were stored as copies of the embedding they are tied to: name -> the other's name.

    Most formats forget that two names share their values. Two such matrices whose sums are equal to the
    bit in every checkpoint are one.
    """
    seen: dict[tuple[float, ...], str] = {}
    copies: dict[str, str] = {}
    for i, reading in sorted(enumerate(readings), key=lambda pair: pair[1].role == "head"):
        if reading.role in ("embedding", "head") and moments[0].square[i] > 0:
            sums = tuple(float(x) for m in moments for x in (m.numel[i], m.square[i], m.largest[i]))
            if (first := seen.setdefault(sums, reading.name)) != reading.name:
                copies[reading.name] = first
    return copies


def _problems(places: Sequence[Place], readings: list[Reading], moments: list[Moments]) -> list[str]:
    """What a reader of the results must know before believing them."""
    problems: list[str] = []
    if len(places) == 1:
        problems.append(
            f"{places[0].label}: one checkpoint only: norms, but no steps, angles or growth to measure"
        )
    for place, found in zip(places, moments, strict=True):
        bad = np.flatnonzero(found.nonfinite)
        if len(bad):
            more = f" and in {len(bad) - 1} more tensors" if len(bad) > 1 else ""
            problems.append(
                f"{place.label}: {found.nonfinite[bad[0]]} of {found.numel[bad[0]]} values of tensor "
                f"{readings[bad[0]].name} are NaN or infinite{more}; what depends on them is NaN"
            )
    return problems


def _blocks(
    places: Sequence[Place],
    readings: list[Reading],
    moments: list[Moments],
    unbroken: int,
) -> list[Block]:
    """unbroken: steps from the first on of which none is lost; the budget is added up over no more."""
    steps = [place.step for place in places]
    blocks: list[Block] = []
    for level, names, layers, roles, group in levels_of(readings):
        grouped = [m if group is None else m.grouped(group, len(names)) for m in moments]
        by_step = [by_reference(m) for m in grouped]
        for reference in dict.fromkeys(reference for found in by_step for reference in found):
            here = [i for i, found in enumerate(by_step) if reference in found]  # the first has no previous
            defined = by_step[here[0]][reference]
            stacked = {q: np.stack([by_step[i][reference][q] for i in here]) for q in defined}
            blocks.append(Block(level, names, layers, roles, [steps[i] for i in here], stacked, reference))
        intervals = (found.get(PREVIOUS) for found in by_step[1:unbroken])
        added = [values for values in takewhile(lambda values: values is not None, intervals) if values]
        if added:
            terms = (np.stack([values[term] for values in added]) for term in BUDGET)
            blocks.append(Block(level, names, layers, roles, steps[1 : 1 + len(added)], accumulated(*terms)))
    return blocks


def levels_of(readings: list[Reading]):
    """Each level's items, and for each tensor the item it adds to."""
    tensors = [reading.name for reading in readings]
    yield "tensor", tensors, [r.layer for r in readings], [r.role for r in readings], None
    layers = {r.layer_name: r.layer for r in readings if r.layer_name is not None}
    if layers:
        place = {name: i for i, name in enumerate(layers)}
        group = [place.get(r.layer_name or "", -1) for r in readings]
        yield "layer", list(layers), list(layers.values()), [None] * len(layers), group
    roles = list(dict.fromkeys(r.role for r in readings))
    place = {role: i for i, role in enumerate(roles)}
    group = [place[r.role] for r in readings]
    yield "role", roles, [None] * len(roles), roles, group
    yield "model", ["model"], [None], [None], [0] * len(readings)
