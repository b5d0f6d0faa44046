"""`reproduce`: everything that the paper shows, computed here, beside what was published, with verdicts.

    out/stages/NAME/        what a stage works with, and its records
    out/claims.json         every claim: published, measured, rule, verdict and reason
    out/figures/            Figures 1 to 6 as png, svg and pdf

A stage whose settings and code are what they were is not run again. One that fails loses no other: what it was needed
for is undecided, and says why.
"""

import hashlib
import json
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import Any

from normgrowth.engine import Engine
from normgrowth.errors import FolderMismatch, InputError, SchemaError
from normgrowth.paper.claim import Judged, judged
from normgrowth.paper.claims import CLAIMS
from normgrowth.paper.errata import ERRATA
from normgrowth.paper.erratum import Checked, checked
from normgrowth.paper.pace import time_left
from normgrowth.paper.stages.cost import Machine, this_machine
from normgrowth.paper.stages.plan import Scale, Stage, Work, stages
from normgrowth.records import Records, replacing
from normgrowth.schema import read_json
from normgrowth.workspace import Workspace

STAGES, KEY, RESULTS = "stages", "stage.json", "claims.json"
WORK = "work"
AT_ONCE = 0.1  # of the time that was planned for parts: those that come sooner were there before
FIGURES = {  # of the paper -> stages that its picture here is made of
    "fig1": ("lab",),
    "fig2": ("pretrained",),
    "fig3": ("lab",),
    "fig4": ("scaling",),
    "fig5": ("lab",),
    "fig6": ("sweep",),
    "table1": ("theory",),
}


@dataclass(frozen=True)
class Reproduced:
    """What came of it: evidence by stage, failures by stage with their reasons, verdicts in the order of the paper."""

    evidence: dict[str, Records]
    failed: dict[str, str]
    seconds: dict[str, float]  # of the stages that were run now
    verdicts: list[Judged]
    errata: list[Checked]  # with all claims only
    made_by: dict[str, Any]

    def facts(self) -> dict[str, Any]:
        return {
            **self.made_by,
            "stages": dict.fromkeys(self.evidence, "kept")
            | {name: f"{seconds:.0f} s" for name, seconds in self.seconds.items()}
            | {name: f"failed: {why}" for name, why in self.failed.items()},
            "claims": [_plain(one) for one in self.verdicts],
            "errata": [_plain_erratum(one) for one in self.errata],
        }


@dataclass(frozen=True)
class Telling:
    """Told of stages as they come: that one begins, its parts (done, of how many, which), and how it ended.

    The last argument of the first two is how many seconds all stages still take.
    """

    begins: Callable[[Stage, float], None] = lambda *_: None
    moves: Callable[[int, int, str, float], None] = lambda *_: None
    ends: Callable[[Stage, str], None] = lambda *_: None


def reproduce(
    out: Path | str,
    *,
    scale: Scale = "demo",
    only: Sequence[str] = (),
    data: Path | str | None = None,
    engine: Engine,
    telling: Telling | None = None,
    machine: Machine | None = None,
    overwrite: bool = False,
) -> Reproduced:
    """Run the stages that are wanted, and judge the claims that rest on them.

    only: claims (`heads-bimodal`), figures (`fig2`) or `table1`; all without. data: the folder of `penn` and
    `wikitext-2`. machine: where the engine works, for the time left; measured where it is needed. overwrite: replace
    the records of stages that were run with other settings.
    """
    with Workspace.open(out, "reproduce", overwrite=overwrite) as workspace:
        if workspace.found is None or workspace.found.kind != "reproduce":
            workspace.check({})
        return _reproduce(Path(out), scale, only, data, engine, telling or Telling(), machine, overwrite)


def _reproduce(
    out: Path,
    scale: Scale,
    only: Sequence[str],
    data: Path | str | None,
    engine: Engine,
    tell: Telling,
    machine: Machine | None,
    overwrite: bool,
) -> Reproduced:
    claims, needed = chosen(only)
    corpora = Path(data) if data else None
    wanted = [stage for stage in stages(scale, corpora) if stage.name in needed]
    keys = {
        stage.name: key_of(stage) for stage in wanted
    }  # of the code that runs, whatever becomes of it meanwhile
    if not overwrite:
        for stage in wanted:
            _refuse_other_settings(out, stage, scale)
    kept = {name: _kept(out / STAGES / name, key) for name, key in keys.items()}
    if machine is None and any(stage.cost.tasks for stage in wanted if kept[stage.name] is None):
        machine = this_machine()
    planned = {
        stage.name: stage.cost.on(machine, engine.workers) for stage in wanted if kept[stage.name] is None
    }
    evidence: dict[str, Records] = {}
    failed: dict[str, str] = {}
    seconds: dict[str, float] = {}
    for stage in wanted:
        watch = _Watch(stage.name, planned, seconds, failed, tell)
        tell.begins(stage, watch.left())
        if (known := kept[stage.name]) is not None:
            evidence[stage.name] = known
            tell.ends(stage, "as it was")
            continue
        folder = out / STAGES / stage.name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            work = Work(_work_of(folder, keys[stage.name]), engine, corpora, watch)
            evidence[stage.name] = records = stage.run(work)
            records.write(folder)
            with replacing(folder / KEY) as path:
                said = {"key": keys[stage.name], "scale": scale, "settings": stage.settings}
                path.write_text(json.dumps(said))
        except (InputError, OSError, ImportError) as error:
            failed[stage.name] = _in_a_line(error)
            tell.ends(stage, f"failed: {failed[stage.name]}")
            continue
        seconds[stage.name] = watch.spent
        tell.ends(stage, f"{seconds[stage.name]:.0f} s")
    verdicts = [judged(claim, evidence, failed) for claim in claims]
    errata = [] if only else [checked(erratum, evidence, failed) for erratum in ERRATA.values()]
    made_by = {
        "command": "reproduce",
        "scale": scale,
        "only": list(only),
        "versions": {"normgrowth": version("normgrowth"), "python": platform.python_version()},
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    found = Reproduced(evidence, failed, seconds, verdicts, errata, made_by)
    with replacing(out / RESULTS) as path:
        path.write_text(json.dumps(found.facts(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return found


class _Watch:
    """Told of the parts of a stage that runs; tells them on, with the time left."""

    def __init__(
        self,
        name: str,
        planned: Mapping[str, float],
        took: Mapping[str, float],
        failed: Mapping[str, str],
        tell: Telling,
    ) -> None:
        self.ran = [(planned[one], real) for one, real in took.items()]
        self.ahead = [planned[one] for one in planned if one not in (name, *took, *failed)]
        self.now, self.tell, self.start = planned.get(name, 0.0), tell, time.monotonic()
        self.kept: float | None = None

    @property
    def spent(self) -> float:
        return time.monotonic() - self.start

    def left(self, done: float = 0.0) -> float:
        return time_left(
            self.ran, self.ahead, now=self.now, spent=self.spent, done=done, kept=self.kept or 0.0
        )

    def __call__(self, done: int, of: int, label: str) -> None:
        share = done / of if of else 0.0
        if self.kept is None:
            self.kept = share if self.spent < AT_ONCE * share * self.now else 0.0
        self.tell.moves(done, of, label, self.left(share))


def chosen(only: Sequence[str]) -> tuple[list[Any], set[str]]:
    """The claims that are asked for, and the stages that they and the figures asked for need."""
    if not only:
        return list(CLAIMS.values()), {stage.name for stage in stages("demo")}
    unknown = [name for name in only if name not in CLAIMS and name not in FIGURES]
    if unknown:
        raise InputError(f"--only {unknown[0]}: is none of {', '.join([*FIGURES, *CLAIMS])}")
    claims = [claim for name, claim in CLAIMS.items() if name in only]
    needed = {stage for claim in claims for stage in claim.stages}
    return claims, needed | {stage for name in only for stage in FIGURES.get(name, ())}


def key_of(stage: Stage) -> str:
    """Names everything that the records of a stage depend on: its settings, and the code of its parts."""
    digest = hashlib.sha256(json.dumps([stage.name, stage.settings], sort_keys=True).encode())
    root = Path(str(files("normgrowth")))
    for path in _sources(root, stage.parts):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _sources(root: Path, parts: Sequence[str]) -> Iterable[Path]:
    for part in parts:
        place = root / part
        yield from sorted(place.rglob("*.py")) if place.is_dir() else [place]


def _work_of(folder: Path, key: str) -> Path:
    """Where a stage works. What other code or settings left there is put aside: not gone on with, and not lost."""
    work, marker = folder / WORK, folder / f"{WORK}.json"
    if work.exists() and _key(marker) != key:
        count = sum(1 for _ in folder.glob(f"{WORK}-before-*"))
        work.rename(folder / f"{WORK}-before-{count + 1}")
    with replacing(marker) as path:
        path.write_text(json.dumps({"key": key}))
    return work


def _key(path: Path) -> str | None:
    try:
        return read_json(path, {"key": str})["key"]
    except SchemaError:
        return None


def _refuse_other_settings(out: Path, stage: Stage, scale: Scale) -> None:
    """Raise FolderMismatch if the stage was run with other settings: running it would replace those records."""
    try:
        said = read_json(out / STAGES / stage.name / KEY, {"scale": str, "settings": dict})
    except SchemaError:
        return
    old, new = said["settings"], json.loads(json.dumps(stage.settings))
    if old == new:
        return
    name = next(name for name in (*new, *old) if old.get(name) != new.get(name))
    found, wanted = (
        {"kind": "reproduce", "scale": one, "stage": stage.name, name: settings.get(name)}
        for one, settings in ((said["scale"], old), (scale, new))
    )
    raise FolderMismatch(out, found, wanted)


def _kept(folder: Path, key: str) -> Records | None:
    """What a stage left, if it was this one; what is not there, or is damaged, is run again."""
    try:
        return Records.read(folder) if _key(folder / KEY) == key else None
    except InputError:
        return None


def _in_a_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


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
