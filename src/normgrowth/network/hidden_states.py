"""Hidden states of transformers models and of any other module, and contexts for forward passes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from normgrowth.errors import InputError, NoLimit, UnsupportedOperation

Stack = Literal["encoder", "decoder"]
States = Callable[[nn.Module, Any], Sequence[Tensor]]
OWN_STATES = (
    "pass states=, a function of the module and a batch that returns the list of hidden states, each (rows, tokens, "
    "size): first the embeddings, then the output of every block"
)


WITHIN = "network."  # prefix of parameter names in a `Network`


class Network(nn.Module):
    """A network whose output is the list of its hidden states; `saturated` and `scaled_weights` are applied to it."""

    def __init__(self, network: nn.Module, states: States | None):
        super().__init__()
        self.network, self.states = network, states

    def forward(self, batch: Any) -> list[Tensor]:
        if self.states is not None:
            found = self.states(self.network, batch)
        else:
            inputs = dict(batch) if isinstance(batch, Mapping) else {"input_ids": batch}
            found = self.network(**inputs, output_hidden_states=True, return_dict=True).hidden_states
        if not isinstance(found, Sequence) or len(found) < 2:
            raise InputError(f"{type(self.network).__name__} returns no list of hidden states: {OWN_STATES}")
        return list(found)


@contextmanager
def names_of_network() -> Iterator[None]:
    """Errors from the limit of a `Network` name modules and parameters without the prefix of the `Network`."""
    try:
        yield
    except UnsupportedOperation as error:
        module = "" if error.module == "network" else error.module.removeprefix(WITHIN)
        more = (
            [[name.removeprefix(WITHIN) for name in error.parameters]] if isinstance(error, NoLimit) else []
        )
        raise type(error)(error.operation, module, error.degrees, error.reason, *more) from error


def measured_part(model: nn.Module, states: States | None) -> nn.Module:
    """The encoder of an encoder-decoder model, else the whole model."""
    if states is not None:
        return model
    config: Any = getattr(model, "config", None)
    if config is None or not hasattr(model, "main_input_name"):
        raise InputError(f"{type(model).__name__} is not a transformers model: {OWN_STATES}")
    get_encoder: Any = getattr(model, "get_encoder", None)
    if not getattr(config, "is_encoder_decoder", False) or get_encoder is None:
        return model
    return get_encoder()


def measured_stack(model: nn.Module, states: States | None, stack: Stack | None) -> Stack | Literal["layer"]:
    """The measured stack: "encoder" or "decoder" of an encoder-decoder model, else "layer"."""
    encoder = measured_part(model, states)
    if encoder is not model:
        return stack or "encoder"
    if stack is None:
        return "layer"
    raise InputError(f"{type(model).__name__} is not an encoder-decoder model: omit stack, got {stack!r}")


def stack_states(model: nn.Module, states: States | None, stack: str) -> tuple[nn.Module, States | None]:
    """The module to run for a stack, and the function that returns its hidden states."""
    if stack == "decoder":
        return model, states or _decoder_states
    return measured_part(model, states), states


def _decoder_states(model: nn.Module, batch: Any) -> Sequence[Tensor]:
    return model(**batch, output_hidden_states=True, return_dict=True, use_cache=False).decoder_hidden_states


def random_twin(model: nn.Module, seed: int) -> nn.Module:
    """A model of the same architecture with newly initialized weights."""
    config: Any = getattr(model, "config", None)
    if config is None:
        raise InputError(
            f"{type(model).__name__} has no config to build a random network from: leave random_init at 0"
        )
    first = next(model.parameters())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        make: Callable[[], nn.Module] = getattr(model, "reinitialized", lambda: type(model)(config))
        return make().to(dtype=first.dtype, device=first.device)


@contextmanager
def evaluating(model: nn.Module, *, training: bool = False, seed: int = 0) -> Iterator[None]:
    """Run without gradients, and without dropout unless training; restores the mode of every module.

    seed: seed of dropout. The state of torch's random number generator is restored.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.train(training)
        with torch.no_grad(), torch.random.fork_rng(devices=[], enabled=training):
            if training:
                torch.manual_seed(seed)
            yield
    finally:
        for module, training in modes:
            module.training = training


class Float64Pass(TorchDispatchMode):
    """Compute in float64 where a float64 model casts to float32, as norms and rotary embeddings of transformers do."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


@contextmanager
def running(network: nn.Module, tokens: int) -> Iterator[None]:
    """Turn errors of a pass of the network into an InputError of one line."""
    try:
        with out_of_memory_hint(network, tokens):
            yield
    except InputError:
        raise
    except (
        RuntimeError,
        TypeError,
        ValueError,
        IndexError,
        KeyError,
        AttributeError,
        ArithmeticError,
        AssertionError,
    ) as error:
        text = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise InputError(f"{_name(network)} does not run on this input: {text}") from error


@contextmanager
def out_of_memory_hint(network: nn.Module, tokens: int) -> Iterator[None]:
    """Turn an out-of-memory error into an InputError with advice; other errors pass unchanged."""
    try:
        yield
    except InputError:
        raise
    except (RuntimeError, MemoryError) as error:
        text = next(iter(str(error).splitlines()), "")
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "alloc" not in text:
            raise
        size = f" of {tokens:,} tokens" if tokens else ""
        raise InputError(
            f"{_name(network)}: out of memory in a batch{size}; use fewer tokens per batch (batch_tokens), "
            "shorter sentences or dtype bfloat16, or omit the exact limit"
        ) from error


def _name(network: nn.Module) -> str:
    return type(getattr(network, "network", network)).__name__
