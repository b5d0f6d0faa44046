"""A checkpoint's weights into a model that is at hand: built once, filled for each step of a series."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from normgrowth.checkpoints.checkpoint import Checkpoint, check_unchanged, decode
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

COMPARED = 32  # names that show which prefix a checkpoint has more or less than the model


@contextmanager
def weights_kept(model: nn.Module) -> Iterator[None]:
    """Whatever happens to its weights, the model has its own afterwards."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    try:
        yield
    finally:
        model.load_state_dict(before)


class Filler:
    """Copies one checkpoint after the other into a model. What a checkpoint lacks must not matter to the states."""

    def __init__(self, model: nn.Module, states: States | None = None, stack: Stack | None = None) -> None:
        self.model, self.states = model, states
        self.stack: Stack | None = stack
        self.harmless: set[str] = set()  # parameters that checkpoints lack and no state depends on

    def fill(self, checkpoint: Checkpoint) -> None:
        missing = [name for name in copy_weights(checkpoint, self.model) if name not in self.harmless]
        if not missing:
            return
        if self.states is not None or _seen_by_states(self.model, missing, self.stack):
            raise InputError(
                f"{checkpoint.label}: no tensor for {and_more(missing)} of the model; is it this series' config?"
            )
        self.harmless.update(missing)

    @property
    def notes(self) -> list[str]:
        lacking = sorted(self.harmless)
        return (
            [f"not in the checkpoints, and without effect on the states: {and_more(lacking)}"]
            if lacking
            else []
        )


def and_more(names: Sequence[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


@torch.no_grad()
def copy_weights(checkpoint: Checkpoint, model: nn.Module) -> list[str]:
    """Copy every parameter and stored buffer that the checkpoint has, and say which parameters it has not.

    A model with a head calls `transformer.h.0` what the model alone calls `h.0`; tied weights may be stored under
    any of their names.
    """
    parameters: dict[str, Tensor] = model.state_dict(keep_vars=True)  # tied ones under each of their names
    stored = _stored_names(parameters, checkpoint)
    done: set[int] = set()
    for name, its in stored.items():
        parameter, tensor = parameters[name], checkpoint.tensors[its]
        if tensor.shape != tuple(parameter.shape):
            raise InputError(
                f"{checkpoint.label}: tensor {its} has shape {list(tensor.shape)}, the model's {name} "
                f"{list(parameter.shape)}; is it this series' config?"
            )
        if id(parameter) not in done:
            values = decode(tensor.dtype, checkpoint.dense(its)).reshape(tensor.shape)
            parameter.copy_(torch.from_numpy(values if values.flags.writeable else values.copy()))
            done.add(id(parameter))
    check_unchanged(checkpoint)
    if not done:
        raise InputError(
            f"{checkpoint.label}: none of the model's parameters, such as {next(iter(parameters))}, is in it; "
            "is it this series' config?"
        )
    return [
        name
        for name, parameter in parameters.items()
        if id(parameter) not in done and isinstance(parameter, nn.Parameter)
    ]


def _stored_names(parameters: Mapping[str, Tensor], checkpoint: Checkpoint) -> dict[str, str]:
    """Name in the model -> name in the checkpoint, which may have a prefix more or less in front of all."""
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
        for way in reversed(ways)  # the common spelling has the last word
        for name in parameters
        if way(name) in known
    }


@torch.no_grad()
def _seen_by_states(model: nn.Module, names: Sequence[str], stack: Stack | None) -> bool:
    """Whether states depend on these parameters: they are NaN for one pass. A pooler's are seen by none."""
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
