"""Which parameters of a model grow, and how each gets a storage of its own while it does.

Degrees hang on storages. A parameter that is a part of one (weights flattened into one buffer, as cuDNN's recurrent
layers are) would give its degree and its name to all that lies beside it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from normgrowth.errors import UnscalableParameter
from normgrowth.limit.compiled import plain_name
from normgrowth.limit.fixed_parameters import matching
from normgrowth.limit.parameter_memory import extent, local_weights, overlapping, refuse_packed_weights


def growing_parameters(model: nn.Module, fixed: Sequence[str] = ()) -> list[tuple[str, Tensor]]:
    """The parameters that grow. Those that overlap in memory (tied weights) are one, under the first name.

    fixed: names, or patterns of names, of those that do not; a tied one is held fixed by any of its names.
    """
    return _first_names(_groups(model), check_fixed(model, fixed))


def _first_names(groups: list[list[tuple[str, Tensor]]], held: set[int]) -> list[tuple[str, Tensor]]:
    return [group[0] for group in groups if not any(id(parameter) in held for _, parameter in group)]


def check_fixed(model: nn.Module, fixed: Sequence[str]) -> set[int]:
    """The identities of parameters that are held fixed; a pattern that matches nothing is refused."""
    if not fixed:
        return set()
    named = {plain_name(name): p for name, p in model.named_parameters(remove_duplicate=False)}
    return {id(named[name]) for name in matching(named, fixed)}


def _groups(model: nn.Module) -> list[list[tuple[str, Tensor]]]:
    """Parameters that share memory, groups and members in the order of the model."""
    refuse_packed_weights(model)
    named: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "to_local"):
            raise UnscalableParameter(
                name, "a DTensor, of which each process has a part", "gather it first with full_tensor()"
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


@contextmanager
def own_storages(model: nn.Module, fixed: Sequence[str] = ()) -> Iterator[list[tuple[str, Tensor]]]:
    """The parameters that grow. Those that are a part of a storage are copies with one of their own for the while."""
    before: list[tuple[Tensor, Tensor]] = []
    groups, held = _groups(model), check_fixed(model, fixed)
    try:
        for group in groups:
            tensors = [parameter.data for _, parameter in group]
            first = tensors[0]
            start = min(tensor.storage_offset() for tensor in tensors)
            end = max(tensor.storage_offset() + extent(tensor) for tensor in tensors)
            if not first.numel() or (end - start) * first.element_size() == first.untyped_storage().nbytes():
                continue
            row = torch.empty(0, dtype=first.dtype, device=first.device)
            row = row.set_(first.untyped_storage(), start, (end - start,), (1,)).clone()
            for (_, parameter), tensor in zip(group, tensors, strict=True):
                before.append((parameter, tensor))
                parameter.data = row.as_strided(
                    tensor.shape, tensor.stride(), tensor.storage_offset() - start
                )
        yield _first_names(groups, held)
    finally:
        for parameter, tensor in before:
            parameter.data = tensor
