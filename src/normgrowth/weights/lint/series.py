"""One pass over a series: open, look, close; then judge."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import InputError, SeriesWarning
from normgrowth.showing import html_table
from normgrowth.weights.lint.copies import Same, tensor_copies, whole_copies
from normgrowth.weights.lint.evidence import KINDS, Evidence, Finding
from normgrowth.weights.lint.looks import Look, Observer, sampled
from normgrowth.weights.lint.moves import order_faults, run_faults, stored_order, untrained
from normgrowth.weights.lint.tensors import index_faults, nonfinite_faults, still_faults
from normgrowth.weights.measure import check_alike, check_dtypes, measure
from normgrowth.weights.names import read_names
from normgrowth.weights.sources.checkpoint import Checkpoint
from normgrowth.weights.sources.elsewhere import is_remote
from normgrowth.weights.sources.folder import find_units
from normgrowth.weights.sources.hub import is_hub
from normgrowth.weights.sources.places import shown
from normgrowth.weights.sources.remote import RemoteCheckpoint
from normgrowth.weights.sources.series import Entry, Series, _roots, open_source
from normgrowth.weights.sources.steps import likely_step, sure_step

if TYPE_CHECKING:
    from normgrowth.weights.stripes import Together

Progress = Callable[[int, int, str], None]  # bytes done, bytes in all, what is being read


class Report(list[Finding]):
    """What was found, and what it was found in."""

    def __init__(self, findings: Iterable[Finding], source: str, steps: tuple[int, ...]) -> None:
        super().__init__(findings)
        self.source = source
        self.steps = steps  # of the checkpoints that could be read

    def _repr_html_(self) -> str:
        titles = ("step", "kind", "severity", "tensor", "why", "file")
        rows = [("?" if f.step is None else f.step, f.kind, f.severity, f.name, f.why, f.label) for f in self]
        read = [("checkpoints", len(self.steps)), ("findings", len(self))]
        return html_table(("series", self.source), read) + (html_table(titles, rows) if rows else "")


def lint(
    source: str | Path | Iterable[str | Path],
    *,
    scope: str = "all",
    select: str | None = None,
    exclude: str | None = None,
    allow: Sequence[str] = (),
    endpoint: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """What is wrong with a series of checkpoints, in the order of steps; nothing wrong, an empty list.

    A finding has `.step`, `.name` (the tensor, or "" for the whole checkpoint), `.kind`, `.why`, `.label`
    (the file) and `.severity`: "fault", or "remark" for what honest training does too. A checkpoint that
    cannot be read is a finding, and the rest is still looked at.
    """
    source = source if isinstance(source, str | Path) else list(source)
    series, broken = _open(source, tuple(allow), endpoint)
    for note in series.notes:
        warnings.warn(note, SeriesWarning, stacklevel=2)

    def counted(checkpoint: Checkpoint) -> list[str]:
        readings = read_names(
            checkpoint.tensors, scope=scope, select=select, exclude=exclude, aliases=checkpoint.aliases
        )
        return [name for name, reading in readings.items() if reading.counted]

    observer = Observer(len(series), workers)
    looks, unread = _look_at_all(series, observer, counted, progress)
    findings = [
        *broken,
        *(Finding(None, "", "partial", f"cannot be read: {why}", label) for label, why in series.damaged),
        *unread,
        *judge(Evidence(looks, observer.origin), observer.buffers, _Comparison(series, looks, workers)),
    ]
    return Report(in_order(findings, looks), series.label, tuple(look.step for look in looks))


def in_order(findings: Iterable[Finding], looks: Sequence[Look]) -> list[Finding]:
    """By step, faults first; what has no step comes last."""
    place = {look.label: look.position for look in looks}

    def key(f: Finding) -> tuple[float, str, int, int, str]:
        step = np.inf if f.step is None else f.step
        return step, f.severity, KINDS.index(f.kind), place.get(f.label, -1), f.name

    return sorted(findings, key=key)


@np.errstate(all="ignore")  # damaged weights are as large as they please; what is not a number is not judged
def judge(e: Evidence, buffers: Mapping[str, str], same: Same) -> list[Finding]:
    """Every judgement in turn; what is a copy, or in another's place, is not judged a second time."""
    routes = e.routes()
    copied, rows = whole_copies(e, routes, same)
    partly, more = tensor_copies(e, routes, rows, same)
    rows |= more
    findings = [
        *index_faults(e),
        *nonfinite_faults(e, buffers),
        *copied,
        *partly,
        *still_faults(e, rows, buffers),
        *untrained(e),
    ]
    if routes is None:
        return findings
    line = [place for place, row in enumerate(routes.rows) if row not in rows]
    moved, healed = order_faults(e, routes, line)
    wrong = {finding.step for finding in moved}
    moved += stored_order(e, rows | {row for row, look in enumerate(e.looks) if look.step in wrong})
    whole = {finding.step for finding in (*copied, *partly, *moved) if not finding.name}
    single = {(finding.step, finding.name) for finding in partly}
    strange = run_faults(e, routes, healed)
    return [
        *findings,
        *moved,
        *(f for f in strange if f.step not in whole and (f.step, f.name) not in single),
    ]


def _look_at_all(
    series: Series,
    observer: Observer,
    counted: Callable[[Checkpoint], list[str]],
    progress: Progress | None,
) -> tuple[list[Look], list[Finding]]:
    """At most two checkpoints are open at a time; one that cannot be read becomes a finding."""
    looks: list[Look] = []
    unread: list[Finding] = []
    last: Checkpoint | None = None
    first_error: InputError | None = None
    together: Together | None = None
    done = 0
    try:
        for position, entry in enumerate(series.entries):
            current: Checkpoint | None = None
            try:
                current = entry.open()
                names = counted(current)
                if not names and not looks:
                    raise InputError(
                        f"{current.label}: no tensor counts; `normgrowth names` shows how each is read"
                    )
                size = sum(current.tensors[name].nbytes for name in names)
                if position == 0 and isinstance(current, RemoteCheckpoint):
                    together = _read_once(series, observer, names, counted, progress)
                if together:
                    sums, seen = together.moments(position), together.seen(position)
                    pair = {"previous": sums.against[str(position - 1)]} if position else {}
                    sums = replace(sums, against=pair)
                    looks.append(observer.look(position, entry.step, current, names, sums, seen))
                else:
                    if progress:
                        progress(done, max(size, 1) * len(series), entry.label)
                    looks.append(observer.look(position, entry.step, current, names))
                done += size
            except (InputError, OSError) as error:
                if current is not None:
                    current.close()
                reason = _without_label(str(error), entry)
                first_error = first_error or InputError(f"{entry.label}: {reason}")
                unread.append(Finding(entry.step, "", "partial", f"cannot be read: {reason}", entry.label))
                continue
            if last is not None:
                last.close()
            last = current
    finally:
        if last is not None:
            last.close()
    if not looks:
        assert first_error is not None
        raise first_error
    return looks, unread


def _read_once(
    series: Series,
    observer: Observer,
    names: list[str],
    counted: Callable[[Checkpoint], list[str]],
    progress: Progress | None,
) -> "Together | None":
    """All checkpoints together, each byte once; None if one cannot be read, or has other tensors than the first."""
    from normgrowth.weights.stripes import Job  # these judge what they read, too
    from normgrowth.weights.walk import MEMORY, How, read_once

    opened: dict[int, Checkpoint] = {}
    done = 0
    try:
        for position, entry in enumerate(series.entries):
            current = opened[position] = entry.open()
            if not isinstance(current, RemoteCheckpoint) or counted(current) != names:
                return None
            check_dtypes(current, names)
        check_alike(list(opened.values()), names)
        numel = [opened[0].tensors[name].numel for name in names]
        plan = {position: (position - 1,) if position else () for position in opened}
        job = Job(opened, plan, names, np.array(numel, np.int64), sampled(numel, observer.checkpoints))
        size = sum(opened[0].tensors[name].nbytes for name in names) * len(opened)

        def advance(values: int) -> None:
            nonlocal done
            done += values
            if progress:
                progress(size * done // max(sum(numel), 1), size, f"{len(opened)} checkpoints")

        return read_once(job, How(observer.workers, None, MEMORY), advance)
    except (InputError, OSError):
        return None  # one by one it is seen which
    finally:
        for checkpoint in opened.values():
            checkpoint.close()


def _without_label(text: str, entry: Entry) -> str:
    """The reason alone: a finding has the file beside it, and says itself that it cannot be read."""
    return text.removeprefix(f"{entry.label}: ").removeprefix("cannot be read: ")


class _Comparison:
    """Reads two checkpoints again to say which of their tensors are equal; only where sums say they may be."""

    def __init__(self, series: Series, looks: Sequence[Look], workers: int | None) -> None:
        self.series, self.looks, self.workers = series, looks, workers

    def __call__(self, i: int, j: int, names: Sequence[str]) -> NDArray[np.bool_]:
        opened: list[Checkpoint] = []
        try:
            views: list[Checkpoint] = []
            for look in (self.looks[i], self.looks[j]):
                opened.append(self.series.entries[look.position].open())
                views.append(opened[-1].renamed({name: look.spelling(name) for name in names}))
            found = measure(views[1], [("other", views[0])], list(names), workers=self.workers)
            return found.against["other"].delta == 0
        except (InputError, OSError):  # it could be read before; now it cannot, and nothing is known
            return np.zeros(len(names), bool)
        finally:
            for checkpoint in opened:
                checkpoint.close()


def _open(
    source: str | Path | Sequence[str | Path], allow: tuple[str, ...], endpoint: str | None
) -> tuple[Series, list[Finding]]:
    """The series; where one damaged part keeps it from being opened, without that part, which is a finding."""
    try:
        return open_source(source, allow=allow, endpoint=endpoint), []
    except InputError:
        parts = _parts(source)
        if len(parts) < 2:
            raise
        sound: list[str | Path] = []
        broken: list[Finding] = []
        for part in parts:
            try:
                if not isinstance(part, Path) or find_units(part):
                    open_source(part, allow=allow, endpoint=endpoint)
                    sound.append(part)
            except InputError as error:
                where = shown(str(part))
                name = Path(where).name
                step = sure_step(name)
                step = likely_step(name) if step is None else step
                reason = str(error).removeprefix(f"{where}: ")
                broken.append(Finding(step, "", "partial", f"cannot be read: {reason}", where))
        if not broken or not sound:
            raise
        series = open_source(sound, allow=allow, endpoint=endpoint)
        return replace(series, label=str(source) if isinstance(source, str | Path) else series.label), broken


def _parts(source: str | Path | Sequence[str | Path]) -> Sequence[str | Path]:
    """What a source is made of: the items of a list, what a pattern matches, the folders in a folder."""
    if not isinstance(source, str | Path):
        return source
    if isinstance(source, str) and (is_hub(source) or is_remote(source)):
        return []
    folder = Path(source)
    if not folder.is_dir():
        return _roots(source)
    return sorted(p for p in folder.iterdir() if p.is_dir() and p.name[0] != ".")
