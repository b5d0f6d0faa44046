"""LoRA adapters of a live model: layers of PEFT, which have a scale for each of their adapters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan

from torch import Tensor, nn

from normgrowth.checkpoints.parameters.adapters import Adapter, find_adapters
from normgrowth.checkpoints.parameters.parameter_names import Reading


@dataclass(frozen=True)
class LiveAdapter:
    """An adapter, its two factors, and the scales of its layer, which may change during training."""

    adapter: Adapter
    down: Tensor
    up: Tensor
    scales: Mapping[str, float]

    @property
    def scale(self) -> float:
        """As it is now; NaN if the adapter was removed."""
        return float(self.scales.get(self.adapter.adapter, nan))


def find_live_adapters(
    model: nn.Module,
    readings: Sequence[Reading],
    tensors: Mapping[str, Tensor],
    name_in_model: Mapping[str, str],
) -> list[LiveAdapter]:
    """The adapters of layers that have the attribute `scaling`, as in PEFT."""
    found = []
    shapes = {reading.name: tuple(tensors[reading.name].shape) for reading in readings}
    for adapter in find_adapters(readings, shapes):
        layer = model.get_submodule(name_in_model[adapter.down].rpartition(".lora_")[0])
        scales = getattr(layer, "scaling", None)
        if isinstance(scales, Mapping) and adapter.adapter in scales:
            found.append(LiveAdapter(adapter, tensors[adapter.down], tensors[adapter.up], scales))
    return found
