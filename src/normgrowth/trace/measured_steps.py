"""The sums of all steps of a series, and the records computed from them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from normgrowth.checkpoints.parameters.parameter_names import Reading
from normgrowth.engine import gc_paused
from normgrowth.moments.levels import levels_of
from normgrowth.moments.moments import BUDGET, PREVIOUS, Moments, accumulated, by_reference
from normgrowth.records import Block, Records
from normgrowth.trace.lora_updates import LoraUpdates
from normgrowth.trace.plan import Plan, TraceStep
from normgrowth.trace.sampling.sample_log import SampleLog
from normgrowth.trace.scalar_log import ScalarLog


@dataclass(frozen=True)
class MeasuredSteps:
    """The steps that have sums; places and moments have one entry per step."""

    places: Sequence[TraceStep]
    readings: Sequence[Reading]
    moments: Sequence[Moments]
    copies: Mapping[
        str, str
    ]  # tensors that are left out because they equal another one -> name of that tensor
    unbroken: int  # number of steps before the first lost one
    samples: SampleLog | None  # None: none were taken
    scalars: ScalarLog | None
    updates: LoraUpdates
    deleted: Sequence[str]  # notes on deleted checkpoints

    @staticmethod
    def of(
        plan: Plan,
        measured: Sequence[Moments | None],
        readings: Sequence[Reading],
        samples: SampleLog | None,
        scalars: ScalarLog | None,
        updates: LoraUpdates,
    ) -> "MeasuredSteps":
        """Build from a plan. measured: the moments of each place of the plan, None for a lost step."""
        places = [place for place, found in zip(plan.places, measured, strict=True) if found]
        moments = [found for found in measured if found]
        unbroken = next((i for i, found in enumerate(measured) if not found), len(measured))
        place_of = {reading.name: i for i, reading in enumerate(readings)}

        def sums(reading: Reading) -> tuple[float, ...]:
            i = place_of[reading.name]
            own = tuple(float(x) for m in moments for x in (m.numel[i], m.square[i], m.largest[i]))
            return own if moments[0].square[i] > 0 else ()

        copies = tied_copies(readings, sums)
        single = [i for i, reading in enumerate(readings) if reading.name not in copies]
        moments = [m.chosen(single) for m in moments] if copies else moments
        own = [readings[i] for i in single]
        more = samples, scalars, updates, plan.notes(measured)
        return MeasuredSteps(places, own, moments, copies, unbroken, *more)

    def notes(self) -> list[str]:
        checked = self.samples.notes(len(self.places)) if self.samples else []
        tied = [
            f"{copy}: equals {name} in every checkpoint; counted once" for copy, name in self.copies.items()
        ]
        return [*self.deleted, *checked, *tied, *self.updates.notes]

    def problems(self) -> list[str]:
        """Return problems that limit how the results can be used."""
        problems: list[str] = []
        if len(self.places) == 1:
            only = self.places[0].label
            problems.append(f"{only}: only one checkpoint: it has norms, but no steps, angles or growth")
        for place, found in zip(self.places, self.moments, strict=True):
            bad = np.flatnonzero(found.nonfinite)
            if len(bad):
                more = f" and in {len(bad) - 1} more tensors" if len(bad) > 1 else ""
                problems.append(
                    f"{place.label}: {found.nonfinite[bad[0]]} of {found.numel[bad[0]]} values of tensor "
                    f"{self.readings[bad[0]].name} are NaN or infinite{more}; quantities that depend on them are NaN"
                )
        return problems

    def records(self, run: str, tokens_per_step: float | None) -> Records:
        more = [*(self.scalars.blocks(self.readings) if self.scalars else ()), *self.updates.blocks()]
        with gc_paused():
            records = Records.from_blocks(run, [*self._blocks(), *more])
            return records if tokens_per_step is None else records.with_tokens(tokens_per_step)

    def _blocks(self) -> list[Block]:
        steps = [place.step for place in self.places]
        blocks: list[Block] = []
        for level, names, layers, roles, group in levels_of(self.readings):
            grouped = [m if group is None else m.grouped(group, len(names)) for m in self.moments]
            by_step = [by_reference(m) for m in grouped]
            for reference in dict.fromkeys(reference for found in by_step for reference in found):
                here = [
                    i for i, found in enumerate(by_step) if reference in found
                ]  # the first step has no previous one
                defined = by_step[here[0]][reference]
                stacked = {q: np.stack([by_step[i][reference][q] for i in here]) for q in defined}
                at = [steps[i] for i in here]
                blocks.append(Block(level, names, layers, roles, at, stacked, reference))
            # The budget is a running sum, so it ends at the first lost step.
            intervals = (found.get(PREVIOUS) for found in by_step[1 : self.unbroken])
            added = [values for values in takewhile(lambda values: values is not None, intervals) if values]
            if added:
                terms = (np.stack([values[term] for values in added]) for term in BUDGET)
                at = steps[1 : 1 + len(added)]
                blocks.append(Block(level, names, layers, roles, at, accumulated(*terms)))
        return blocks


def tied_copies(readings: Iterable[Reading], sums: Callable[[Reading], tuple[float, ...]]) -> dict[str, str]:
    """Return heads that are stored copies of the embedding they are tied to: name -> name of the embedding.

    Most formats do not record that two names share their values. Two such matrices count as one if their sums
    are bit-identical in every checkpoint. sums: of a tensor in every checkpoint; () if it is zero in the first.
    """
    seen: dict[tuple[float, ...], str] = {}
    copies: dict[str, str] = {}
    ends = (reading for reading in readings if reading.role in ("embedding", "head"))
    for reading in sorted(ends, key=lambda reading: reading.role == "head"):
        if (own := sums(reading)) and (first := seen.setdefault(own, reading.name)) != reading.name:
            copies[reading.name] = first
    return copies
