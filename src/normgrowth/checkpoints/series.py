"""A series: checkpoints in the order of training steps, opened one at a time.

`open_source` takes whatever a person has at hand: a file, a folder, a glob, the address of one of these on a
web server or in a bucket, a list of these, or a hub repository with a pattern of revisions.
"""

import glob
import re
import shlex
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Literal

import numpy as np

from normgrowth.checkpoints.checkpoint import STORAGE, Checkpoint, check_unchanged, decode
from normgrowth.checkpoints.local_files import Unit, find_units, why_nothing
from normgrowth.checkpoints.name_globs import by_pattern, name_pattern, separating_globs
from normgrowth.checkpoints.remote import hub
from normgrowth.checkpoints.remote.discovery import find_remote, is_remote
from normgrowth.checkpoints.remote.remote_file import Reading, RemoteUnit, RevisionUnit
from normgrowth.checkpoints.remote.website import shown
from normgrowth.checkpoints.steps import LARGEST_STEP, is_counter, likely_step, sure_step
from normgrowth.errors import InputError, SeriesWarning, UnsupportedDtype
from normgrowth.text import html_table

_Unit = tuple[PurePath, Unit | RemoteUnit]  # with the path it was found at or below
_TENSORFLOW_COMPANION = re.compile(r"\.(data-\d{5}-of-\d{5}|meta)$")


# How a step became known, the surest first: its name says it, it is stored inside or beside, its name suggests it,
# or nothing does and checkpoints are counted.
StepOrigin = Literal["name", "stored", "guessed", "counted"]
SAID, STORED, GUESSED, UNKNOWN = range(4)
ORIGINS: tuple[StepOrigin, ...] = ("name", "stored", "guessed", "counted")


@dataclass(frozen=True)
class Entry:
    """One checkpoint of a series, not opened."""

    step: int
    label: str
    fingerprint: str  # changes when the checkpoint does
    open: Callable[[], Checkpoint]
    step_origin: StepOrigin = "name"


@dataclass(frozen=True)
class Series:
    label: str
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()  # what could not be read as a step, and the like
    damaged: tuple[tuple[str, str], ...] = ()  # left out: files without a step that cannot be read, and why

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[tuple[int, str, np.ndarray]]:
        """Every tensor of every checkpoint as (step, name, float64 array), one at a time.

        A tensor whose dtype cannot be read (complex numbers, 4-bit floats) is left out with a warning.
        """
        for entry in self.entries:
            checkpoint = entry.open()
            try:
                for name, tensor in checkpoint.tensors.items():
                    if tensor.dtype not in STORAGE:
                        error = UnsupportedDtype(entry.label, name, tensor.dtype)
                        warnings.warn(f"left out: {error}", SeriesWarning, stacklevel=2)
                        continue
                    values = decode(tensor.dtype, checkpoint.dense(name)).reshape(tensor.shape)
                    values = values if values.flags.writeable else values.copy()  # else a view of the file
                    check_unchanged(checkpoint)
                    yield entry.step, name, values
            finally:
                checkpoint.close()

    def _repr_html_(self) -> str:
        rows = [(entry.step, entry.step_origin, entry.label) for entry in self.entries]
        notes = [("note", note) for note in self.notes]
        about = html_table(("series", self.label), [("checkpoints", len(self)), *notes])
        return about + html_table(("step", "from", "checkpoint"), rows)


def open_source(
    source: str | Path | Iterable[str | Path],
    *,
    endpoint: str | None = None,
    scratch: Path | None = None,
) -> Series:
    """The series behind a path, a glob, an address, a list of these, or ``hf://org/repo@pattern``.

    Addresses begin with ``https://``, ``http://``, ``s3://`` or ``gs://``; of safetensors files there and on
    the hub, only what is asked for is read. endpoint: another address than the hub's; scratch: where checkpoints
    in other formats are put while they are read.
    """
    parts = [source] if isinstance(source, str | Path) else list(source)
    if not parts:
        raise InputError("an empty list of checkpoints")
    label = ", ".join(part if hub.is_hub(part) else shown(part) for part in map(str, parts))
    notes: list[str] = []
    damaged: list[tuple[str, str]] = []
    reading = Reading(scratch)
    on_hub = [part for part in parts if isinstance(part, str) and hub.is_hub(part)]
    remote = [part for part in parts if isinstance(part, str) and is_remote(part)]
    units = _local([part for part in parts if part not in (*on_hub, *remote)])
    units += [pair for part in remote for pair in find_remote(part, reading)]
    found = _found(units, notes, damaged)
    for part in on_hub:
        found += _revisions(part, reading, endpoint)
    if not found and damaged:
        more = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
        raise InputError(
            f"{label}: none of its {len(damaged)} checkpoints can be read: {damaged[0][1]}{more}"
        )
    if not found:
        local = [Path(part) for part in parts if part not in (*on_hub, *remote)]
        reasons = [reason for part in local if part.is_dir() and (reason := why_nothing(part))]
        reason = f": {reasons[0]}" if reasons else " (safetensors, PyTorch, TensorFlow or distributed)"
        raise InputError(f"{label}: no checkpoints here{reason}")
    return Series(label, _in_order(found, notes), tuple(notes), tuple(damaged))


@dataclass(frozen=True)
class _Found:
    """A checkpoint, its step and how we know it."""

    entry: Entry
    how: int


def _local(parts: list[str | Path]) -> list[_Unit]:
    # A shell that expands `model.ckpt-*` names TensorFlow's data files beside their index.
    named = [part for part in parts if not _TENSORFLOW_COMPANION.search(str(part))] or parts
    return [(root, unit) for part in named for root in _roots(part) for unit in find_units(root)]


def _found(units: list[_Unit], notes: list[str], damaged: list[tuple[str, str]]) -> list[_Found]:
    units = _without_final_model(units, notes)
    said = _said_steps(units)
    counted = _stored_steps(units, said, notes)
    found: list[_Found] = []
    stored: list[Entry] = []
    for place, ((_, unit), step) in enumerate(zip(units, said, strict=True)):
        how = SAID
        if place in counted:
            step, how = counted[place], STORED
        try:
            if step is None:
                step, how = _other_step(unit)
            known = -1 if step is None else step
            entry = Entry(known, unit.label, unit.fingerprint(), unit.open, ORIGINS[how])
            found.append(_Found(entry, how))
            if how == STORED and place not in counted:
                stored.append(entry)
        except InputError as error:
            if step is not None or len(units) == 1:
                raise
            notes.append(f"left out, it has no step and cannot be read: {error}")
            damaged.append((unit.label, str(error)))
    if stored:
        notes.append(f"{stored[0].label}: step {stored[0].step}, as stored inside{_likewise(stored)}")
    return found


def _roots(part: str | Path) -> list[Path]:
    path = Path(part).expanduser()
    if isinstance(part, Path) or path.exists() or not glob.has_magic(part):
        return [path.absolute() if path == Path() or ".." in path.parts else path]
    matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
    if not matches:
        raise InputError(f"{part}: nothing matches this pattern")
    usable = [match for match in matches if match.is_dir() or _has_weights(match)]
    if not usable:
        raise InputError(f"{part}: none of the {len(matches)} files that match is a checkpoint")
    return usable


def _has_weights(path: Path) -> bool:
    try:
        return bool(find_units(path))
    except InputError:
        return path.suffix in {".safetensors", ".pt", ".pth"}  # broken, but meant to be one: say so later


def _without_final_model(units: list[_Unit], notes: list[str]) -> list[_Unit]:
    """The weights at the top of a folder and those below it: steps and the final model, or a model and its parts."""
    top = [(root, unit) for root, unit in units if unit.main.parent == root]
    inner = [(root, unit) for root, unit in units if unit.main.parent != root and unit.main != root]
    if len(top) != 1 or not inner or sure_step(_stem(top[0][1].main.name)) is not None:
        return units
    steps = [pair for pair in inner if _below(*pair) is not None or pair[1].trainer_step() is not None]
    others = [pair for pair in units if pair not in top and pair not in inner]
    if steps:
        notes.append(f"{top[0][1].main_label}: left out, it lies beside the checkpoints and has no step")
        return inner + others
    notes.append(f"{inner[0][1].label}: left out, with all that lies below {top[0][1].label} and has no step")
    return top + others


def _naming(root: PurePath, unit: Unit | RemoteUnit) -> str:
    """The name that says the step: of the checkpoint, or of a folder between it and the root; "" if none does."""
    parts = unit.path.relative_to(root).parts if unit.path.is_relative_to(root) else ()
    names = [_stem(name) for name in reversed(parts or (unit.path.name,))]
    return next((name for name in names if sure_step(name) is not None), "")


def _below(root: PurePath, unit: Unit | RemoteUnit) -> int | None:
    return sure_step(_naming(root, unit))


def _said_steps(units: list[_Unit]) -> list[int | None]:
    """Steps that names say. A folder above the root is asked only if it can tell the checkpoints apart."""
    steps = [_below(*pair) for pair in units]
    above = [sure_step(unit.above) for _, unit in units]
    if len(units) == 1 or len(set(above)) > 1:
        steps = [step if step is not None else other for step, other in zip(steps, above, strict=True)]
    return steps


def _stored_steps(units: list[_Unit], said: list[int | None], notes: list[str]) -> dict[int, int]:
    """Place -> the step stored in a checkpoint whose name only counts: `ckpt-3` of TensorFlow is its third save.

    Taken if every such checkpoint of this machine stores one and they rise as the counts do: a step within an epoch
    does not.
    """
    counters = [
        place
        for place, (root, unit) in enumerate(units)
        if isinstance(unit, Unit) and is_counter(_naming(root, unit))
    ]
    far = [
        (said[place], unit.label)
        for place, (root, unit) in enumerate(units)
        if isinstance(unit, RemoteUnit) and unit.format == "tensorflow" and is_counter(_naming(root, unit))
    ]
    if far:
        notes.append(
            f"{far[0][1]}: step {far[0][0]} is the number in its name, which may count saves{_likewise(far)}; the step "
            "stored inside is read on this machine only: download the series to have it"
        )
    ordered = sorted(counters, key=lambda place: said[place] or 0)
    steps: list[int] = []
    for place in ordered:
        unit = units[place][1]
        step = _stored_step(unit) if isinstance(unit, Unit) else None
        if step is None or (steps and step <= steps[-1]):
            return {}
        steps.append(step)
    found = dict(zip(ordered, steps, strict=True))
    other = [place for place in ordered if found[place] != said[place]]
    if not other:
        return {}
    label, step, count = units[other[-1]][1].label, found[other[-1]], said[other[-1]]
    notes.append(
        f"{label}: step {step}, as stored inside; the {count} in its name is a count{_likewise(other)}"
    )
    return found


def _stored_step(unit: Unit) -> int | None:
    """The step stored beside the weights or inside; None also if the file is damaged."""
    if (step := unit.trainer_step()) is not None:
        return step
    try:
        checkpoint = unit.open()
    except InputError:
        return None
    checkpoint.close()
    return checkpoint.step


def _other_step(unit: Unit | RemoteUnit) -> tuple[int | None, int]:
    """From what is stored beside the weights or inside, else a guess from the name."""
    if (step := unit.trainer_step()) is not None:
        return step, STORED
    stem = _stem(unit.path.name)
    guess = likely_step(stem)
    if unit.slow and guess is not None:  # its name will do, if what it stores cannot be had
        step = _stored_step(unit) if isinstance(unit, Unit) else None
    else:
        checkpoint = unit.open()
        step = checkpoint.step
        checkpoint.close()
    if step is not None:
        return step, STORED
    if guess is None:
        guess = likely_step(unit.path.parent.name)
    return guess, UNKNOWN if guess is None else GUESSED


def _stem(name: str) -> str:
    return re.sub(r"\.(safetensors|pth?|bin|ckpt|chkpt|index|tar|json|pkl)$", "", name)


def _by_number_that_varies(found: list[_Found]) -> list[_Found]:
    """Guesses that are all the same (`epoch2_1`, `epoch2_2`, ...) replaced by the last number, which is not."""
    alike: dict[tuple[str, str], list[int]] = {}
    for place, item in enumerate(found):
        if item.how == GUESSED:
            alike.setdefault(name_pattern(item.entry.label), []).append(place)
    better = list(found)
    for places in alike.values():
        if len(places) > 1 and len({found[place].entry.step for place in places}) == 1:
            for place in places:
                before, after = name_pattern(label := found[place].entry.label)
                step = int(label[len(before) : len(label) - len(after)])
                if step < LARGEST_STEP:
                    better[place] = replace(found[place], entry=replace(found[place].entry, step=step))
    return better


def _in_order(found: list[_Found], notes: list[str]) -> tuple[Entry, ...]:
    found = _by_number_that_varies(found)
    known = [item for item in found if item.how != UNKNOWN]
    unknown = [item.entry for item in found if item.how == UNKNOWN]
    if not known and len(found) > 1:
        notes.append(
            "no training steps in the names or the files: counted 0, 1, 2, ... in the order of names"
        )
        entries = sorted(unknown, key=lambda entry: _natural(entry.label))
        return tuple(replace(entry, step=i) for i, entry in enumerate(entries))
    if not known:
        notes.append(f"{unknown[0].label}: no training step in its name or inside; taken as 0")
        return (replace(unknown[0], step=0),)
    notes.extend(
        f"{entry.label}: left out, it has no training step in its name or inside" for entry in unknown
    )
    guessed = [item.entry for item in known if item.how == GUESSED]
    if guessed:
        notes.append(
            f"{guessed[0].label}: step {guessed[0].step} is guessed from its name{_likewise(guessed)}"
        )
    ordered: list[_Found] = []
    for item in sorted(known, key=lambda item: (item.entry.step, item.how)):
        if ordered and ordered[-1].entry.step == item.entry.step:
            one, other = ordered[-1].entry, item.entry
            if ordered[-1].how == item.how:
                way_out = _way_out([item.entry for item in known], other)
                raise InputError(f"{other.label}: has step {one.step}, and so has {one.label}; {way_out}")
            notes.append(f"{other.label}: left out, {one.label} says in its name that it is step {one.step}")
            continue
        ordered.append(item)
    return tuple(item.entry for item in ordered)


def _likewise(items: Sequence[object]) -> str:
    """How many more a note is about, of which it names one."""
    return f" (and {len(items) - 1} more likewise)" if len(items) > 1 else ""


def _way_out(entries: list[Entry], entry: Entry) -> str:
    if re.search(r"mp_rank_\d|consolidated\.\d", entry.label):
        return "parts of one model under tensor parallelism are not joined here: convert them first"
    named = [(entry.label, entry.step) for entry in entries]
    parts = [[named[i] for i in part] for part in by_pattern(named)]
    globs = separating_globs(parts) if len(parts) > 1 and "://" not in entry.label else None
    if globs is None:
        return "name one by a glob or a list"
    several = "two" if len(globs) == 2 else "several"
    return f"{several} series? Name one of them: {' or '.join(shlex.quote(own[0]) for own in globs)}"


def _natural(label: str) -> list[tuple[int, int, str]]:
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in re.split(r"(\d+)", label)]


def _revisions(uri: str, reading: Reading, endpoint: str | None) -> list[_Found]:
    found: list[_Found] = []
    for revision in hub.list_revisions(uri, endpoint=endpoint):
        step, how = sure_step(revision.revision), SAID
        if step is None:
            step, how = likely_step(revision.revision), GUESSED
        opener = RevisionUnit(revision, reading).open
        how = UNKNOWN if step is None else how
        entry = Entry(-1 if step is None else step, revision.label, revision.commit, opener, ORIGINS[how])
        found.append(_Found(entry, how))
    return found
