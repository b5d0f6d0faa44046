"""A series: checkpoints in the order of training steps, opened one at a time.

`open_source` accepts a file, a folder, a glob, the address of one of these on a web server or in a bucket, a list of
these, or a hub repository with a pattern of revisions.
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

from normgrowth.checkpoints.checkpoint import STORAGE, Checkpoint, decode
from normgrowth.checkpoints.formats.registry import CERTAIN, without_suffix
from normgrowth.checkpoints.local_files import LocalFile, find_checkpoints, why_nothing
from normgrowth.checkpoints.name_globs import (
    any_number,
    by_foreign_pattern,
    by_pattern,
    name_pattern,
    separating_globs,
    without,
)
from normgrowth.checkpoints.remote.discovery import find_remote, is_remote
from normgrowth.checkpoints.remote.hub import revisions as hub
from normgrowth.checkpoints.remote.hub.hub_checkpoint import HubCheckpoint
from normgrowth.checkpoints.remote.remote_file import RemoteFile, RemoteSession
from normgrowth.checkpoints.remote.web.website import redact_url
from normgrowth.checkpoints.steps import LARGEST_STEP, explicit_step, guessed_step, is_counter
from normgrowth.errors import InputError, SeriesWarning, SharedStep, UnsupportedDtype
from normgrowth.text import html_table

_FoundFile = tuple[PurePath, LocalFile | RemoteFile]  # with the root path of the search
_TENSORFLOW_COMPANION = re.compile(r"\.(data-\d{5}-of-\d{5}|meta)$")
_PATTERNS = 4  # number of name patterns that a message lists

# The origin of a step, the most reliable first: explicit in the name, stored in or next to the weights, guessed from
# the name, or the position in the series.
StepOrigin = Literal["name", "stored", "guessed", "counted"]
ORIGINS: tuple[StepOrigin, ...] = ("name", "stored", "guessed", "counted")


@dataclass(frozen=True)
class Entry:
    """One checkpoint of a series, not opened."""

    step: int
    label: str
    fingerprint: str  # changes if the checkpoint changes
    open: Callable[[], Checkpoint]
    step_origin: StepOrigin = "name"


@dataclass(frozen=True)
class CheckpointSeries:
    label: str
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()  # for example, checkpoints without a step
    damaged: tuple[
        tuple[str, InputError], ...
    ] = ()  # skipped: unreadable files without a step, and the reasons

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[tuple[int, str, np.ndarray]]:
        """Yield every tensor of every checkpoint as (step, name, float64 array).

        Tensors with an unsupported dtype (complex numbers, 4-bit floats) are skipped with a warning.
        """
        for entry in self.entries:
            checkpoint = entry.open()
            try:
                for name, tensor in checkpoint.tensors.items():
                    if tensor.dtype not in STORAGE:
                        error = UnsupportedDtype(entry.label, name, tensor.dtype)
                        warnings.warn(f"skipped: {error}", SeriesWarning, stacklevel=2)
                        continue
                    values = decode(tensor.dtype, checkpoint.dense(name)).reshape(tensor.shape)
                    values = values if values.flags.writeable else values.copy()  # not a view of the file
                    checkpoint.check_unchanged()
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
) -> CheckpointSeries:
    """The series at a path, a glob, an address, a list of these, or ``hf://org/repo@pattern``.

    Addresses begin with ``https://``, ``http://``, ``s3://`` or ``gs://``. Remote safetensors and TensorFlow files are
    read by byte ranges. Checkpoints in other formats are downloaded to `scratch` while they are open. endpoint: the
    address of another hub.

    >>> series = ng.open_source("checkpoints")
    >>> [entry.step for entry in series.entries][:3]
    [0, 5, 10]
    >>> step, name, values = next(iter(series))
    """
    parts = [source] if isinstance(source, str | Path) else list(source)
    if not parts:
        raise InputError("the list of checkpoints is empty")
    if "" in parts:  # as a path it would be the current folder
        raise InputError("the name of the source is empty; use . for the current folder")
    label = ", ".join(part if hub.is_hub(part) else redact_url(part) for part in map(str, parts))
    notes: list[str] = []
    damaged: list[tuple[str, InputError]] = []
    session = RemoteSession(scratch)
    on_hub = [part for part in parts if isinstance(part, str) and hub.is_hub(part)]
    remote = [part for part in parts if isinstance(part, str) and is_remote(part)]
    files = _local([part for part in parts if part not in (*on_hub, *remote)])
    files += [pair for part in remote for pair in find_remote(part, session)]
    found = _entries(files, notes, damaged)
    for part in on_hub:
        found += _revisions(part, session, endpoint)
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
    return CheckpointSeries(label, _in_order(found, notes), tuple(notes), tuple(damaged))


def _local(parts: list[str | Path]) -> list[_FoundFile]:
    # A shell that expands `model.ckpt-*` lists TensorFlow's data files in addition to their index.
    named = [part for part in parts if not _TENSORFLOW_COMPANION.search(str(part))] or parts
    return [(root, file) for part in named for root in _roots(part) for file in find_checkpoints(root)]


def _entries(files: list[_FoundFile], notes: list[str], damaged: list[tuple[str, InputError]]) -> list[Entry]:
    files = _without_final_model(files, notes)
    said = _said_steps(files)
    counted = _stored_steps(files, said, notes)
    found: list[Entry] = []
    stored: list[Entry] = []
    for place, ((_, file), step) in enumerate(zip(files, said, strict=True)):
        origin: StepOrigin = "name"
        if place in counted:
            step, origin = counted[place], "stored"
        try:
            if step is None:
                step, origin = _other_step(file)
            entry = Entry(-1 if step is None else step, file.label, file.fingerprint(), file.open, origin)
            found.append(entry)
            if origin == "stored" and place not in counted:
                stored.append(entry)
        except InputError as error:
            if step is not None or len(files) == 1:
                raise
            damaged.append((file.label, error))
    notes += _skipped(damaged, found)
    if stored:
        notes.append(
            f"{stored[0].label}: step {stored[0].step} is stored in the checkpoint{_likewise(stored)}"
        )
    return found


def _skipped(damaged: list[tuple[str, InputError]], found: list[Entry]) -> Iterator[str]:
    """Yield a note for each name pattern of the files that cannot be read; the files are not part of the series."""
    read = [(entry.label, entry.step) for entry in found]
    for group in by_foreign_pattern([(label, None) for label, _ in damaged], read):
        label, error = damaged[group[0]]
        if len(group) == 1:
            yield f"skipped a file that has no step and cannot be read: {error}"
            continue
        advice = without(read, [(damaged[i][0], None) for i in group])
        yield (
            f"skipped {len(group)} files {any_number(label)} that have no step and cannot be read, for example "
            f"{error}{advice}"
        )


def _roots(part: str | Path) -> list[Path]:
    path = Path(part).expanduser()
    if isinstance(part, Path) or path.exists() or not glob.has_magic(part):
        return [path.absolute() if path == Path() or ".." in path.parts else path]
    matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
    if not matches:
        raise InputError(f"{part}: nothing matches this pattern")
    usable = [match for match in matches if match.is_dir() or _has_weights(match)]
    if not usable:
        raise InputError(f"{part}: none of the {len(matches)} matching files is a checkpoint")
    return usable


def _has_weights(path: Path) -> bool:
    try:
        return bool(find_checkpoints(path))
    except InputError:
        return path.suffix in CERTAIN  # a damaged checkpoint, which is reported later


def _without_final_model(files: list[_FoundFile], notes: list[str]) -> list[_FoundFile]:
    """Drop a final model next to the folders of steps, or the parts of a model in folders below it."""
    top = [(root, file) for root, file in files if file.main.parent == root]
    inner = [(root, file) for root, file in files if file.main.parent != root and file.main != root]
    if len(top) != 1 or not inner or explicit_step(without_suffix(top[0][1].main.name)) is not None:
        return files
    steps = [pair for pair in inner if _below(*pair) is not None or pair[1].trainer_step() is not None]
    others = [pair for pair in files if pair not in top and pair not in inner]
    if steps:
        notes.append(
            f"{top[0][1].main_label}: skipped, because it has no step and is next to checkpoints that have one"
        )
        return inner + others
    notes.append(f"{inner[0][1].label}: skipped, like everything below {top[0][1].label} that has no step")
    return top + others


def _naming(root: PurePath, file: LocalFile | RemoteFile) -> str:
    """The name with an explicit step, of the checkpoint or of a folder between it and the root; or ""."""
    parts = file.path.relative_to(root).parts if file.path.is_relative_to(root) else ()
    names = [without_suffix(name) for name in reversed(parts or (file.path.name,))]
    return next((name for name in names if explicit_step(name) is not None), "")


def _below(root: PurePath, file: LocalFile | RemoteFile) -> int | None:
    return explicit_step(_naming(root, file))


def _said_steps(files: list[_FoundFile]) -> list[int | None]:
    """Explicit steps in names. The name of the parent folder is used only if it distinguishes checkpoints."""
    steps = [_below(*pair) for pair in files]
    above = [explicit_step(file.above) for _, file in files]
    if len(files) == 1 or len(set(above)) > 1:
        steps = [step if step is not None else other for step, other in zip(steps, above, strict=True)]
    return steps


def _stored_steps(files: list[_FoundFile], said: list[int | None], notes: list[str]) -> dict[int, int]:
    """Position -> stored step, for checkpoints whose name only has a count: TensorFlow's `ckpt-3` is the third save.

    Used if every such checkpoint (local, or of TensorFlow) stores a step and the steps increase with the counts, which
    a step within an epoch does not.
    """
    counts = {place: said[place] or 0 for place, pair in enumerate(files) if is_counter(_naming(*pair))}
    read = [place for place in sorted(counts, key=counts.__getitem__) if _tells_step(files[place][1])]
    unread = [place for place in counts if place not in read]
    span = [counts[place] for place in unread]
    if len(span) > 1 and max(span) - min(span) == len(span) - 1:  # consecutive, as counts are
        notes.append(
            f"{files[unread[-1]][1].label}: its step is the number in its name, which may be a count of saves; steps "
            f"stored in remote files of this format are not read{_likewise(unread)}"
        )
    found: dict[int, int] = {}
    why = ""  # the stored steps are not used
    for place in read:
        step = _stored_step(files[place][1])
        if step is None:
            why = f"{files[place][1].label} has none"
            break
        if found and step <= (before := max(found.values())):
            why = f"{files[place][1].label} has step {step}, which does not follow step {before}"
            break
        found[place] = step
    if why and not found and (step := _stored_step(files[read[-1]][1])) is not None:
        found[read[-1]] = (
            step  # of a series without stored steps, only the first and the last file are opened
        )
    other = [place for place in found if found[place] != counts[place]]
    if not other:
        return {}
    label, step = files[other[-1]][1].label, found[other[-1]]
    if why:
        notes.append(
            f"{label}: the stored step {step} is not used, because {why}; the steps are the numbers in the names, "
            "which may be counts of saves"
        )
        return {}
    notes.append(
        f"{label}: step {step} is stored in the checkpoint; the {counts[other[-1]]} in its name is a count"
        f"{_likewise(other)}"
    )
    return found


def _tells_step(file: LocalFile | RemoteFile) -> bool:
    """Whether the stored step is read where the name has a number; other remote files would be downloaded for it."""
    return isinstance(file, LocalFile) or file.format == "tensorflow"


def _stored_step(file: LocalFile | RemoteFile) -> int | None:
    """The step stored next to the weights or in the checkpoint; None if there is none or the file is damaged."""
    if (step := file.trainer_step()) is not None:
        return step
    try:
        checkpoint = file.open()
    except InputError:
        return None
    checkpoint.close()
    return checkpoint.step


def _other_step(file: LocalFile | RemoteFile) -> tuple[int | None, StepOrigin]:
    """The step stored next to the weights or in the checkpoint, or else a guess from the name."""
    if (step := file.trainer_step()) is not None:
        return step, "stored"
    stem = without_suffix(file.path.name)
    guess = guessed_step(stem)
    step = None
    # With a guess, a file is not downloaded only for its step.
    if guess is None or isinstance(file, LocalFile) or not file.fetched:
        checkpoint = file.open()
        step = checkpoint.step
        checkpoint.close()
    if step is not None:
        return step, "stored"
    if guess is None:
        guess = guessed_step(file.path.parent.name)
    return guess, "counted" if guess is None else "guessed"


def _by_number_that_varies(found: list[Entry]) -> list[Entry]:
    """Replace guesses that are all equal (`epoch2_1`, `epoch2_2`, ...) by the last number, which differs."""
    alike: dict[tuple[str, str], list[int]] = {}
    for place, entry in enumerate(found):
        if entry.step_origin == "guessed":
            alike.setdefault(name_pattern(entry.label), []).append(place)
    better = list(found)
    for places in alike.values():
        if len(places) > 1 and len({found[place].step for place in places}) == 1:
            for place in places:
                before, after = name_pattern(label := found[place].label)
                step = int(label[len(before) : len(label) - len(after)])
                if step < LARGEST_STEP:
                    better[place] = replace(found[place], step=step)
    return better


def _in_order(found: list[Entry], notes: list[str]) -> tuple[Entry, ...]:
    found = _by_number_that_varies(found)
    known = [entry for entry in found if entry.step_origin != "counted"]
    unknown = [entry for entry in found if entry.step_origin == "counted"]
    if not known and len(found) > 1:
        notes.append(
            "no training steps in the names or the files; numbered 0, 1, 2, ... in the order of names"
        )
        entries = sorted(unknown, key=lambda entry: _natural(entry.label))
        return tuple(replace(entry, step=i) for i, entry in enumerate(entries))
    if not known:
        notes.append(f"{unknown[0].label}: no training step in its name or in the file; step 0 is assumed")
        return (replace(unknown[0], step=0),)
    notes += _per_pattern(unknown, "skipped, because it has no training step in its name or in the file")
    if guessed := [entry for entry in known if entry.step_origin == "guessed"]:
        notes.append(
            f"{guessed[0].label}: step {guessed[0].step} is guessed from its name{_likewise(guessed)}"
        )
    ordered: list[Entry] = []
    guesses: list[Entry] = []
    for entry in sorted(known, key=lambda entry: (entry.step, ORIGINS.index(entry.step_origin))):
        if ordered and ordered[-1].step == entry.step:
            one = ordered[-1]
            if one.step_origin == entry.step_origin:
                hint = duplicate_step_hint(known, entry)
                raise SharedStep(f"{entry.label} and {one.label} both have step {one.step}; {hint}")
            guesses.append(entry)
            continue
        ordered.append(entry)
    notes += _per_pattern(guesses, "skipped, because another checkpoint has this step in its name")
    return tuple(ordered)


def _per_pattern(entries: list[Entry], what: str) -> Iterator[str]:
    """Yield a note for each name pattern of the entries."""
    for group in by_pattern([(entry.label, None) for entry in entries]):
        yield f"{entries[group[0]].label}: {what}{_likewise(group)}"


def _likewise(items: Sequence[object]) -> str:
    """The end of a note that names one of several items: how many more there are."""
    return f" (also for {len(items) - 1} more)" if len(items) > 1 else ""


def duplicate_step_hint(entries: list[Entry], entry: Entry) -> str:
    if re.search(r"mp_rank_\d|consolidated\.\d", entry.label):
        return "tensor-parallel parts of one model cannot be joined; convert them to one checkpoint first"
    named = [(entry.label, entry.step) for entry in entries]
    parts = sorted(([named[i] for i in part] for part in by_pattern(named)), key=len, reverse=True)
    globs = separating_globs(parts) if len(parts) > 1 and "://" not in entry.label else None
    if globs is None:
        return "select one series with a glob or a list"
    several = "two" if len(globs) == 2 else "several"
    sizes = " and ".join(str(len(part)) for part in parts[:_PATTERNS])
    more = f" or others, {len(globs)} in all" if len(globs) > _PATTERNS else ""
    listed = " or ".join(shlex.quote(own[0]) for own in globs[:_PATTERNS])
    files = f" ({sizes} files)" if len(parts[0]) > 1 else ""
    return f"are these {several} series{files}? Select one: {listed}{more}"


def _natural(label: str) -> list[tuple[int, int, str]]:
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in re.split(r"(\d+)", label)]


def _revisions(uri: str, session: RemoteSession, endpoint: str | None) -> list[Entry]:
    found: list[Entry] = []
    for revision in hub.list_revisions(uri, endpoint=endpoint):
        origin: StepOrigin = "name"
        if (step := explicit_step(revision.revision)) is None:
            step = guessed_step(revision.revision)
            origin = "counted" if step is None else "guessed"
        opener = HubCheckpoint(revision, session).open
        found.append(Entry(-1 if step is None else step, revision.label, revision.commit, opener, origin))
    return found
