"""LoRA adapters in the layout of PEFT: which tensors are the factors of an update scale·BA, and its scale.

    MODULE.lora_A.weight, MODULE.lora_B.weight                     as `save_pretrained` writes them
    MODULE.lora_A.ADAPTER.weight, MODULE.lora_B.ADAPTER.weight     as a model has them
    MODULE.lora_embedding_A, MODULE.lora_embedding_B               of an embedding, with or without ADAPTER

A has r rows and B has r columns; those of a convolution have further axes.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod, sqrt

from normgrowth.checkpoints.parameters.parameter_names import Reading

CONFIG = "adapter_config.json"
DEFAULT = "default"  # PEFT's name of an adapter that the user did not name
_FACTOR = re.compile(r"(.+)\.lora_(embedding_)?([AB])(?:\.(?!weight$|bias$)([^.]+))?(?:\.weight)?")
_WRAPPER = "base_model.model."  # prefix of module names, which patterns lack
_LITERAL = re.compile(r"\^?[\w.]+")


@dataclass(frozen=True, slots=True)
class Adapter:
    """The update of one matrix. Its layer and role are those of its factors."""

    name: str  # of the adapted module, followed by the name of the adapter unless that is "default"
    layer: int | None
    layer_name: str | None
    role: str
    module: str
    adapter: str
    down: str  # the tensor A
    up: str  # the tensor B
    rank: int
    matrix: bool = True  # the update is one, whatever the rank


def find_adapters(readings: Sequence[Reading], shapes: Mapping[str, tuple[int, ...]]) -> tuple[Adapter, ...]:
    """The adapters with both factors among the readings."""
    factors: dict[tuple[str, str, bool], dict[str, Reading]] = {}
    for reading in readings:
        if found := _FACTOR.fullmatch(reading.name):
            module, embedding, factor, adapter = found.groups()
            key = module, adapter or DEFAULT, embedding is not None
            factors.setdefault(key, {})[factor] = reading
    adapters = []
    for (module, adapter, _), pair in factors.items():
        if len(pair) < 2:
            continue
        down, up = pair["A"], pair["B"]
        a, b = shapes[down.name], shapes[up.name]
        if len(a) < 2 or len(b) < 2 or a[0] != b[1] or prod(b[2:]) != 1:
            continue  # not a product of two matrices, as in a grouped convolution
        name = module if adapter == DEFAULT else f"{module}.{adapter}"
        adapters.append(
            Adapter(name, up.layer, up.layer_name, up.role, module, adapter, down.name, up.name, a[0])
        )
    return tuple(adapters)


@dataclass(frozen=True)
class AdapterConfig:
    """The fields of adapter_config.json that determine the scale."""

    r: int
    lora_alpha: float
    use_rslora: bool | None = False
    rank_pattern: dict[str, int] | None = field(default_factory=dict)
    alpha_pattern: dict[str, float] | None = field(default_factory=dict)

    def scale(self, adapter: Adapter) -> float | None:
        """The factor of BA: lora_alpha / r, or lora_alpha / √r with use_rslora. None if it is uncertain.

        Patterns are compared as plain names, because regular expressions from an untrusted file are not run.
        """
        patterns = [*(self.rank_pattern or ()), *(self.alpha_pattern or ())]
        if not all(map(_LITERAL.fullmatch, patterns)):
            return None
        rank = _of_module(self.rank_pattern or {}, adapter.module, self.r)
        if rank != adapter.rank or rank < 1:  # the experts of a mixture share one A
            return None
        alpha = _of_module(self.alpha_pattern or {}, adapter.module, self.lora_alpha)
        return alpha / (sqrt(rank) if self.use_rslora else rank)


def _of_module(patterns: Mapping[str, float], module: str, default: float) -> float:
    """The value of the first pattern that the module's name ends with, or equals if the pattern begins with ^."""
    whole = module.removeprefix(_WRAPPER)
    for name, value in patterns.items():
        if whole == name.removeprefix("^") or (name[0] != "^" and whole.endswith(f".{name}")):
            return value
    return default
