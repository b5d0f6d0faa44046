"""Compare single weights of every checkpoint with the first checkpoint; counts are stored by step.

DIR/scalars/step-000000500.npz    counts of each tensor (`moments.scalars`)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields

import numpy as np

from normgrowth.checkpoints.checkpoint import Checkpoint, decode
from normgrowth.checkpoints.parameters.parameter_names import Reading
from normgrowth.moments.levels import levels_of
from normgrowth.moments.scalars import ScalarCounts, count_scalars, stacked
from normgrowth.records import Block
from normgrowth.serialization.checksums import digest
from normgrowth.trace.output.store import step_name
from normgrowth.trace.plan import TraceStep
from normgrowth.workspace import Cache


@dataclass
class ScalarLog:
    """Counts by step. names: names of the tensors."""

    cache: Cache[Mapping[str, np.ndarray]]
    names: Sequence[str]
    counts: dict[int, ScalarCounts] = field(default_factory=dict)

    def take(self, i: int, places: Sequence[TraceStep], get: Callable[[int], Checkpoint]) -> None:
        """Compare step i with the first step unless a stored count exists; skip it if either checkpoint is deleted."""
        place, first, key = places[i], places[0], None
        if place.entry and first.entry:
            key = digest([list(self.names), place.entry.fingerprint, first.entry.fingerprint])
        found = self._load(place.step, key)
        if found is None and key is not None:
            current, reference = get(i), get(0)
            found = stacked([count_scalars(*_values(name, current, reference)) for name in self.names])
            self.cache.put(step_name(place.step), {"key": np.array(key), **asdict(found)})
        if found is not None:
            self.counts[place.step] = found

    def blocks(self, readings: Sequence[Reading]) -> list[Block]:
        """Return the quantities of each tensor, layer, role and the model. readings: tensors without tied copies."""
        steps = sorted(self.counts)
        if not steps:
            return []
        place = {name: i for i, name in enumerate(self.names)}
        items = [place[reading.name] for reading in readings]
        chosen = [self.counts[step].chosen(items) for step in steps]
        blocks = []
        for level, names, layers, roles, group in levels_of(readings):
            by_step = [counts.grouped(group, len(names)).quantities() for counts in chosen]
            values = {quantity: np.stack([found[quantity] for found in by_step]) for quantity in by_step[0]}
            blocks.append(Block(level, names, layers, roles, steps, values, "first"))
        return blocks

    def _load(self, step: int, key: str | None) -> ScalarCounts | None:
        """Return the stored counts of a step if their key matches. key: None (checkpoint deleted) matches any."""
        arrays = self.cache.get(step_name(step))
        if arrays is None or (key is not None and str(arrays.get("key")) != key):
            return None
        try:
            counts = ScalarCounts(*(arrays[field.name] for field in fields(ScalarCounts)))
        except LookupError:
            return None
        return counts if len(counts.compared) == len(self.names) else None


def _values(name: str, *checkpoints: Checkpoint) -> list[np.ndarray]:
    """Return the values of a tensor in each checkpoint, as float64."""
    return [decode(one.tensors[name].dtype, one.dense(name)) for one in checkpoints]
