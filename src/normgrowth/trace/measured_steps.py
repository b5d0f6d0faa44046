"""The sums of all steps of a series, and the records that follow from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from normgrowth.checkpoints.parameter_names import Reading
from normgrowth.engine import gc_paused
from normgrowth.moments.levels import levels_of
from normgrowth.moments.moments import BUDGET, PREVIOUS, Moments, accumulated, by_reference
from normgrowth.records import Block, Records
from normgrowth.trace.lora_updates import LoraUpdates
from normgrowth.trace.plan import Place, Plan
from normgrowth.trace.scalars import ScalarLog


@dataclass(frozen=True)
class MeasuredSteps:
    """The steps of which something is known: places and moments have an entry for each.

    copies: tensors that were left out because they equal another one, by its name. unbroken: steps from the first on
    of which none is lost.
    """

    places: Sequence[Place]
    readings: Sequence[Reading]
    moments: Sequence[Moments]
    copies: Mapping[str, str]
    unbroken: int

    @staticmethod
    def of(plan: Plan, measured: Sequence[Moments | None], readings: Sequence[Reading]) -> "MeasuredSteps":
        """measured: of each place of the plan, None where it is lost."""
        places = [place for place, found in zip(plan.places, measured, strict=True) if found]
        moments = [found for found in measured if found]
        unbroken = next((i for i, found in enumerate(measured) if not found), len(measured))
        copies = tied_copies(readings, moments)
        single = [i for i, reading in enumerate(readings) if reading.name not in copies]
        moments = [m.chosen(single) for m in moments] if copies else moments
        return MeasuredSteps(places, [readings[i] for i in single], moments, copies, unbroken)

    def notes(self) -> list[str]:
        return [
            f"{copy}: equals {name} in every checkpoint; counted once" for copy, name in self.copies.items()
        ]

    def problems(self) -> list[str]:
        """What a reader of the results must know before using them."""
        problems: list[str] = []
        if len(self.places) == 1:
            only = self.places[0].label
            problems.append(f"{only}: one checkpoint only: norms, but no steps, angles or growth to measure")
        for place, found in zip(self.places, self.moments, strict=True):
            bad = np.flatnonzero(found.nonfinite)
            if len(bad):
                more = f" and in {len(bad) - 1} more tensors" if len(bad) > 1 else ""
                problems.append(
                    f"{place.label}: {found.nonfinite[bad[0]]} of {found.numel[bad[0]]} values of tensor "
                    f"{self.readings[bad[0]].name} are NaN or infinite{more}; what depends on them is NaN"
                )
        return problems

    def records(
        self,
        run: str,
        tokens_per_step: float | None,
        scalars: ScalarLog | None = None,
        updates: LoraUpdates | None = None,
    ) -> Records:
        more = scalars.blocks(self.readings) if scalars else []
        more += updates.blocks() if updates else []
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
                ]  # the first has no previous
                defined = by_step[here[0]][reference]
                stacked = {q: np.stack([by_step[i][reference][q] for i in here]) for q in defined}
                at = [steps[i] for i in here]
                blocks.append(Block(level, names, layers, roles, at, stacked, reference))
            # The budget is added up over no more than the steps before the first that is lost.
            intervals = (found.get(PREVIOUS) for found in by_step[1 : self.unbroken])
            added = [values for values in takewhile(lambda values: values is not None, intervals) if values]
            if added:
                terms = (np.stack([values[term] for values in added]) for term in BUDGET)
                at = steps[1 : 1 + len(added)]
                blocks.append(Block(level, names, layers, roles, at, accumulated(*terms)))
        return blocks


def tied_copies(readings: Sequence[Reading], moments: Sequence[Moments]) -> dict[str, str]:
    """Heads that were stored as copies of the embedding they are tied to: name -> the other's name.

    Most formats forget that two names share their values. Two such matrices whose sums are equal to the
    bit in every checkpoint are one.
    """
    seen: dict[tuple[float, ...], str] = {}
    copies: dict[str, str] = {}
    for i, reading in sorted(enumerate(readings), key=lambda pair: pair[1].role == "head"):
        if reading.role in ("embedding", "head") and moments[0].square[i] > 0:
            sums = tuple(float(x) for m in moments for x in (m.numel[i], m.square[i], m.largest[i]))
            if (first := seen.setdefault(sums, reading.name)) != reading.name:
                copies[reading.name] = first
    return copies
