"""The states of a network, for networks of transformers and for any other module; and how passes are run."""

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
    "pass states=, a function of the module and a batch that returns the list of its states, each (rows, tokens, "
    "size): first the embeddings, then the output of every block"
)


WITHIN = "network."  # names of parameters in a `Network` begin so


class Network(nn.Module):
    """A network whose output is the list of its states: what `saturated` and `scaled_weights` are applied to."""

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
            raise InputError(f"{type(self.network).__name__} gives no list of states: {OWN_STATES}")
        return list(found)


@contextmanager
def names_of_network() -> Iterator[None]:
    """Refusals of the limit of a `Network` name modules and parameters as the network itself does."""
    try:
        yield
    except UnsupportedOperation as error:
        module = "" if error.module == "network" else error.module.removeprefix(WITHIN)
        more = (
            [[name.removeprefix(WITHIN) for name in error.parameters]] if isinstance(error, NoLimit) else []
        )
        raise type(error)(error.operation, module, error.degrees, error.reason, *more) from error


def measured_part(model: nn.Module, states: States | None) -> nn.Module:
    """The encoder if there is a decoder too, else the whole model."""
    if states is not None:
        return model
    config: Any = getattr(model, "config", None)
    if config is None or not hasattr(model, "main_input_name"):
        raise InputError(f"{type(model).__name__} is not of transformers: {OWN_STATES}")
    get_encoder: Any = getattr(model, "get_encoder", None)
    if not getattr(config, "is_encoder_decoder", False) or get_encoder is None:
        return model
    return get_encoder()


def measured_stack(model: nn.Module, states: States | None, stack: Stack | None) -> Stack | Literal["layer"]:
    """Which stack is measured: "encoder" or "decoder" of a model that has both, else "layer"."""
    encoder = measured_part(model, states)
    if encoder is not model:
        return stack or "encoder"
    if stack is None:
        return "layer"
    raise InputError(f"{type(model).__name__} has no encoder and decoder: leave stack out, got {stack!r}")


def stack_states(model: nn.Module, states: States | None, stack: str) -> tuple[nn.Module, States | None]:
    """The module to run for a stack, and the function that takes the states from it."""
    if stack == "decoder":
        return model, states or _decoder_states
    return measured_part(model, states), states


def _decoder_states(model: nn.Module, batch: Any) -> Sequence[Tensor]:
    return model(**batch, output_hidden_states=True, return_dict=True, use_cache=False).decoder_hidden_states


def random_twin(model: nn.Module, seed: int) -> nn.Module:
    """The same architecture with weights as its authors initialize them."""
    config: Any = getattr(model, "config", None)
    if config is None:
        raise InputError(
            f"{type(model).__name__} has no config to make a random one from: leave random_init at 0"
        )
    first = next(model.parameters())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        make: Callable[[], nn.Module] = getattr(model, "reinitialized", lambda: type(model)(config))
        return make().to(dtype=first.dtype, device=first.device)


def check_scales(scales: Sequence[float]) -> None:
    """Factors on the weights, which name what is measured with them."""
    if any(not 0 < c < float("inf") for c in scales):
        raise InputError(f"scales must be finite and above 0, not {', '.join(f'{c:g}' for c in scales)}")
    if len({f"{c:g}" for c in scales}) < len(scales):
        raise InputError("a scale is given twice, or two are the same to six digits")


def check_weights(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise InputError(
                f"parameter {name} is on the meta device and has no values: load the weights first"
            )
        if not bool(torch.isfinite(parameter).all()):
            raise InputError(f"{name} holds NaN or infinity: no level can be measured")


@contextmanager
def evaluating(model: nn.Module, *, training: bool = False, seed: int = 0) -> Iterator[None]:
    """Without gradients, and without dropout unless training; afterwards every module is in the mode it was in.

    seed: of dropout; the random numbers of torch are left as they were.
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
    """Compute in float64 where a float64 model asks for float32, as norms and rotary positions of transformers do."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


@contextmanager
def running(network: nn.Module, tokens: int) -> Iterator[None]:
    """What goes wrong within a pass of the network itself, in one line with the way out."""
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
    """Only that memory was not enough, in one line with the way out; other errors are left as they are."""
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
            f"{_name(network)}: out of memory in a batch{size}; take fewer tokens at once (batch_tokens), "
            "shorter sentences, dtype bfloat16, or leave out the exact limit"
        ) from error


def _name(network: nn.Module) -> str:
    return type(getattr(network, "network", network)).__name__
