"""A series: checkpoints in the order of training steps, opened one at a time.

`open_source` takes whatever a person has at hand: a file, a folder, a glob, the address of one of these on a
web server or in a bucket, a list of these, or a hub repository with a pattern of revisions.
"""

import glob
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath

import numpy as np

from normgrowth.errors import InputError
from normgrowth.showing import html_table
from normgrowth.weights.sources import hub
from normgrowth.weights.sources.checkpoint import Checkpoint, decode
from normgrowth.weights.sources.elsewhere import find_remote, is_remote
from normgrowth.weights.sources.folder import Unit, find_units
from normgrowth.weights.sources.places import shown
from normgrowth.weights.sources.remote import range_cache
from normgrowth.weights.sources.steps import likely_step, sure_step
from normgrowth.weights.sources.units import Reading, RemoteUnit, RevisionUnit

_Unit = tuple[PurePath, Unit | RemoteUnit]  # with the path it was found at or below
_TENSORFLOW_COMPANION = re.compile(r"\.(data-\d{5}-of-\d{5}|meta)$")


@dataclass(frozen=True)
class Entry:
    """One checkpoint of a series, not opened."""

    step: int
    label: str
    fingerprint: str  # changes when the checkpoint does
    open: Callable[[], Checkpoint]


@dataclass(frozen=True)
class Series:
    label: str
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()  # what could not be read as a step, and the like
    damaged: tuple[tuple[str, str], ...] = ()  # left out: files without a step that cannot be read, and why

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[tuple[int, str, np.ndarray]]:
        """Every tensor of every checkpoint as (step, name, float64 array), one at a time."""
        for entry in self.entries:
            checkpoint = entry.open()
            try:
                for name, tensor in checkpoint.tensors.items():
                    yield entry.step, name, decode(tensor.dtype, checkpoint.dense(name)).reshape(tensor.shape)
            finally:
                checkpoint.close()

    def _repr_html_(self) -> str:
        rows = [(entry.step, entry.label) for entry in self.entries]
        notes = [("note", note) for note in self.notes]
        about = html_table(("series", self.label), [("checkpoints", len(self)), *notes])
        return about + html_table(("step", "checkpoint"), rows)


def open_source(
    source: str | Path | Iterable[str | Path],
    *,
    allow: Sequence[str] = (),
    endpoint: str | None = None,
    scratch: Path | None = None,
    cache: int = 0,
) -> Series:
    """The series behind a path, a glob, an address, a list of these, or ``hf://org/repo@pattern``.

    Addresses begin with ``https://``, ``http://``, ``s3://`` or ``gs://``; of safetensors files there and on
    the hub, only what is asked for is read. allow: classes that PyTorch files may ask for, by full name;
    endpoint: another address than the hub's; scratch: where checkpoints in other formats are put while they
    are read; cache: bytes of memory for ranges that were read, in case they are wanted again.
    """
    parts = [source] if isinstance(source, str | Path) else list(source)
    if not parts:
        raise InputError("an empty list of checkpoints")
    label = ", ".join(part if hub.is_hub(part) else shown(part) for part in map(str, parts))
    notes: list[str] = []
    damaged: list[tuple[str, str]] = []
    reading = Reading(scratch, range_cache(cache) if cache else None)
    on_hub = [part for part in parts if isinstance(part, str) and hub.is_hub(part)]
    remote = [part for part in parts if isinstance(part, str) and is_remote(part)]
    units = _local([part for part in parts if part not in (*on_hub, *remote)])
    units += [pair for part in remote for pair in find_remote(part, reading)]
    found = _found(units, tuple(allow), notes, damaged)
    for part in on_hub:
        found += _revisions(part, reading, endpoint, tuple(allow))
    if not found:
        raise InputError(f"{label}: no checkpoints here (safetensors, PyTorch, TensorFlow or distributed)")
    return Series(label, _in_order(found, notes), tuple(notes), tuple(damaged))


# How a step became known, the surest first.
SAID, STORED, GUESSED, UNKNOWN = range(4)


@dataclass(frozen=True)
class _Found:
    """A checkpoint, its step and how we know it."""

    entry: Entry
    how: int


def _local(parts: list[str | Path]) -> list[_Unit]:
    # A shell that expands `model.ckpt-*` names TensorFlow's data files beside their index.
    named = [part for part in parts if not _TENSORFLOW_COMPANION.search(str(part))] or parts
    return [(root, unit) for part in named for root in _roots(part) for unit in find_units(root)]


def _found(
    units: list[_Unit], allow: tuple[str, ...], notes: list[str], damaged: list[tuple[str, str]]
) -> list[_Found]:
    units = _without_final_model(units, notes)
    said = _said_steps(units)
    found: list[_Found] = []
    for (_, unit), step in zip(units, said, strict=True):
        how = SAID
        try:
            if step is None:
                step, how = _other_step(unit, allow)
            opener = partial(unit.open, allow)
            entry = Entry(-1 if step is None else step, unit.label, unit.fingerprint(), opener)
            found.append(_Found(entry, how))
        except InputError as error:
            if step is not None or len(units) == 1:
                raise
            notes.append(f"left out, it has no step and cannot be read: {error}")
            damaged.append((unit.label, str(error)))
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


def _below(root: PurePath, unit: Unit | RemoteUnit) -> int | None:
    """The step in the name of the checkpoint, or of a folder between it and the root."""
    parts = unit.path.relative_to(root).parts if unit.path.is_relative_to(root) else ()
    names = [_stem(name) for name in reversed(parts or (unit.path.name,))]
    return next((step for name in names if (step := sure_step(name)) is not None), None)


def _said_steps(units: list[_Unit]) -> list[int | None]:
    """Steps that names say. A folder above the root is asked only if it can tell the checkpoints apart."""
    steps = [_below(*pair) for pair in units]
    above = [sure_step(unit.above) for _, unit in units]
    if len(units) == 1 or len(set(above)) > 1:
        steps = [step if step is not None else other for step, other in zip(steps, above, strict=True)]
    return steps


def _other_step(unit: Unit | RemoteUnit, allow: tuple[str, ...]) -> tuple[int | None, int]:
    """From what is stored beside the weights or inside, else a guess from the name."""
    if (step := unit.trainer_step()) is not None:
        return step, STORED
    stem = _stem(unit.path.name)
    guess = likely_step(stem)
    if not unit.slow or guess is None:
        checkpoint = unit.open(allow)
        step = checkpoint.step
        checkpoint.close()
        if step is not None:
            return step, STORED
    if guess is None:
        guess = likely_step(unit.path.parent.name)
    return guess, UNKNOWN if guess is None else GUESSED


def _stem(name: str) -> str:
    return re.sub(r"\.(safetensors|pth?|bin|ckpt|chkpt|index|tar|json|pkl)$", "", name)


def _in_order(found: list[_Found], notes: list[str]) -> tuple[Entry, ...]:
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
            f"{guessed[0].label}: taken as step {guessed[0].step}, a guess from its name (of {len(guessed)})"
        )
    ordered: list[_Found] = []
    for item in sorted(known, key=lambda item: (item.entry.step, item.how)):
        if ordered and ordered[-1].entry.step == item.entry.step:
            one, other = ordered[-1].entry, item.entry
            if ordered[-1].how == item.how:
                raise InputError(
                    f"{other.label}: has step {one.step}, and so has {one.label}; {_way_out(other)}"
                )
            notes.append(f"{other.label}: left out, {one.label} says in its name that it is step {one.step}")
            continue
        ordered.append(item)
    return tuple(item.entry for item in ordered)


def _way_out(entry: Entry) -> str:
    if re.search(r"mp_rank_\d|consolidated\.\d", entry.label):
        return "parts of one model under tensor parallelism are not joined here: convert them first"
    return "name one by a glob or a list"


def _natural(label: str) -> list[tuple[int, int, str]]:
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in re.split(r"(\d+)", label)]


def _revisions(uri: str, reading: Reading, endpoint: str | None, allow: tuple[str, ...]) -> list[_Found]:
    found: list[_Found] = []
    for revision in hub.list_revisions(uri, endpoint=endpoint):
        step, how = sure_step(revision.revision), SAID
        if step is None:
            step, how = likely_step(revision.revision), GUESSED
        opener = partial(RevisionUnit(revision, reading).open, allow)
        entry = Entry(-1 if step is None else step, revision.label, revision.commit, opener)
        found.append(_Found(entry, UNKNOWN if step is None else how))
    return found
