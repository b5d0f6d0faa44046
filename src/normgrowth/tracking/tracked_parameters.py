"""Which parameters of a model count, under which names: read as `trace` reads the names of a checkpoint."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from normgrowth.checkpoints.checkpoint import Tensor as Entry
from normgrowth.checkpoints.checkpoint import without_wrappers
from normgrowth.checkpoints.parameter_names import Reading
from normgrowth.checkpoints.selection import Selection
from normgrowth.errors import InputError
from normgrowth.tracking.live_adapters import LiveAdapter, find_live_adapters
from normgrowth.tracking.tensor_sums import WORDS, sharded_over


@dataclass(frozen=True)
class Watched:
    """The parameters that count, and what tells whether the model still has the same ones."""

    readings: list[Reading]
    tensors: Sequence[Tensor]
    known: Mapping[str, Tensor]  # all of the model's, by their own names: held, so that no id is given twice
    kinds: Mapping[str, Hashable]  # and what they were then: `data` may be given to a parameter anew
    counted: dict[str, Any]  # how many tensors and values count, and of how many
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
    """The same for parameters that share their memory, as after `head.weight.data = embedding.weight.data`."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
    if plain and tensor.numel() and (address := tensor.data_ptr()):
        return address, tuple(tensor.shape), tensor.stride(), tensor.dtype
    return id(tensor)


def reshard(model: nn.Module) -> None:
    """Undo what a forward-only pass leaves behind: FSDP2 keeps the root's parameters whole until the next backward.

    These copies are not what the optimizer steps.
    """
    for module in model.modules():
        if type(module).__name__.startswith("FSDP") and hasattr(module, "reshard"):
            module.reshard()  # pyright: ignore[reportCallIssue]


def watch(model: nn.Module, selection: Selection) -> Watched:
    """Read the model's parameters as they are now; tied ones count once, under their first name."""
    reshard(model)
    for module in model.modules():
        if type(module).__name__ == "FullyShardedDataParallel":
            raise InputError(
                "the model is wrapped by FullyShardedDataParallel, whose parameters lie about in flat pieces; "
                "use torch.distributed.fsdp.fully_shard (FSDP2), whose parameters know their place"
            )
    known = dict(model.named_parameters(remove_duplicate=False))
    for name, tensor in known.items():
        if isinstance(tensor, UninitializedParameter):
            raise InputError(
                f"{name} has no shape before the model's first pass; run one, then make the tracker"
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
        sharded_over(tensor)  # refuses what cannot be measured now, and not in the middle of a run
    kinds = {name: _kind(tensor) for name, tensor in known.items()}
    adapters = find_live_adapters(model, chosen.readings, tensors, stored)
    return Watched(chosen.readings, counted, known, kinds, asdict(chosen.counts()), adapters)


def strangers(watched: Watched, optimizer: Optimizer) -> str:
    """What the optimizer holds that the model does not have, in words; "" if nothing."""
    mine = {id(tensor) for tensor in watched.known.values()}
    foreign: Sequence[Tensor] = [
        tensor for group in optimizer.param_groups for tensor in group["params"] if id(tensor) not in mine
    ]
    if not foreign:
        return ""
    return (
        f"the optimizer holds {len(foreign)} parameters that the model does not have "
        f"(the first has shape {list(foreign[0].shape)})"
    )


def _kind(tensor: Tensor) -> Hashable:
    return tuple(tensor.shape), tensor.dtype, tensor.device


def _word(tensor: Tensor) -> str:
    """The dtype as checkpoints spell it, as far as it matters to what a name means."""
    if tensor.dtype in WORDS:
        return WORDS[tensor.dtype]
    return "F8_E5M2" if tensor.is_floating_point() or tensor.is_complex() else "U8"
