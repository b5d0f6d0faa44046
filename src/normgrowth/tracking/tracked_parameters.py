"""The counted parameters of a model and their names, interpreted as `trace` interprets names in checkpoints."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from normgrowth.checkpoints.checkpoint import Tensor as Entry
from normgrowth.checkpoints.checkpoint import without_wrappers
from normgrowth.checkpoints.parameters.parameter_names import Reading
from normgrowth.checkpoints.parameters.selection import CountedParameters, Selection
from normgrowth.errors import InputError
from normgrowth.tracking.live_adapters import LiveAdapter, find_live_adapters
from normgrowth.tracking.tensor_sums import WORDS, sharded_over


@dataclass(frozen=True)
class Watched:
    """The counted parameters, and the data to detect that the model's parameters have changed."""

    readings: list[Reading]
    tensors: Sequence[Tensor]
    known: Mapping[str, Tensor]  # all parameters by their names; referenced, so that ids are not reused
    kinds: Mapping[str, Hashable]  # shape, dtype and device, which change if `parameter.data` is replaced
    counted: CountedParameters
    adapters: Sequence[LiveAdapter] = ()

    @property
    def numel(self) -> list[int]:
        return [tensor.numel() for tensor in self.tensors]

    def is_current(self, model: nn.Module) -> bool:
        now = dict(model.named_parameters(remove_duplicate=False))
        return now.keys() == self.known.keys() and all(
            tensor is self.known[name] and _kind(tensor) == self.kinds[name] for name, tensor in now.items()
        )


def memory_key(tensor: Tensor) -> Hashable:
    """A key that is equal for parameters that share memory, as after `head.weight.data = embedding.weight.data`."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
    if plain and tensor.numel() and (address := tensor.data_ptr()):
        return address, tuple(tensor.shape), tensor.stride(), tensor.dtype
    return id(tensor)


def reshard(model: nn.Module) -> None:
    """Reshard the model: after a forward-only pass, FSDP2 keeps the root's parameters unsharded until a backward.

    The optimizer does not update these unsharded copies.
    """
    for module in model.modules():
        if type(module).__name__.startswith("FSDP") and hasattr(module, "reshard"):
            module.reshard()  # pyright: ignore[reportCallIssue]


def watch(model: nn.Module, selection: Selection) -> Watched:
    """The current counted parameters of the model; tied parameters count once, under their first name."""
    reshard(model)
    for module in model.modules():
        if type(module).__name__ == "FullyShardedDataParallel":
            raise InputError(
                "the model is wrapped by FullyShardedDataParallel, which flattens its parameters; "
                "use torch.distributed.fsdp.fully_shard (FSDP2) instead"
            )
    known = dict(model.named_parameters(remove_duplicate=False))
    for name, tensor in known.items():
        if isinstance(tensor, UninitializedParameter):
            raise InputError(
                f"{name} has no shape before the model's first pass; run a pass before creating the tracker"
            )
    stored = without_wrappers(known) or {name: name for name in known}
    tensors = {clean: known[name] for clean, name in stored.items()}
    first: dict[Hashable, str] = {}
    aliases = {
        name: first[memory_key(tensor)]
        for name, tensor in tensors.items()
        if first.setdefault(memory_key(tensor), name) != name
    }
    entries = {name: Entry(_word(tensor), tuple(tensor.shape)) for name, tensor in tensors.items()}
    chosen = selection.choose(type(model).__name__, entries, aliases)
    counted = [tensors[reading.name] for reading in chosen.readings]
    for tensor in counted:
        sharded_over(tensor)  # raises an error now rather than in the middle of a run
    kinds = {name: _kind(tensor) for name, tensor in known.items()}
    adapters = find_live_adapters(model, chosen.readings, tensors, stored)
    return Watched(chosen.readings, counted, known, kinds, chosen.counts(), adapters)


def strangers(watched: Watched, optimizers: Sequence[Optimizer]) -> str:
    """A message about parameters of the optimizers that are not in the model; "" if there are none."""
    mine = {id(tensor) for tensor in watched.known.values()}
    foreign: Sequence[Tensor] = [
        tensor
        for optimizer in optimizers
        for group in optimizer.param_groups
        for tensor in group["params"]
        if id(tensor) not in mine
    ]
    if not foreign:
        return ""
    return (
        f"the optimizer has {len(foreign)} parameters that are not in the model "
        f"(the first has shape {list(foreign[0].shape)})"
    )


def _kind(tensor: Tensor) -> Hashable:
    return tuple(tensor.shape), tensor.dtype, tensor.device


def _word(tensor: Tensor) -> str:
    """The dtype as spelled in checkpoints, as far as it affects the meaning of a name."""
    if tensor.dtype in WORDS:
        return WORDS[tensor.dtype]
    return "F8_E5M2" if tensor.is_floating_point() or tensor.is_complex() else "U8"
