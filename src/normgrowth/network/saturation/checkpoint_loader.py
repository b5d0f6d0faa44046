"""Load the weights of checkpoints into an existing model, which is built once for a series."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from normgrowth.checkpoints.checkpoint import Checkpoint, decode
from normgrowth.errors import InputError
from normgrowth.network.hidden_states import (
    Network,
    Stack,
    States,
    evaluating,
    measured_stack,
    running,
    stack_states,
)
from normgrowth.network.inputs.batches import Batch, decoder_batch

COMPARED = 32  # number of names that determine which prefix the checkpoint or the model has


@contextmanager
def weights_kept(model: nn.Module) -> Iterator[None]:
    """Restore the weights of the model afterwards."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    try:
        yield
    finally:
        model.load_state_dict(before)


class Filler:
    """Copies checkpoints into a model one after another. Parameters missing in a checkpoint must not affect states."""

    def __init__(self, model: nn.Module, states: States | None = None, stack: Stack | None = None) -> None:
        self.model, self.states = model, states
        self.stack: Stack | None = stack
        self.harmless: set[str] = set()  # parameters missing in checkpoints that no state depends on

    def fill(self, checkpoint: Checkpoint) -> None:
        missing = [name for name in copy_weights(checkpoint, self.model) if name not in self.harmless]
        if not missing:
            return
        if self.states is not None or _seen_by_states(self.model, missing, self.stack):
            raise InputError(
                f"{checkpoint.label}: no tensor for {and_more(missing)} of the model; "
                "check that config belongs to this series"
            )
        self.harmless.update(missing)

    @property
    def notes(self) -> list[str]:
        lacking = sorted(self.harmless)
        return (
            [f"missing in the checkpoints, but without effect on the states: {and_more(lacking)}"]
            if lacking
            else []
        )


def and_more(names: Sequence[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


@torch.no_grad()
def copy_weights(checkpoint: Checkpoint, model: nn.Module) -> list[str]:
    """Copy all parameters and stored buffers of the checkpoint; returns the parameters that it lacks.

    Names may differ by a prefix: `h.0` is `transformer.h.0` in a model with a head. Tied weights may be stored under
    any of their names.
    """
    parameters: dict[str, Tensor] = model.state_dict(keep_vars=True)  # tied weights under each of their names
    stored = _stored_names(parameters, checkpoint)
    done: set[int] = set()
    for name, its in stored.items():
        parameter, tensor = parameters[name], checkpoint.tensors[its]
        if tensor.shape != tuple(parameter.shape):
            raise InputError(
                f"{checkpoint.label}: tensor {its} has shape {list(tensor.shape)}, but {name} of the model has "
                f"{list(parameter.shape)}; check that config belongs to this series"
            )
        if id(parameter) not in done:
            values = decode(tensor.dtype, checkpoint.dense(its)).reshape(tensor.shape)
            parameter.copy_(torch.from_numpy(values if values.flags.writeable else values.copy()))
            done.add(id(parameter))
    checkpoint.check_unchanged()
    if not done:
        raise InputError(
            f"{checkpoint.label}: contains none of the model's parameters, such as {next(iter(parameters))}; "
            "check that config belongs to this series"
        )
    return [
        name
        for name, parameter in parameters.items()
        if id(parameter) not in done and isinstance(parameter, nn.Parameter)
    ]


def _stored_names(parameters: Mapping[str, Tensor], checkpoint: Checkpoint) -> dict[str, str]:
    """Name in the model -> name in the checkpoint; either may have a prefix before all names."""
    known = {**{name: name for name in checkpoint.tensors}, **checkpoint.aliases}
    longer, shorter = Counter[str](), Counter[str]()
    for name in list(parameters)[:: max(1, len(parameters) // COMPARED)]:
        for its in known:
            if its.endswith(name) and (its == name or its[-len(name) - 1] == "."):
                longer[its.removesuffix(name)] += 1
            elif name.endswith(f".{its}"):
                shorter[name.removesuffix(its)] += 1
    best = longer.most_common(1) or [("", 0)]
    less = shorter.most_common(1) or [("", 0)]

    def spelling(name: str) -> str:
        return name.removeprefix(less[0][0]) if less[0][1] > best[0][1] else best[0][0] + name

    ways: list[Callable[[str], str]] = [spelling, str]
    return {
        name: known[way(name)]
        for way in reversed(ways)  # the spelling with the common prefix comes last and takes precedence
        for name in parameters
        if way(name) in known
    }


@torch.no_grad()
def _seen_by_states(model: nn.Module, names: Sequence[str], stack: Stack | None) -> bool:
    """Whether states depend on these parameters, tested with NaN in them. (A pooler does not affect the states.)"""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    measured = measured_stack(model, None, stack)
    network = Network(*stack_states(model, None, measured))
    with weights_kept(model):
        for name in names:
            parameters[name].fill_(torch.nan)
        with evaluating(network), running(network, 0):
            ids = torch.ones(1, 2, dtype=torch.long, device=parameters[names[0]].device)
            batch = Batch({"input_ids": ids}, None)
            batch = decoder_batch(batch, model, "shifted") if measured == "decoder" else batch
            return any(bool(state.isnan().any()) for state in network(batch.inputs))
