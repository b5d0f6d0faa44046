"""Groups of parameters that share memory: checked once, and again if a parameter is replaced or moved."""

from typing import Any

import torch
from torch import Tensor, nn

from normgrowth.errors import UnscalableParameter
from normgrowth.limit.forward_pass.compiled import plain_name
from normgrowth.limit.growing_parameters.memory import (
    extent,
    local_weights,
    overlapping,
    refuse_packed_weights,
)

Group = list[tuple[str, Tensor]]
NamedModules = list[tuple[str, nn.Module]]


class ParameterLayout:
    """groups: parameters that share memory, in the order of the model.

    parts: groups that do not cover their whole storage.
    """

    def __init__(self, modules: NamedModules) -> None:
        refuse_packed_weights(modules)
        self.modules = modules
        self.places = _places(modules)
        self.groups = _groups(modules)
        self.parts = [group for group in self.groups if _is_part(group)]

    def holds(self, modules: NamedModules) -> bool:
        """Whether the model still has the same parameters at the same memory addresses."""
        refuse_packed_weights(modules)
        return self.places is not None and modules == self.modules and self.places == _places(modules)


def _places(modules: NamedModules) -> list[Any] | None:
    """The memory address of each parameter; None if one is not a plain tensor and has to be checked each time."""
    found: list[Any] = []
    for _, module in modules:
        for p in module._parameters.values():
            if p is None:
                continue
            if type(p) is not nn.Parameter or p.layout != torch.strided:
                return None
            found.append((id(p), p.data_ptr(), p.shape, p.stride(), p.dtype, p.untyped_storage().nbytes()))
    return found


def _groups(modules: NamedModules) -> list[Group]:
    named: dict[str, Tensor] = {}
    seen: set[int] = set()
    for prefix, module in modules:
        for short, parameter in module._parameters.items():
            if parameter is None or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            name = f"{prefix}.{short}" if prefix else short
            if hasattr(parameter, "to_local"):
                raise UnscalableParameter(
                    name,
                    "a DTensor, of which each process has only a part",
                    "gather it first with full_tensor()",
                )
            local_weights(name, parameter)
            named[plain_name(name)] = parameter
    order = {name: place for place, name in enumerate(named)}
    groups = [
        sorted(((name, named[name]) for name, _ in group), key=lambda member: order[member[0]])
        for group in overlapping([(name, parameter.detach()) for name, parameter in named.items()])
    ]
    groups += [[(name, parameter)] for name, parameter in named.items() if not parameter.numel()]
    return sorted(groups, key=lambda group: order[group[0][0]])


def span(tensors: list[Tensor]) -> tuple[int, int]:
    """The range of the tensors in their storage, from first to last element."""
    start = min(int(tensor.storage_offset()) for tensor in tensors)
    return start, max(int(tensor.storage_offset()) + extent(tensor) for tensor in tensors)


def _is_part(group: Group) -> bool:
    tensors = [parameter.data for _, parameter in group]
    first = tensors[0]
    start, end = span(tensors)
    return first.numel() > 0 and (end - start) * first.element_size() != first.untyped_storage().nbytes()
