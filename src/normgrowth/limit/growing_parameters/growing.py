"""The parameters of a model that grow, each temporarily with its own storage.

Degrees are attributes of storages. A parameter that is a part of a storage (weights flattened into one buffer, as in
cuDNN's recurrent layers) would give its degree and its name to the whole storage.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from glob import escape

import torch
from torch import Tensor, nn

from normgrowth.limit.forward_pass.compiled import plain_name, unwrapped
from normgrowth.limit.growing_parameters.fixed import matching
from normgrowth.limit.growing_parameters.layout import Group, ParameterLayout, span


def growing_parameters(model: nn.Module, fixed: Sequence[str] = ()) -> list[tuple[str, Tensor]]:
    """The parameters that grow. Parameters that overlap in memory (tied weights) count as one, under the first name.

    fixed: names or patterns of parameters that do not grow; a tied parameter is fixed by any of its names.
    """
    layout = ParameterLayout(list(model.named_modules()))
    return first_names(layout.groups, check_fixed(model, fixed))


def first_names(groups: Iterable[Group], held: set[int]) -> list[tuple[str, Tensor]]:
    """The first name of each group that grows. held: ids of fixed parameters, whose groups do not grow."""
    if not held:
        return [group[0] for group in groups]
    return [group[0] for group in groups if not any(id(parameter) in held for _, parameter in group)]


def check_fixed(model: nn.Module, fixed: Sequence[str]) -> set[int]:
    """The ids of the fixed parameters; raises InputError if a pattern matches nothing."""
    if not fixed:
        return set()
    named = {plain_name(name): p for name, p in model.named_parameters(remove_duplicate=False)}
    return {id(named[name]) for name in matching(named, fixed)}


def fixed_within(model: nn.Module, part: nn.Module, fixed: Sequence[str]) -> list[str]:
    """The fixed parameters of a model, by their names in a part of the model or in a module around it."""
    if not fixed:
        return []
    held = check_fixed(unwrapped(model), fixed)
    named = part.named_parameters(remove_duplicate=False)
    return [escape(plain_name(name)) for name, parameter in named if id(parameter) in held]


@contextmanager
def own_storages(layout: ParameterLayout) -> Iterator[None]:
    """Temporarily replace parameters that are a part of a storage by copies with their own storage."""
    before: list[tuple[Tensor, Tensor]] = []
    try:
        for group in layout.parts:
            tensors = [parameter.data for _, parameter in group]
            first = tensors[0]
            start, end = span(tensors)
            row = torch.empty(0, dtype=first.dtype, device=first.device)
            row = row.set_(first.untyped_storage(), start, (end - start,), (1,)).clone()
            for (_, parameter), tensor in zip(group, tensors, strict=True):
                before.append((parameter, tensor))
                parameter.data = row.as_strided(
                    tensor.shape, tensor.stride(), tensor.storage_offset() - start
                )
        yield
    finally:
        for parameter, tensor in before:
            parameter.data = tensor
