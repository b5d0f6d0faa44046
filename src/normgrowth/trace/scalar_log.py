"""Compare single weights of every checkpoint with the first checkpoint; counts are stored by step.

DIR/scalars/step-000000500.npz    counts of each tensor (`moments.scalars`)
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from normgrowth.checkpoints.checkpoint import Checkpoint, decode
from normgrowth.checkpoints.parameters.parameter_names import Reading
from normgrowth.moments.levels import levels_of
from normgrowth.moments.scalars import ScalarCounts, count_scalars, stacked
from normgrowth.records import Block
from normgrowth.serialization.checksums import seal, unseal
from normgrowth.trace.output.store import digest
from normgrowth.trace.plan import TraceStep
from normgrowth.workspace import replacing


@dataclass
class ScalarLog:
    """Counts by step. names: names of the tensors. folder: None stores nothing."""

    folder: Path | None
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
            self._save(place.step, key, found)
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

    def _path(self, step: int) -> Path | None:
        return self.folder / "scalars" / f"step-{step:09d}.npz" if self.folder else None

    def _save(self, step: int, key: str, counts: ScalarCounts) -> None:
        path = self._path(step)
        if path is None:
            return
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, key=np.array(key), **asdict(counts))
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as part:
            part.write_bytes(seal(buffer.getvalue()))

    def _load(self, step: int, key: str | None) -> ScalarCounts | None:
        """Return the stored counts of a step if their key matches. key: None (checkpoint deleted) matches any."""
        path = self._path(step)
        if path is None or not path.is_file():
            return None
        try:
            with np.load(io.BytesIO(unseal(path.read_bytes())), allow_pickle=False) as stored:
                arrays: Mapping[str, np.ndarray] = dict(stored)
            same = key is None or str(arrays["key"]) == key
            counts = ScalarCounts(
                *(arrays[name] for name in ("compared", "grown", "sign_changed", "histogram"))
            )
            return counts if same and len(counts.compared) == len(self.names) else None
        except (OSError, ValueError, LookupError):
            return None  # damaged: count again


def _values(name: str, *checkpoints: Checkpoint) -> list[np.ndarray]:
    """Return the values of a tensor in each checkpoint, as float64."""
    return [decode(one.tensors[name].dtype, one.dense(name)) for one in checkpoints]
