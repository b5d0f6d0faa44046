"""A series: checkpoints in the order of training steps, opened one at a time.

`open_source` takes whatever a person has at hand: a file, a folder, a glob, a list of these, or a
hub repository with a pattern of revisions.
"""

import glob
import itertools
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from normgrowth.errors import InputError
from normgrowth.weights.sources import hub
from normgrowth.weights.sources.checkpoint import Checkpoint, decode
from normgrowth.weights.sources.folder import Unit, find_units
from normgrowth.weights.sources.steps import likely_step, sure_step

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


def open_source(
    source: str | Path | Sequence[str | Path],
    *,
    allow: Sequence[str] = (),
    endpoint: str | None = None,
    scratch: Path | None = None,
) -> Series:
    """The series behind a path, a glob, a list of them, or ``hf://org/repo@pattern``.

    allow: classes that PyTorch files may ask for, by full name; endpoint: another address than the
    hub's; scratch: where hub revisions are put while they are read.
    """
    if isinstance(source, str) and hub.is_hub(source):
        return _hub_series(source, endpoint, scratch, tuple(allow))
    label = str(source) if isinstance(source, str | Path) else ", ".join(map(str, source))
    roots = _roots(source)
    units = [(root, unit) for root in roots for unit in find_units(root)]
    if not units:
        raise InputError(f"{label}: no checkpoints here (safetensors, PyTorch, TensorFlow or distributed)")
    notes: list[str] = []
    units = _without_final_model(units, notes)
    steps = [_step(root, unit, tuple(allow)) for root, unit in units]
    entries = [
        Entry(
            -1 if step is None else step, str(unit.path), unit.fingerprint(), partial(unit.open, tuple(allow))
        )
        for (_, unit), step in zip(units, steps, strict=True)
    ]
    return Series(label, _in_order(entries, notes), tuple(notes))


def _roots(source: str | Path | Sequence[str | Path]) -> list[Path]:
    if isinstance(source, Path):
        return [source]
    if isinstance(source, str):
        if Path(source).exists() or not glob.has_magic(source):
            return [Path(source)]
        matches = [Path(match) for match in sorted(glob.glob(source, recursive=True))]
        if not matches:
            raise InputError(f"{source}: nothing matches this pattern")
        usable = [path for path in matches if path.is_dir() or _has_weights(path)]
        if not usable:
            raise InputError(f"{source}: none of the {len(matches)} files that match is a checkpoint")
        return usable
    if not source:
        raise InputError("an empty list of checkpoints")
    # A shell that expands `model.ckpt-*` names TensorFlow's data files beside their index.
    parts = [part for part in source if not _TENSORFLOW_COMPANION.search(str(part))] or source
    return [root for part in parts for root in _roots(part)]


def _has_weights(path: Path) -> bool:
    try:
        return bool(find_units(path))
    except InputError:
        return path.suffix in {".safetensors", ".pt", ".pth"}  # broken, but meant to be one: say so later


def _without_final_model(units: list[tuple[Path, Unit]], notes: list[str]) -> list[tuple[Path, Unit]]:
    """A trainer's output folder has the final weights beside its checkpoint folders."""
    final = [
        (root, unit) for root, unit in units if unit.main.parent == root and sure_step(unit.main.name) is None
    ]
    rest = [pair for pair in units if pair not in final]
    inner = [unit for root, unit in rest if unit.main.parent != root]
    if len(final) == 1 and inner and len(rest) == len(inner):
        notes.append(f"{final[0][1].main}: left out, it lies beside the checkpoints and has no step")
        return rest
    return units


def _step(root: Path, unit: Unit, allow: tuple[str, ...]) -> int | None:
    """From the file's name, from its folders', from what is stored inside, or a guess, in this order."""
    below = list(unit.path.relative_to(root).parts) if unit.path.is_relative_to(root) else []
    stem = _stem(unit.path.name)
    names = [stem, *map(_stem, reversed(below[:-1])), root.name, root.parent.name]
    for name in names:
        if (step := sure_step(name)) is not None:
            return step
    if (step := unit.trainer_step()) is not None:
        return step
    if unit.format != "tensorflow" or likely_step(stem) is None:  # opening TensorFlow's takes seconds
        checkpoint = unit.open(allow)
        step = checkpoint.step
        checkpoint.close()
        if step is not None:
            return step
    return next(
        (step for name in (stem, *reversed(below[:-1])) if (step := likely_step(name)) is not None), None
    )


def _stem(name: str) -> str:
    return re.sub(r"\.(safetensors|pth?|bin|ckpt|index|tar|json)$", "", name)


def _in_order(entries: list[Entry], notes: list[str]) -> tuple[Entry, ...]:
    known = [entry for entry in entries if entry.step >= 0]
    unknown = [entry for entry in entries if entry.step < 0]
    if not known and len(entries) > 1:
        notes.append(
            "no training steps in the names or the files: counted 0, 1, 2, ... in the order of names"
        )
        known = [replace(e, step=i) for i, e in enumerate(sorted(entries, key=lambda e: _natural(e.label)))]
    elif not known:
        known = [replace(entries[0], step=0)]
        notes.append(f"{entries[0].label}: no training step in its name or inside; taken as 0")
    else:
        notes.extend(
            f"{entry.label}: left out, it has no training step in its name or inside" for entry in unknown
        )
    known.sort(key=lambda entry: entry.step)
    for one, other in itertools.pairwise(known):
        if one.step == other.step:
            raise InputError(
                f"{other.label}: has step {one.step}, and so has {one.label}; name one by a glob or a list"
            )
    return tuple(known)


def _natural(label: str) -> list[tuple[int, int, str]]:
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in re.split(r"(\d+)", label)]


def _hub_series(uri: str, endpoint: str | None, scratch: Path | None, allow: tuple[str, ...]) -> Series:
    notes: list[str] = []
    entries: list[Entry] = []
    for revision in hub.list_revisions(uri, endpoint=endpoint):
        step = sure_step(revision.revision)
        if step is None:
            step = likely_step(revision.revision)
        opener = partial(_open_revision, revision, scratch, allow)
        entries.append(Entry(-1 if step is None else step, revision.label, revision.commit, opener))
    return Series(uri, _in_order(entries, notes), tuple(notes))


def _open_revision(revision: hub.Revision, scratch: Path | None, allow: tuple[str, ...]) -> Checkpoint:
    """Fetch one revision, open it, and remove it from the disk when it is closed."""
    folder = Path(tempfile.mkdtemp(prefix="normgrowth-", dir=scratch))
    remove = partial(shutil.rmtree, folder, ignore_errors=True)
    try:
        units = find_units(hub.fetch(revision, folder))
        if len(units) != 1:
            raise InputError(f"{revision.label}: holds {len(units)} checkpoints, not one")
        checkpoint = units[0].open(allow)
    except BaseException:
        remove()
        raise
    checkpoint.label, checkpoint.on_close = revision.label, remove
    return checkpoint
