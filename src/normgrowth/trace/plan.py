"""The steps of a trace, and the checkpoints each step is compared with.

A series consists of the present checkpoints and of all steps measured before: training scripts delete old
checkpoints, but their measured steps stay. References are chosen by position in this whole series. If the checkpoint
of a reference is deleted and the comparison is not stored, it is left out; no other checkpoint takes its place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from normgrowth.checkpoints.series import Entry
from normgrowth.moments.moments import Moments, Pair
from normgrowth.trace.output.store import Stored


@dataclass(frozen=True)
class TraceStep:
    """One step of a series."""

    step: int
    entry: Entry | None  # None: the checkpoint is deleted
    stored: Stored | None  # None: not measured before, or the stored file is unreadable

    @property
    def label(self) -> str:
        known = self.entry or self.stored
        return known.label if known else f"step {self.step}"

    @property
    def step_origin(self) -> str:
        """Return where the step number comes from; for a deleted checkpoint, the stored origin."""
        known = self.entry or self.stored
        return known.step_origin if known else Stored.step_origin

    @property
    def lost(self) -> bool:
        """Whether the step was measured before but neither its sums nor its checkpoint can be read."""
        return self.entry is None and self.stored is None

    @property
    def changed(self) -> bool:
        """Whether the checkpoint file differs from the one that was measured."""
        return bool(self.entry and self.stored and self.entry.fingerprint != self.stored.fingerprint)


def references(i: int, lags: Sequence[int], first: bool) -> dict[str, int]:
    """Return what checkpoint i is compared with: label -> position."""
    references: dict[str, int] = {}
    if i > 0:
        references["previous"] = i - 1
        if first:
            references["first"] = 0
    for lag in lags:
        if lag <= i:
            references[f"lag{lag}"] = i - lag
    return references


@dataclass(frozen=True)
class Plan:
    places: Sequence[TraceStep]
    wanted: Sequence[Mapping[str, int]]  # references of each place: label -> position

    @staticmethod
    def of(
        entries: Sequence[Entry], stored: Mapping[int, Stored | None], lags: Sequence[int], first: bool
    ) -> "Plan":
        here = {entry.step: entry for entry in entries}
        steps = sorted({*here, *stored})
        places = [TraceStep(step, here.get(step), stored.get(step)) for step in steps]
        return Plan(places, [references(i, lags, first) for i in range(len(steps))])

    @property
    def opening(self) -> int:
        """Return the first position whose checkpoint exists."""
        return next(i for i, place in enumerate(self.places) if place.entry)

    @cached_property
    def reads(self) -> dict[int, dict[str, int]]:
        """Return the positions to measure, each with its references whose checkpoints exist."""
        found: dict[int, dict[str, int]] = {}
        for i, place in enumerate(self.places):
            if place.entry is None:
                continue
            there = {label: p for label, p in self.wanted[i].items() if self.places[p].entry is not None}
            known = place.stored.pairs if place.stored else {}
            if place.stored is None or any(self.places[p].step not in known for p in there.values()):
                found[i] = there
        return found

    def knows(self, i: int, label: str) -> bool:
        """Whether a comparison of a place is stored."""
        stored, other = self.places[i].stored, self.wanted[i].get(label)
        return stored is not None and (other is None or self.places[other].step in stored.pairs)

    def moments(self, i: int, own: Moments, pairs: Mapping[int, Pair]) -> Moments:
        """Return the sums of a place with its references; references without a stored pair are left out."""
        steps = {label: self.places[p].step for label, p in self.wanted[i].items()}
        against = {label: pairs[step] for label, step in steps.items() if step in pairs}
        return Moments(own.numel, own.square, own.largest, own.nonfinite, against)

    def notes(self, moments: Sequence[Moments | None]) -> list[str]:
        """Return notes about deleted checkpoints. moments: those of each place, None for a lost step."""
        gone = [place for place in self.places if place.entry is None and place.stored]
        lost = [place.step for place in self.places if place.lost]
        notes: list[str] = []
        if gone:
            notes.append(
                f"{len(gone)} of {len(self.places)} steps were measured earlier; their checkpoints no longer exist "
                f"(steps {gone[0].step} to {gone[-1].step})"
            )
        if lost:
            notes.append(
                f"{len(lost)} steps are lost: their stored sums are damaged or from another version, and their "
                f"checkpoints no longer exist (first: step {lost[0]})"
            )
        absent: dict[str, list[int]] = {}
        for place, wanted, found in zip(self.places, self.wanted, moments, strict=True):
            for label in wanted if found else ():
                if found and label not in found.against:
                    absent.setdefault(label, []).append(place.step)
        notes.extend(
            f"{len(steps)} steps have no comparison with their {label} checkpoint, which no longer exists "
            f"(first: step {steps[0]})"
            for label, steps in absent.items()
        )
        return notes
