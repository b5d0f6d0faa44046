"""The numbers of the stage `theory`: degrees, limits, gradients and constructed networks, all small and in float64."""

import math
from collections.abc import Callable
from itertools import product
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from normgrowth.limit.saturated import saturated
from normgrowth.network.models import constructions
from normgrowth.network.scaled_weights import scaled_weights
from normgrowth.paper.evidence import (
    ComponentDegree,
    ConstructionErrors,
    DistanceFromLimit,
    Theory,
    TieWeights,
    Vanishing,
)
from normgrowth.paper.stages.stage import StageContext, StageSettings
from normgrowth.paper.stages.table1_networks import EXPONENTIAL, TABLE, Row, built

V = TypeVar("V")
LOW, HIGH = 1e4, 1e6  # scales between which degrees are measured
LONGEST = {"anbn": 10, "anbncn": 8, "dyck1": 10, "majority": 10}  # length in symbols of the longest strings


def theory(context: StageContext | None = None, settings: StageSettings | None = None) -> Theory:
    """All numbers of the stage, which has no settings."""
    del settings
    names = [*(row.component for row in TABLE), *NETWORKS, "tie", "vanishing", *MEMBERS]
    finished = iter(enumerate(names, 1))

    def told(value: V) -> V:
        place, name = next(finished)
        if context:
            context.done(place, len(names), name)
        return value

    return Theory(
        components={row.component: told(table1(row)) for row in TABLE},
        limits={name: told(limit(make)) for name, make in NETWORKS.items()},
        tie=told(tie()),
        vanishing=told(vanishing()),
        constructions={name: told(construction(name, member)) for name, member in MEMBERS.items()},
    )


# Table 1 and section D ---------------------------------------------------------------------------------


def table1(row: Row) -> ComponentDegree:
    model, inputs = built(row)
    found = saturated(model)
    found(*inputs)
    degree = found.degrees[""]
    gradient_degree = euler = math.nan
    # If the limit is a step function, the gradient falls faster than any power.
    smooth = any(True for _ in model.parameters()) and (row.degree, row.rest) != (0, EXPONENTIAL)
    if smooth:
        low, high = (gradient(model, c, *inputs) for c in (LOW, HIGH))
        gradient_degree = slope(lambda c: low[1] if c == LOW else high[1])
        if row.degree:
            euler = high[2] / (row.degree * high[0]) - 1
    return ComponentDegree(
        printed=math.nan if row.printed is None else float(row.printed),
        computed=math.nan if degree is None else float(degree),
        measured=slope(lambda c: scaled(model, c, *inputs)),
        gradient=gradient_degree,
        euler=euler,
    )


def scaled(model: nn.Module, c: float, *inputs: Tensor) -> Tensor:
    with scaled_weights(model, c), torch.no_grad():
        return model(*inputs)


def slope(f: Callable[[float], Tensor]) -> float:
    """The slope of log‖f(c)‖ against log c."""
    return float(torch.log(f(HIGH).norm() / f(LOW).norm())) / math.log(HIGH / LOW)


def gradient(model: nn.Module, c: float, *inputs: Tensor) -> tuple[float, Tensor, float]:
    """f, ∇f and θ·∇f at cθ, where f is a fixed random combination of outputs."""
    with scaled_weights(model, c), sdpa_kernel(SDPBackend.MATH):  # the fused backward is wrong at large c
        out = model(*inputs)
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(5), dtype=out.dtype)
        f = (weights * out).sum()
        parameters = list(model.parameters())
        found = torch.autograd.grad(f, parameters, allow_unused=True, materialize_grads=True)
        inner = sum((p * g).sum().item() for p, g in zip(parameters, found, strict=True))
    return f.item(), torch.cat([g.flatten() for g in found]), inner


# Limits ------------------------------------------------------------------------------------------------


def _architecture(name: str) -> nn.Module:
    import transformers as t

    usual: dict[str, Any] = {
        "hidden_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "vocab_size": 99,
    }
    t5: dict[str, Any] = {
        "d_model": 48,
        "d_kv": 12,
        "d_ff": 96,
        "num_layers": 3,
        "num_heads": 4,
        "vocab_size": 99,
    }
    gpt: dict[str, Any] = {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 64, "vocab_size": 99}
    gpt |= {"bos_token_id": 1, "eos_token_id": 2}
    torch.manual_seed(0)
    model: nn.Module = {
        "BERT": lambda: t.BertModel(t.BertConfig(**usual)),
        "RoBERTa": lambda: t.RobertaModel(t.RobertaConfig(**usual)),
        "GPT-2": lambda: t.GPT2Model(t.GPT2Config(**gpt)),
        "T5": lambda: t.T5EncoderModel(t.T5Config(**t5)),
        "Llama": lambda: t.LlamaModel(t.LlamaConfig(**usual)),
    }[name]()
    return model.double().eval()


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    name: lambda name=name: _architecture(name) for name in ("BERT", "RoBERTa", "GPT-2", "T5")
}


def _ids() -> Tensor:
    return torch.randint(3, 99, (4, 12), generator=torch.Generator().manual_seed(0))


def limit(make: Callable[[], nn.Module], c: float = 1e4) -> DistanceFromLimit:
    """Prop. 1 and 2 for a network with random weights: degree, distance from the limit, cosine to it."""
    model, ids = make(), _ids()
    exact = saturated(model)
    wanted = exact(input_ids=ids).last_hidden_state
    degree = float(exact.degrees[""] or 0)
    with scaled_weights(model, c), torch.no_grad():
        found = model(input_ids=ids).last_hidden_state
    return DistanceFromLimit(
        degree=degree,
        away=float((found / c**degree - wanted).norm() / wanted.norm()),
        cosine=float(torch.cosine_similarity(found, wanted, dim=-1).mean()),
    )


class TiedSoftmax(nn.Module):
    """softmax(θ₁θ₃, θ₂θ₃): at θ′ = (1, 1, 1) the scores tie."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self) -> Tensor:
        return (self.theta[:2] * self.theta[2]).softmax(-1)


def tie(t: float = 1e6) -> TieWeights:
    """θ_t = tθ′ + u/√t: ‖θ_t − tθ′‖ → 0, but scores differ by √t: the limit is not the saturated network of θ′."""
    model = TiedSoftmax()
    theta = t * torch.ones(3, dtype=torch.float64) + torch.tensor([1 / math.sqrt(t), 0.0, 0.0])
    moved = functional_call(model, {"theta": theta}, ())
    return TieWeights(saturated=float(saturated(model)().max()), moved=float(moved.detach().max()))


def vanishing(c: float = 1e3) -> Vanishing:
    """The effect of later attention, which vanishes as weights grow: gated feedforwards have degree 5, attention 3."""
    model, ids = _architecture("Llama"), _ids()

    def states(scale: float) -> Tensor:
        with scaled_weights(model, scale), torch.no_grad():
            return model(input_ids=ids).last_hidden_state

    whole = [states(scale) for scale in (1.0, c)]
    layers: Any = model.layers
    for layer in layers[1:]:
        nn.init.zeros_(layer.self_attn.o_proj.weight)
    without = [states(scale) for scale in (1.0, c)]
    turned = [
        1 - float(torch.cosine_similarity(a, b, dim=-1).mean()) for a, b in zip(whole, without, strict=True)
    ]
    return Vanishing(*turned)


# Section 4.2 -------------------------------------------------------------------------------------------


def _balanced(word: str) -> bool:
    depth = 0
    for symbol in word:
        depth += 1 if symbol == "(" else -1
        if depth < 0:
            return False
    return depth == 0


MEMBERS: dict[str, Callable[[str], bool]] = {
    "anbn": lambda word: word == "a" * (len(word) // 2) + "b" * (len(word) // 2),
    "anbncn": lambda word: word == "".join(symbol * (len(word) // 3) for symbol in "abc"),
    "dyck1": _balanced,
    "majority": lambda word: word.count("a") > word.count("b"),
}


def construction(name: str, member: Callable[[str], bool]) -> ConstructionErrors:
    """The errors of a network built by hand, on all strings up to a given length."""
    longest = LONGEST[name]
    network = getattr(constructions, name)(max_length=longest + 2)
    with torch.no_grad():
        scale = constructions.sufficient_scale(network, longest) or 1.0
    alphabet = [
        symbol for symbol in network.symbols if symbol not in (constructions.BEGIN, constructions.END)
    ]
    strings = wrong = wrong_soft = 0
    for length in range(1, longest + 1):
        words = ["".join(letters) for letters in product(alphabet, repeat=length)]
        tokens, wanted = network.encode(words), torch.tensor([member(word) for word in words])
        with torch.no_grad():
            hard, soft = network(tokens, saturated=True)[:, 0] > 0, network.scaled(tokens, scale)[:, 0] > 0
        strings += len(words)
        wrong += int((hard != wanted).sum())
        wrong_soft += int((soft != wanted).sum())
    return ConstructionErrors(float(strings), float(wrong), float(wrong_soft), float(scale))
