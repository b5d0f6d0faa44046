"""Which steps a trace has, and what each is compared with.

A series is what is there now together with what was measured before: training scripts remove old checkpoints, and
their steps stay. Comparisons go by the place in this whole series. One whose other side is gone, and was not made
before, is left out; it is never made with another checkpoint instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from normgrowth.checkpoints.series import Entry
from normgrowth.moments.moments import Moments, Pair
from normgrowth.trace.store import Stored


@dataclass(frozen=True)
class Place:
    """One step of a series."""

    step: int
    entry: Entry | None  # None: its checkpoint is gone
    stored: Stored | None  # None: not measured before, or not readable any more

    @property
    def label(self) -> str:
        known = self.entry or self.stored
        return known.label if known else f"step {self.step}"

    @property
    def step_origin(self) -> str:
        """Where the step comes from; of a checkpoint that is gone, where it came from when it was measured."""
        known = self.entry or self.stored
        return known.step_origin if known else Stored.step_origin

    @property
    def lost(self) -> bool:
        """Was measured before, and nothing is left of it."""
        return self.entry is None and self.stored is None

    @property
    def changed(self) -> bool:
        """Whether its checkpoint is another file than the one that was measured."""
        return bool(self.entry and self.stored and self.entry.fingerprint != self.stored.fingerprint)


def references(i: int, lags: Sequence[int], first: bool) -> dict[str, int]:
    """What checkpoint i is compared with: label -> position."""
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
    places: Sequence[Place]
    wanted: Sequence[Mapping[str, int]]  # of each place: label -> position of what it is compared with

    @staticmethod
    def of(
        entries: Sequence[Entry], stored: Mapping[int, Stored | None], lags: Sequence[int], first: bool
    ) -> "Plan":
        here = {entry.step: entry for entry in entries}
        steps = sorted({*here, *stored})
        places = [Place(step, here.get(step), stored.get(step)) for step in steps]
        return Plan(places, [references(i, lags, first) for i in range(len(steps))])

    @property
    def opening(self) -> int:
        """The first place whose checkpoint is there."""
        return next(i for i, place in enumerate(self.places) if place.entry)

    @cached_property
    def reads(self) -> dict[int, dict[str, int]]:
        """The places to measure, and with which others: all that are wanted and whose checkpoints are there."""
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
        """Whether a comparison of a place was made before."""
        stored, other = self.places[i].stored, self.wanted[i].get(label)
        return stored is not None and (other is None or self.places[other].step in stored.pairs)

    def moments(self, i: int, own: Moments, pairs: Mapping[int, Pair]) -> Moments:
        """The sums of a place, with those comparisons that are wanted and could be made."""
        steps = {label: self.places[p].step for label, p in self.wanted[i].items()}
        against = {label: pairs[step] for label, step in steps.items() if step in pairs}
        return Moments(own.numel, own.square, own.largest, own.nonfinite, against)

    def notes(self, moments: Sequence[Moments | None]) -> list[str]:
        """What a reader must know of checkpoints that are gone. moments: of each place, None if it is lost."""
        gone = [place for place in self.places if place.entry is None and place.stored]
        lost = [place.step for place in self.places if place.lost]
        notes: list[str] = []
        if gone:
            notes.append(
                f"{len(gone)} of {len(self.places)} steps were measured before from checkpoints that are gone "
                f"(steps {gone[0].step} to {gone[-1].step})"
            )
        if lost:
            notes.append(
                f"{len(lost)} steps are lost: what was stored is damaged or from another version, and their "
                f"checkpoints are gone (first: step {lost[0]})"
            )
        absent: dict[str, list[int]] = {}
        for place, wanted, found in zip(self.places, self.wanted, moments, strict=True):
            for label in wanted if found else ():
                if found and label not in found.against:
                    absent.setdefault(label, []).append(place.step)
        notes.extend(
            f"{len(steps)} steps have no comparison with their {label} checkpoint, which is gone "
            f"(first: step {steps[0]})"
            for label, steps in absent.items()
        )
        return notes
