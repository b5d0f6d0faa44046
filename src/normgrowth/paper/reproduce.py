"""`reproduce`: compute what the paper shows and judge each of its claims.

    out/stages/NAME/        the records of a stage, its working folder, and error.log if it failed
    out/claims.json         every claim: published, measured, rule, verdict and reason
    out/figures/            Figures 1 to 6 as png, svg and pdf

A stage is not run again if its version and settings are the same. A stage that fails does not stop the others: the
claims that need it are undecided.
"""

import platform
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import Any

from normgrowth.engine import Engine
from normgrowth.errors import InputError, SchemaError
from normgrowth.paper.claim import Judged, judged
from normgrowth.paper.claims import CLAIMS
from normgrowth.paper.errata import ERRATA
from normgrowth.paper.erratum import Checked, checked
from normgrowth.paper.reproduction import StageOutcome
from normgrowth.paper.stages import STAGES
from normgrowth.paper.stages.stage import Progress, Scale, Stage, StageContext, StageSettings, demo_corpus
from normgrowth.records import Records
from normgrowth.schema import read_json
from normgrowth.workspace import Workspace, write_json

KEY, RESULTS, LOG = "stage.json", "claims.json", "error.log"
FIGURES = {  # of the paper -> stages that its picture here is made of
    "fig1": ("language_models",),
    "fig2": ("pretrained",),
    "fig3": ("language_models",),
    "fig4": ("scaling",),
    "fig5": ("language_models",),
    "fig6": ("decay",),
    "table1": ("theory",),
}


@dataclass(frozen=True)
class Reproduced:
    """Evidence by stage, how the stages ended, and verdicts in the order of the paper."""

    evidence: dict[str, Records]
    stages: tuple[StageOutcome, ...]
    verdicts: list[Judged]
    errata: list[Checked]  # with all claims only
    made_by: dict[str, Any]

    def facts(self) -> dict[str, Any]:
        return {
            **self.made_by,
            "stages": {one.name: str(one) for one in self.stages},
            "claims": [_plain(one) for one in self.verdicts],
            "errata": [_plain_erratum(one) for one in self.errata],
        }


def reproduce(
    out: Path | str = "reproduction",
    *,
    scale: Scale = "demo",
    only: Sequence[str] = (),
    data: Path | str | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
    overwrite: bool = False,
) -> Reproduced:
    """Run the stages that are needed and judge the claims that rest on them.

    only: claims ("heads-bimodal"), figures ("fig2") or "table1"; all by default. data: a folder with `penn`,
    `wikitext-2` or both. engine: trains models, by default one process per core. overwrite: replace a reproduction
    with another scale or corpus.
    """
    claims, needed = chosen(only)
    corpora = Path(data) if data else None
    settings = settings_of(scale, corpora)
    request = {"scale": scale, "corpus": demo_corpus(corpora)[0] if scale == "demo" else "paper"}
    own = None
    if engine is None:
        from normgrowth.engine.processes import Processes

        engine = own = Processes()
    try:
        with Workspace.open(out, "reproduction", request, overwrite=overwrite) as workspace:
            assert workspace.folder is not None
            evidence: dict[str, Records] = {}
            outcomes = []
            for name in (name for name in STAGES if name in needed):
                folder = workspace.folder / "stages" / name
                found = run_stage(STAGES[name], settings[name], scale, folder, engine, corpora, progress)
                if found[1] is not None:
                    evidence[name] = found[1]
                outcomes.append(found[0])
            failed = {one.name: one.reason for one in outcomes if one.failed}
            made_by = {
                "command": "reproduce",
                "scale": scale,
                "only": list(only),
                "versions": {"normgrowth": version("normgrowth"), "python": platform.python_version()},
                "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            result = Reproduced(
                evidence,
                tuple(outcomes),
                [judged(claim, evidence, failed) for claim in claims],
                [] if only else [checked(erratum, evidence, failed) for erratum in ERRATA.values()],
                made_by,
            )
            write_json(workspace.folder / RESULTS, result.facts())
            return result
    finally:
        if own is not None:
            own.close()


def settings_of(scale: Scale, data: Path | None) -> dict[str, StageSettings]:
    """What each stage runs. A folder of corpora replaces the embedded one of the demo."""
    found = {name: stage.settings[scale] for name, stage in STAGES.items()}
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
    progress: Progress | None = None,
) -> tuple[StageOutcome, Records | None]:
    """The records of a stage: those in its folder if they have the same version and settings, else new ones."""
    key, log = stage.key(settings), folder / LOG
    if (kept := _kept(folder, key)) is not None:
        return StageOutcome(stage.name, stage.title, "kept"), kept

    def told(done: int, of: int, label: str) -> None:
        if progress:
            progress(done, of, f"{stage.name}: {label}")

    told(0, 1, stage.title)
    start = time.monotonic()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        # Parts of another version or other settings stay where they are and are not used.
        context = StageContext(folder / f"work-{key[:8]}", engine, data, told)
        records = stage.run(context, settings)
        (folder / KEY).unlink(
            missing_ok=True
        )  # a kill between the two must not leave records under another key
        records.write(folder)
        write_json(folder / KEY, stage.facts(scale, settings))
    except Exception as error:  # one stage does not stop the others, whatever went wrong
        return StageOutcome(stage.name, stage.title, "failed", reason=_logged(error, log)), None
    return StageOutcome(stage.name, stage.title, "ran", time.monotonic() - start), records


def _logged(error: Exception, log: Path) -> str:
    """The error in a line; one that is no error of the input with the file that has its traceback."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    try:
        log.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    except OSError:
        return text
    return text if isinstance(error, InputError | OSError | ImportError) else f"{text} (traceback: {log})"


def _kept(folder: Path, key: str) -> Records | None:
    """What the stage left, if it had this key; None if it is missing or damaged."""
    try:
        same = read_json(folder / KEY, {"key": str})["key"] == key
        return Records.read(folder) if same else None
    except (SchemaError, InputError):
        return None


def chosen(only: Sequence[str]) -> tuple[list[Any], set[str]]:
    """The claims that are asked for, and the stages that they and the figures asked for need."""
    if not only:
        return list(CLAIMS.values()), set(STAGES)
    unknown = [name for name in only if name not in CLAIMS and name not in FIGURES]
    if unknown:
        raise InputError(f"--only {unknown[0]}: is none of {', '.join([*FIGURES, *CLAIMS])}")
    claims = [claim for name, claim in CLAIMS.items() if name in only]
    needed = {stage for claim in claims for stage in claim.stages}
    return claims, needed | {stage for name in only for stage in FIGURES.get(name, ())}


def _plain(one: Judged) -> dict[str, Any]:
    claim = one.claim
    return {
        "id": claim.id,
        "where": claim.where,
        "statement": claim.statement,
        "published": claim.published,
        "source": claim.source,
        "measured": _finite(one.numbers),
        "rule": claim.rule,
        "verdict": one.ruling.verdict,
        "reason": one.ruling.reason,
        "stages": list(claim.stages),
    }


def _plain_erratum(one: Checked) -> dict[str, Any]:
    erratum = one.erratum
    return {
        "id": erratum.id,
        "kind": erratum.kind,
        "where": erratum.where,
        "printed": erratum.printed,
        "true": erratum.true,
        "measured": _finite(one.numbers),
        "fails": one.fails,
        "why": one.why,
    }


def _finite(numbers: dict[str, float]) -> dict[str, float | None]:
    return {name: float(value) if isfinite(value) else None for name, value in numbers.items()}
