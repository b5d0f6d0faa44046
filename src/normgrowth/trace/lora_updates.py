"""The LoRA updates of a series: ‖BA‖·scale of each adapted matrix, with the scale from adapter_config.json."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from normgrowth.checkpoints.checkpoint import Checkpoint, MappedCheckpoint, decode
from normgrowth.checkpoints.parameters.adapters import CONFIG, Adapter, AdapterConfig
from normgrowth.errors import SchemaError
from normgrowth.moments.levels import LEVELS, levels_of
from normgrowth.moments.moments import Floats, product_square
from normgrowth.records import Block
from normgrowth.serialization.json_types import read_json

UPDATE_NORM = "lora_update_norm"


def update_blocks(
    adapters: Sequence[Adapter], steps: Sequence[int], squares: Floats, levels: Sequence[str] = LEVELS
) -> Iterator[Block]:
    """The norms of the updates, by matrix, layer, role and model. squares: (steps, adapters)."""
    if not adapters or not steps:
        return
    for level, names, layers, roles, group in levels_of(adapters):
        if level not in levels:
            continue
        added = np.zeros((len(steps), len(names)))
        for i, item in enumerate(range(len(adapters)) if group is None else group):
            if item >= 0:
                added[:, item] += squares[:, i]
        values = {UPDATE_NORM: np.sqrt(np.maximum(added, 0.0))}
        yield Block(level, names, layers, roles, steps, values)


@dataclass
class LoraUpdates:
    """‖scale·BA‖² by step, an entry for each adapter. names: those of all counted tensors."""

    adapters: Sequence[Adapter]
    names: Sequence[str]
    squares: dict[int, Floats] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def take(self, step: int, kept: Floats | None, get: Callable[[], Checkpoint] | None) -> Floats | None:
        """The squares of a step, stored in the rows of B: `kept` if it is given, else measured now.

        None if there are no adapters, the checkpoint is gone (get is None), or its scale is unknown.
        """
        if not self.adapters:
            return None
        place = {name: i for i, name in enumerate(self.names)}
        rows = [place[adapter.up] for adapter in self.adapters]
        if kept is None and get is not None and (found := self._measured(get())) is not None:
            kept = np.full(len(self.names), np.nan)
            kept[rows] = found
        if kept is not None:
            self.squares[step] = kept[rows]
        return kept

    def blocks(self) -> list[Block]:
        steps = sorted(self.squares)
        return list(update_blocks(self.adapters, steps, np.array([self.squares[step] for step in steps])))

    def _measured(self, checkpoint: Checkpoint) -> Floats | None:
        config = self._config(checkpoint)
        if config is None:
            return None
        found = np.full(len(self.adapters), np.nan)
        for i, adapter in enumerate(self.adapters):
            scale = config.scale(adapter)
            if scale is None:
                self._note(
                    f"{adapter.name}: its scale does not follow from {CONFIG}: lora_update_norm is NaN"
                )
                continue
            down, up = (_matrix(checkpoint, name) for name in (adapter.down, adapter.up))
            found[i] = scale**2 * product_square(up, down)
        checkpoint.check_unchanged()
        return found

    def _config(self, checkpoint: Checkpoint) -> AdapterConfig | None:
        problem = f"no {CONFIG} on this machine"
        if isinstance(checkpoint, MappedCheckpoint):
            folder = checkpoint.root if checkpoint.root.is_dir() else checkpoint.root.parent
            try:
                return read_json(folder / CONFIG, AdapterConfig)
            except SchemaError as error:
                problem = str(error)
        self._note(f"{checkpoint.label}: lora_update_norm needs the scale of the adapters: {problem}")
        return None

    def _note(self, text: str) -> None:
        if not self.notes:
            self.notes.append(text)


def _matrix(checkpoint: Checkpoint, name: str) -> Floats:
    tensor = checkpoint.tensors[name]
    return decode(tensor.dtype, checkpoint.dense(name)).reshape(tensor.shape[0], -1)
