"""One pass over a series: each checkpoint is opened, sampled and closed; at most two are open at a time."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from normgrowth.checkpoints.checkpoint import STORAGE, Checkpoint
from normgrowth.checkpoints.parameters.parameter_names import Reading
from normgrowth.checkpoints.parameters.selection import NothingCounts, Selection
from normgrowth.checkpoints.series import CheckpointSeries, Entry
from normgrowth.engine import Progress
from normgrowth.errors import InputError, NoTensors, SeriesWarning, UnsupportedDtype
from normgrowth.lint.checks.mixture import Member, Mixture, UnreadFile
from normgrowth.lint.checks.renames import match_renamed
from normgrowth.trace.sampling.finding import Finding
from normgrowth.trace.sampling.sampled_steps import SampledStep, StepSampler, sampled

if TYPE_CHECKING:
    from normgrowth.trace.by_stripe import StripeSums


@dataclass
class Pass:
    """The result of one pass over a series."""

    sampler: StepSampler
    mixture: Mixture = field(default_factory=Mixture)
    chosen: list[Entry] = field(default_factory=list)  # the checkpoints to sample
    sampled: list[SampledStep] = field(default_factory=list)
    unread: list[UnreadFile] = field(default_factory=list)
    unsupported: list[Finding] = field(default_factory=list)  # tensors with an unsupported dtype
    parameters: tuple[int, int] = 0, 0  # checked and total parameters, of the checkpoint with the most

    def note_parameters(self, entry: Entry, checkpoint: Checkpoint, readings: Mapping[str, Reading]) -> None:
        counted = [name for name, reading in readings.items() if reading.counted]
        roles = [r.role for name, r in readings.items() if name not in checkpoint.aliases]
        total = sum(role not in ("buffer", "optimizer") for role in roles)
        known = {finding.name for finding in self.unsupported}
        for name in counted:
            dtype = checkpoint.tensors[name].dtype
            if dtype not in STORAGE and name not in known:
                why = f"has dtype {dtype}, which cannot be measured: not checked"
                self.unsupported.append(Finding(entry.step, name, "dtype", why, entry.label))
        self.parameters = max(self.parameters, (len(_measurable(checkpoint, readings)), total))


def read_series(
    series: CheckpointSeries, selection: Selection, workers: int | None, progress: Progress | None
) -> Pass:
    """Sample every checkpoint of the first group that has tensors to check; the others are only recorded.

    An unreadable checkpoint becomes a finding.
    """
    found = Pass(StepSampler(workers, match_renamed))
    last: Checkpoint | None = None
    first_error: InputError | None = None
    together: StripeSums | None = None
    done = 0
    noted: set[str] = set()
    try:
        for position, entry in enumerate(series.entries):
            current: Checkpoint | None = None
            try:
                current = entry.open()
                for note in set(current.notes) - noted:
                    noted.add(note)
                    warnings.warn(f"{current.label}: {note}", SeriesWarning, stacklevel=3)
                readings = selection.readings(current.tensors, current.aliases)
                if not found.mixture.add(Member.of(entry, current.tensors, readings)):
                    current.close()
                    continue
                found.chosen.append(entry)
                names = _measurable(current, readings)
                size = sum(current.tensors[name].nbytes for name in names)
                if position == 0 and current.is_remote:
                    together = _read_once(series, names, selection, workers, progress)
                if together:
                    sums, seen = together.moments(position), together.samples(position)
                    pair = {"previous": sums.against[str(position - 1)]} if position else {}
                    sample = found.sampler.sample(
                        position, entry.step, current, names, replace(sums, against=pair), seen
                    )
                else:
                    if progress:
                        progress(done, max(size, 1) * len(series), entry.label)
                    sample = found.sampler.sample(position, entry.step, current, names)
                found.sampled.append(sample)
                found.note_parameters(entry, current, readings)
                done += size
            except (InputError, OSError) as error:
                if current is not None:
                    current.close()
                reason = _without_label(str(error), entry)
                first_error = first_error or InputError(f"{entry.label}: {reason}")
                found.unread.append(UnreadFile(entry.label, entry.step, reason, isinstance(error, NoTensors)))
                continue
            if last is not None:
                last.close()
            last = current
    finally:
        if last is not None:
            last.close()
    if not found.sampled:
        raise first_error or _nothing_to_check(series.entries[0], selection)
    return found


def _nothing_to_check(entry: Entry, selection: Selection) -> InputError:
    """Return an error that says why no tensor of a checkpoint is checked, and which option selects some."""
    checkpoint = entry.open()
    try:
        chosen = selection.choose(entry.label, checkpoint.tensors, checkpoint.aliases)
        name = chosen.readings[0].name
        return UnsupportedDtype(entry.label, name, checkpoint.tensors[name].dtype)
    except NothingCounts as error:
        return error
    finally:
        checkpoint.close()


def _measurable(checkpoint: Checkpoint, readings: Mapping[str, Reading]) -> list[str]:
    counted = [name for name, reading in readings.items() if reading.counted]
    return [name for name in counted if checkpoint.tensors[name].dtype in STORAGE]


def _read_once(
    series: CheckpointSeries,
    names: list[str],
    selection: Selection,
    workers: int | None,
    progress: Progress | None,
) -> "StripeSums | None":
    """Read all checkpoints in stripes, each byte once; None if one is unreadable or has different tensors."""
    from normgrowth.trace.by_stripe import Job
    from normgrowth.trace.stream import ByteProgress, Reader, read_once

    opened: dict[int, Checkpoint] = {}
    try:
        for position, entry in enumerate(series.entries):
            current = opened[position] = entry.open()
            readings = selection.readings(current.tensors, current.aliases)
            if not current.is_remote or _measurable(current, readings) != names:
                return None
        compared = {position: (position - 1,) if position else () for position in opened}
        job = Job.of(opened, compared, names, sampled)
        bar = ByteProgress(progress, [opened[0].tensors[name] for name in names])
        bar.begin(len(opened))
        return read_once(job, Reader(workers), bar)
    except (InputError, OSError):
        return None  # the caller then reads them one by one, which shows the unreadable one
    finally:
        for checkpoint in opened.values():
            checkpoint.close()


def _without_label(text: str, entry: Entry) -> str:
    """Return the reason without the label and "cannot be read", which the finding adds itself."""
    return text.removeprefix(f"{entry.label}: ").removeprefix("cannot be read: ")
