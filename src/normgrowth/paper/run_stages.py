"""The stages of a reproduction, run or read from their folders, and the verdicts that follow from them.

A stage is not run again if its version and settings are unchanged. A stage that fails does not stop the others: the
claims that need it get the verdict "not measured here".
"""

import time
import traceback
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from normgrowth.engine import Engine
from normgrowth.errors import InputError, SchemaError
from normgrowth.paper.claim import Claim, check, judge
from normgrowth.paper.claims import CLAIMS
from normgrowth.paper.discrepancies.caveats import CAVEATS
from normgrowth.paper.discrepancies.departures import DEPARTURES
from normgrowth.paper.discrepancies.errata import ERRATA
from normgrowth.paper.evidence import Evidence, MissingEvidence, StageResult
from normgrowth.paper.paper_figures import FIGURES
from normgrowth.paper.reproduction import PlannedStage, Reproduction, StageOutcome, TableRow
from normgrowth.paper.stages import STAGES
from normgrowth.paper.stages.stage import Progress, Scale, Stage, StageContext, StageSettings, demo_corpus
from normgrowth.results import Provenance
from normgrowth.serialization.json_types import read_json
from normgrowth.workspace import write_json

KEY, LOG = "stage.json", "error.log"
TABLES = {"table1": ("theory",)}  # table of the paper -> stages that compute it


def stage_keys(needed: Set[str], settings: Mapping[str, StageSettings]) -> dict[str, str]:
    """The key of each needed stage: it changes if the stage would give other numbers."""
    return {name: stage.key(settings[name]) for name, stage in STAGES.items() if name in needed}


def run_stages(
    needed: Set[str],
    settings: Mapping[str, StageSettings],
    scale: Scale,
    folder: Path,
    engine: Engine,
    data: Path | None = None,
    text: Path | None = None,
    progress: Progress | None = None,
) -> tuple[list[StageOutcome], dict[str, StageResult]]:
    """The outcomes of the needed stages, and the results of those that did not fail."""
    outcomes: list[StageOutcome] = []
    results: dict[str, StageResult] = {}
    for name in (name for name in STAGES if name in needed):
        outcome, found = run_stage(
            STAGES[name], settings[name], scale, folder / name, engine, data, text, progress
        )
        outcomes.append(outcome)
        if found is not None:
            results[name] = found
    return outcomes, results


def judged(
    evidence: Evidence,
    claims: Sequence[type[Claim]],
    outcomes: Sequence[StageOutcome],
    *,
    scale: Scale,
    only: tuple[str, ...],
    options: tuple[str, ...] = (),
) -> Reproduction:
    """The verdicts of claims; without `only`, also of errata, departures and caveats."""
    return Reproduction.of(
        scale=scale,
        only=only,
        claims=tuple(replace(judge(claim, evidence), options=options) for claim in claims),
        errata=() if only else tuple(check(one, evidence) for one in ERRATA.values()),
        departures=() if only else tuple(check(one, evidence) for one in DEPARTURES.values()),
        caveats=() if only else tuple(check(one, evidence) for one in CAVEATS.values()),
        stages=tuple(outcomes),
        table1=_table1(evidence),
        provenance=Provenance.now(),
    )


def _table1(evidence: Evidence) -> tuple[TableRow, ...]:
    try:
        rows = evidence.theory.table1
    except MissingEvidence:
        return ()

    def known(value: float) -> float | None:
        return value if isfinite(value) else None

    return tuple(
        TableRow(name, known(row.printed), known(row.computed), known(row.measured))
        for name, row in rows.items()
    )


def settings_of(
    scale: Scale, data: Path | None, text: Path | None = None, models: Sequence[str] = ()
) -> dict[str, StageSettings]:
    """The settings of each stage. In the demo, a folder of corpora replaces the embedded corpus."""
    found = {name: stage.settings[scale] for name, stage in STAGES.items()}
    if models:
        found = {name: settings.with_models(models) for name, settings in found.items()}
    if text is not None:
        found = {name: settings.with_text(text) for name, settings in found.items()}
    if scale == "demo" and data is not None:
        corpus = demo_corpus(data)
        found = {name: settings.with_corpus(*corpus) for name, settings in found.items()}
    return found


def run_stage(
    stage: Stage[Any],
    settings: StageSettings,
    scale: Scale,
    folder: Path,
    engine: Engine,
    data: Path | None = None,
    text: Path | None = None,
    progress: Progress | None = None,
) -> tuple[StageOutcome, StageResult | None]:
    """The result of a stage: read from its folder if version and settings are unchanged, else computed."""
    key, log = stage.key(settings), folder / LOG
    if (kept := _kept(stage, folder, key)) is not None:
        return StageOutcome(stage.name, stage.title, "kept"), kept

    def told(done: int, of: int, label: str) -> None:
        if progress:
            progress(done, of, f"{stage.name}: {label}")

    told(0, 1, stage.title)
    start = time.monotonic()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        # Parts of another version or other settings are kept, but not used.
        context = StageContext(folder / f"work-{key[:8]}", engine, data, text, told)
        made = stage.run(context, settings)
        # A kill between the two writes must not leave records under another key.
        (folder / KEY).unlink(missing_ok=True)
        made.write(folder)
        if not context.left_out:
            write_json(folder / KEY, stage.facts(scale, settings))
    except Exception as error:  # a failed stage does not stop the others
        return StageOutcome(stage.name, stage.title, "failed", reason=_logged(error, log)), None
    seconds = time.monotonic() - start
    if context.left_out:
        reason = "; ".join(f"{part}: {why}" for part, why in context.left_out.items())
        return StageOutcome(stage.name, stage.title, "incomplete", seconds, reason), made
    return StageOutcome(stage.name, stage.title, "ran", seconds), made


def _logged(error: Exception, log: Path) -> str:
    """The error in one line, with the path of its traceback unless it is an input error."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    try:
        log.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    except OSError:
        return text
    return text if isinstance(error, InputError | OSError | ImportError) else f"{text} (traceback: {log})"


def _kept(stage: Stage[Any], folder: Path, key: str) -> StageResult | None:
    """The stored result of the stage if it has this key; None if it is missing or damaged."""
    try:
        same = read_json(folder / KEY, dict).get("key") == key
        return stage.read(folder) if same else None
    except (SchemaError, InputError):
        return None


def planned_stages(
    only: Sequence[str], scale: Scale, out: Path, *, traced_t5: bool = False
) -> list[PlannedStage]:
    """The stages that the selected names need; claims that need none share a row without a name."""
    claims, needed = select(only, traced_t5=traced_t5)
    planned = [
        PlannedStage(
            stage.name,
            stage.title,
            stage.takes[scale],
            tuple(claim.id for claim in claims if stage.name in claim.needs),
            (out / "stages" / stage.name / KEY).exists(),
        )
        for stage in STAGES.values()
        if stage.name in needed
    ]
    if free := tuple(claim.id for claim in claims if not claim.needs):
        planned.append(PlannedStage("", "published numbers, nothing to run", "a second", free, True))
    return planned


def select(only: Sequence[str], *, traced_t5: bool = False) -> tuple[list[type[Claim]], set[str]]:
    """The selected claims, and the stages that the selected claims and figures need.

    traced_t5: whether Figures 1 and 5 show a traced T5.
    """
    if not only:
        return list(CLAIMS.values()), set(STAGES)
    names = {**TABLES, **{name: figure.stages(traced_t5) for name, figure in FIGURES.items()}}
    unknown = [name for name in only if name not in CLAIMS and name not in names]
    if unknown:
        raise InputError(f"unknown name {unknown[0]!r}; choose from {', '.join([*names, *CLAIMS])}")
    claims = [claim for name, claim in CLAIMS.items() if name in only]
    needed = {stage for claim in claims for stage in claim.needs}
    return claims, needed | {stage for name in only for stage in names.get(name, ())}
