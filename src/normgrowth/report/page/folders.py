"""Folders of ours -> a page: whichever parts they hold, runs of several laid over each other.

records.parquet       of any command: trace, train, saturation, heads, scaling, sweep, a tracker
tracker/              of a training run: its tensors, and everything while the run goes on
claims.json, stages/  of `reproduce`: verdicts first, then what the stages measured
folders below         where the folder itself holds no records
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from normgrowth.errors import InputError
from normgrowth.fit.result import SeriesFit
from normgrowth.lab.run import Run as TrainRun
from normgrowth.lint.finding import Finding
from normgrowth.network.saturation import Saturation
from normgrowth.paper.reproduction import Reproduction
from normgrowth.records import Records, has_records
from normgrowth.report.page.document import write_page
from normgrowth.report.page.pieces import Section, Table, words
from normgrowth.report.page.sections.networks import (
    heads_section,
    heads_sentences,
    learning_section,
    saturation_section,
    saturation_sentences,
    scaling_section,
)
from normgrowth.report.page.sections.reproduction import reproduction_sections, reproduction_sentences
from normgrowth.report.page.sections.runs import Run, counted_notes
from normgrowth.report.page.sections.sweep import sweep_section
from normgrowth.report.page.sections.trace import growth_section, growth_sentences
from normgrowth.report.terminal import run as train
from normgrowth.report.terminal.findings import finding_rows
from normgrowth.report.wording import visible
from normgrowth.results import CLAIMS

Fitted = Callable[[Records], Mapping[str, SeriesFit]]
Read = Callable[[Path], Records | None]  # None: the folder itself holds none
DEEPEST = 2  # folders below the one that is named
TRACKER = "tracker"


@dataclass
class Parts:
    """What was found, by how it is shown."""

    runs: list[Run] = field(default_factory=list)
    levels: list[Saturation] = field(default_factory=list)  # of networks that were measured once
    heads: list[Records] = field(default_factory=list)
    scaling: list[Records] = field(default_factory=list)
    sweeps: list[Records] = field(default_factory=list)
    reproductions: list[Reproduction] = field(default_factory=list)
    made_by: dict[str, Any] = field(default_factory=dict)  # folder -> sidecar


def report(
    folders: Sequence[Path | str],
    path: Path | str,
    *,
    title: str = "",
    fitted: Fitted | None = None,
    read: Read | None = None,
    pictures: Sequence[Any] = (),
    made_by: Mapping[str, Any] | None = None,
) -> Path:
    """fitted: the growth laws of a run's series, by name. read: the records of a folder, where `Records.read` is not
    enough. pictures: figures that go with claims.
    """
    parts = collected(folders, read or read_records)
    if fitted is not None:
        parts.runs = [
            replace(run, fits=fitted(run.records)) if run.grows() and len(run.grids.steps) > 1 else run
            for run in parts.runs
        ]
    known = [section for section in _sections(parts, pictures) if section is not None]
    summary = _summary(parts)
    if not known:
        raise InputError(f"{folders[0]}: nothing to report: no records of runs, networks or sweeps here")
    names = ", ".join(Path(folder).resolve().name for folder in folders)
    return write_page(
        path,
        title or f"normgrowth: {names}",
        known,
        summary=summary,
        facts={**(made_by or {}), "records": parts.made_by},
        runs=[run.label for run in parts.runs],
    )


def read_records(folder: Path) -> Records | None:
    return Records.read(folder) if has_records(folder) else None


def collected(folders: Sequence[Path | str], read: Read = read_records) -> Parts:
    parts = Parts()
    for folder in map(Path, folders):
        found = list(_records_of(folder, read))
        if (folder / CLAIMS).is_file():
            parts.reproductions.append(Reproduction.read(folder))
        elif not found:
            raise InputError(
                f"{folder}: no records here or below; `normgrowth trace -o`, `train` and others make them"
            )
        for path, records in found:
            label = _label(path, parts.made_by)
            parts.made_by[label] = records.made_by
            if records.made_by.get("stage") == "theory":
                continue  # Table 1 is part of the reproduction
            for run in _worth_showing(records):
                _sort_in(parts, label, run, records)
    return parts


def _worth_showing(records: Records) -> list[str]:
    """All runs; of a reproduction's models those of the tracker, which has more steps than their checkpoints."""
    runs = records.distinct("run")
    if records.made_by.get("stage") not in ("language_models", "lab"):
        return runs
    heads = [run for run in runs if run.endswith(", heads")]
    return [run for run in runs if not run.endswith((", checkpoints", ", heads"))] + heads[:1]


def _label(folder: Path, taken: Mapping[str, Any]) -> str:
    """As much of the end of its path as tells it from the others."""
    parts = folder.resolve().parts
    for count in range(1, len(parts) + 1):
        if (label := "/".join(parts[-count:])) not in taken:
            return label
    return f"{folder} again, {len(taken)}"


def _records_of(folder: Path, read: Read, depth: int = DEEPEST) -> Iterable[tuple[Path, Records]]:
    """Of the folder, else of those below it."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    records, tracked = read(folder), read(folder / TRACKER) if (folder / TRACKER).is_dir() else None
    if tracked is not None:
        records = tracked if records is None else _with_tracked(records, tracked)
    if records is not None:
        yield folder, records
    elif depth:
        for below in sorted(path for path in folder.iterdir() if path.is_dir()):
            yield from _records_of(below, read, depth - 1)


def _with_tracked(records: Records, tracked: Records) -> Records:
    """A run that has ended has the tracker's rows of model and layers in its own; here come its tensors and roles."""
    if not len(records.where(level="model", quantity="norm")):
        return Records.joined([records, tracked], records.made_by)
    norms = tracked.where(quantity="norm")
    rest = [norms.where(level=level) for level in ("tensor", "role")]
    return Records.joined([records, *rest], records.made_by)


def _sort_in(parts: Parts, folder: str, run: str, records: Records) -> None:
    runs = records.made_by.get("runs")
    known = runs.get(run) if isinstance(runs, dict) else None
    made_by = known or _of_model(records, run) or records.made_by
    command = records.made_by.get("command")
    own = Records(records.where(run=run).table, made_by)
    if command in ("sweep", "scaling"):
        whole = parts.sweeps if command == "sweep" else parts.scaling
        if not any(one is records for one in whole):
            whole.append(records)
        return
    levels = own.distinct("level")
    if "head" in levels:
        parts.heads.append(own)
    steps = own.where(level="model").distinct("step")
    if any(name.startswith("saturation") for name in own.distinct("quantity")) and len(steps) < 2:
        levels = Saturation.from_records(own)
        models = {name: model for name, model in levels.models.items() if name == run}
        parts.levels.append(replace(levels, models=models))
    if len(own.where(level="model", quantity="norm")) or len(steps) > 1:
        provenance = "published" if command == "published" else "measured"
        parts.runs.append(Run(_free(parts, run, folder), own, len(parts.runs), provenance=provenance))


def _of_model(records: Records, run: str) -> dict[str, Any]:
    """What a reproduction knows of the heads of one of its models."""
    return records.made_by.get("heads", {}).get(run.removesuffix(", heads"), {}) if "heads" in run else {}


def _free(parts: Parts, run: str, folder: str) -> str:
    """A label that no other run has: its name, with its folder where that is taken."""
    taken = {one.label for one in parts.runs}
    for label in (run, f"{run} ({folder})"):
        if label not in taken:
            return label
    return f"{run} ({folder}, {len(taken)})"


def _sections(parts: Parts, pictures: Sequence[Any]) -> Iterable[Section | None]:
    for place, reproduction in enumerate(parts.reproductions):
        yield from reproduction_sections(reproduction, pictures, place)
    yield growth_section(parts.runs)
    yield learning_section(parts.runs)
    yield saturation_section(parts.runs, parts.levels)
    yield heads_section(parts.heads)
    yield scaling_section(parts.scaling)
    yield sweep_section(parts.sweeps)
    yield _findings(parts)


def _summary(parts: Parts) -> list[str]:
    said = [text for one in parts.reproductions for text in reproduction_sentences(one)]
    said += counted_notes(parts.runs)
    if not parts.reproductions:
        for run in parts.runs:
            texts = _of_run(run)
            said += [f"{visible(run.label)}: {' '.join(texts)}"] if len(parts.runs) > 1 and texts else texts
        said += [text for result in parts.levels for text in saturation_sentences(result)]
        said += [text for records in parts.heads for text in heads_sentences(records)]
    findings = [found for made_by in parts.made_by.values() if (found := made_by.get("findings")) is not None]
    if findings:
        count = sum(map(len, findings))
        said.append(f"Lint found {count} places to look at." if count else "Lint found nothing.")
    return said


def _of_run(run: Run) -> list[str]:
    """What was learned, what grew, by which law, how aligned, how saturated."""
    texts, grids = growth_sentences(run), run.grids
    if run.records.made_by.get("command") in ("train", "run") and len(grids.model("dev_loss")[0]):
        texts = [*train.sentences(TrainRun.from_records(run.records))[:1], *texts]
    levels = grids.model("saturation")[1]
    if len(levels) > 1:
        others = grids.model("saturation_others")[1]
        beside = f"; to other tokens it ends at {others[-1]:.3f}" if len(others) else ""
        texts.append(f"Saturation went from {levels[0]:.3f} to {levels[-1]:.3f}, mean over blocks{beside}.")
    return texts


def _findings(parts: Parts) -> Section | None:
    items = []
    for label, made_by in parts.made_by.items():
        found = finding_rows([Finding(**finding) for finding in made_by.get("findings") or []])
        if found:
            titles = ("step", "kind", "severity", "tensor or file", "why")
            columns = [words(t, c) for t, c in zip(titles, zip(*found, strict=True), strict=True)]
            items.append(Table(f"Lint of {label}", columns))
    notes = [
        f"{label}: {note}"
        for label, made_by in parts.made_by.items()
        for note in [*(made_by.get("problems") or []), *(made_by.get("notes") or [])]
    ]
    return Section("findings", "What to know of the data", notes, items) if items or notes else None
