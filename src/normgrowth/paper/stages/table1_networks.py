"""Table 1 and section D of the paper as a table of networks, with the printed and the correct degree.

The last column says how ‖f(cθ)/cᵏ − limit‖ falls as c grows:

    EXACT          it is 0 for every c: the network is homogeneous
    EXPONENTIAL    faster than any power: approximately homogeneous in the sense of Definition 3
    n              as c⁻ⁿ: the limit has a degree, but the network is not approximately homogeneous (eps, or terms of
                   lower degree)
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from normgrowth.network.models.encoders import (
    Attention,
    Classifier,
    Encoder,
    EncoderConfig,
    Feedforward,
    Kind,
    LanguageModel,
    PaperPreNormBlock,
)

EXACT, EXPONENTIAL = math.inf, "exponential"
SMALL: dict[str, Any] = {"vocabulary": 11, "max_length": 9, "width": 6, "heads": 2, "feedforward": 24}
Make = Callable[[], Any]
IDS = torch.tensor([[1, 5, 3, 3, 8, 0, 2], [7, 7, 2, 9, 10, 4, 1]])


class Row(NamedTuple):
    component: str
    make: Make
    inputs: tuple[int, ...] | None  # degrees of its inputs; None for a whole network, which reads tokens
    printed: int | None  # None if not in the paper
    degree: int
    rest: Any


class Grown(nn.Module):
    """An input of degree k: data times k parameters, element by element. No element is near 0."""

    data: Tensor

    def __init__(self, k: int, *shape: int) -> None:
        super().__init__()
        self.register_buffer("data", _away_from_zero(shape))
        self.factors = nn.ParameterList(nn.Parameter(_away_from_zero(shape)) for _ in range(k))

    def forward(self) -> Tensor:
        found = self.data
        for factor in self.factors:
            found = factor * found
        return found


class Fed(nn.Module):
    """part(x₁, x₂, ...) with inputs xᵢ of degree kᵢ."""

    def __init__(self, part: Any, *degrees: int, shape: tuple[int, ...] = (2, 5, 6)) -> None:
        super().__init__()
        self.inputs = nn.ModuleList(Grown(k, *shape) for k in degrees)
        self.part = part.double() if isinstance(part, nn.Module) else part
        spread_norms(self)

    def forward(self) -> Tensor:
        return self.part(*(x() for x in self.inputs))


def _away_from_zero(shape: Sequence[int]) -> Tensor:
    x = torch.randn(*shape, dtype=torch.float64)
    return x + 0.2 * x.sign()


def spread_norms(model: nn.Module) -> Any:
    """Randomize gains and biases, so that no test uses only gains of 1 and biases of 0."""
    for module in model.modules():
        if isinstance(module, nn.LayerNorm) and module.weight is not None:
            nn.init.normal_(module.weight, 1, 0.3)
            if module.bias is not None:
                nn.init.normal_(module.bias, 0, 0.3)
    return model


class Bias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


class Head(nn.Module):
    """An attention head by Definition 4, in basic operations."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(6, 6, bias) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).mT / math.sqrt(6)
        return scores.softmax(-1) @ self.value(x)


class Sublayer(nn.Module):
    """A sublayer by Definitions 5 and 6: LN(f(x)) + x. eps is 0 by default, as in the paper."""

    def __init__(self, branch: str, bias: bool = False, eps: float = 0.0) -> None:
        super().__init__()
        config = EncoderConfig(**SMALL, bias=bias, causal=False, eps=eps)
        block = PaperPreNormBlock(config)
        self.f, self.norm = getattr(block, branch), getattr(block, f"{branch}_norm")
        self.more = (None,) if branch == "attention" else ()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.f(x, *self.more)) + x


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 6)

    def forward(self, ids: Tensor) -> Tensor:
        return self.tokens(ids)


class WithoutMask(Attention):
    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(x, None)


def linear(bias: bool = False) -> Make:
    return lambda: nn.Linear(6, 4, bias)


def norm(affine: bool, eps: float = 0.0, bias: bool = True) -> Make:
    return lambda: nn.LayerNorm(6, eps, affine, bias and affine)


def attention(bias: bool = False) -> Make:
    return lambda: WithoutMask(EncoderConfig(**SMALL, bias=bias, causal=False))


def feedforward(bias: bool = False) -> Make:
    return lambda: Feedforward(EncoderConfig(**SMALL, bias=bias))


def network(kind: Kind, make: Any = Encoder, of: dict[str, Any] | None = None, **options: Any) -> Make:
    config = EncoderConfig(**SMALL, kind=kind, **{"bias": False, "eps": 0.0, "layers": 2, **options})
    return lambda: make(config, **(of or {}))


def softmax() -> Callable[[Tensor], Tensor]:
    return lambda x: functional.softmax(x, -1)


def each(
    component: str, make: Make, degrees: Sequence[int], printed: Any, degree: Any, rest: Any
) -> list[Row]:
    """A row for each degree k of the input; the other columns may be functions of k."""
    name = component if "{k}" in component else f"{component}, input of degree {{k}}"

    def of(value: Any, k: int) -> Any:
        return value(k) if callable(value) else value

    return [Row(name.format(k=k), make, (k,), of(printed, k), of(degree, k), of(rest, k)) for k in degrees]


PAPER, USUAL, POST = "paper_pre_norm", "usual_pre_norm", "post_norm"
THREE, TIED = {"classes": 3}, {"tied": True}
TABLE = [
    # Table 1
    *each("linear", linear(), range(4), lambda k: k + 1, lambda k: k + 1, EXACT),
    Row("bias added to degree 1", Bias, (1,), 1, 1, EXACT),
    Row("bias added to degree 0 (input vanishes)", Bias, (0,), None, 1, 1),
    *each("bias added to degree {k} (vanishes)", Bias, (2, 3), None, lambda k: k, lambda k: k - 1),
    Row("affine, input of degree 0", linear(bias=True), (0,), 1, 1, EXACT),
    *each("affine, degree {k} (bias vanishes)", linear(bias=True), (1, 2, 3), None, lambda k: k + 1, lambda k: k),
    *each("layer norm", norm(False), range(4), 0, 0, EXACT),
    *each("layer norm with eps", norm(False, eps=0.1), (1, 2), 0, 0, lambda k: 2 * k),
    *each("layer norm with affine", norm(True), range(4), 1, 1, EXACT),
    *each("layer norm with gain", norm(True, bias=False), range(4), 1, 1, EXACT),
    *each("layer norm with affine and eps", norm(True, eps=0.1), (1, 2), 1, 1, lambda k: 2 * k),
    *each("ReLU", nn.ReLU, range(4), lambda k: k, lambda k: k, EXACT),
    *(Row(f"sum of degrees {k} and {k}", lambda: torch.add, (k, k), k, k, EXACT) for k in range(4)),
    *(Row(f"sum of degrees 1 and {k}", lambda: torch.add, (1, k), None, k, k - 1) for k in (2, 3)),
    *(Row(f"product of degrees 1 and {k}", lambda: torch.mul, (1, k), 1 + k, 1 + k, EXACT) for k in range(4)),
    # Section C.3
    Row("softmax, input of degree 0", softmax, (0,), 0, 0, EXACT),
    *each("softmax", softmax, (1, 2), 0, 0, EXPONENTIAL),
    *each("sigmoid", nn.Sigmoid, (1, 2), 0, 0, EXPONENTIAL),
    *each("tanh", nn.Tanh, (1, 2), 0, 0, EXPONENTIAL),
    # Section D
    Row("input embedding", Embedding, None, 1, 1, EXACT),
    Row("attention head (Prop. 4)", Head, (1,), 1, 2, EXPONENTIAL),
    Row("attention head, biases", lambda: Head(bias=True), (1,), None, 2, 1),
    Row("multi-head attention and W", attention(), (1,), 2, 3, EXPONENTIAL),
    Row("multi-head attention and W, biases", attention(bias=True), (1,), None, 3, 1),
    Row("attention sublayer (Prop. 5)", lambda: Sublayer("attention"), (1,), 1, 1, EXPONENTIAL),
    Row("attention sublayer with eps", lambda: Sublayer("attention", eps=1e4), (1,), 1, 1, 6),
    Row("attention sublayer, biases", lambda: Sublayer("attention", bias=True), (1,), None, 1, 1),
    Row("feedforward", feedforward(), (1,), 3, 3, EXACT),
    Row("feedforward, biases", feedforward(bias=True), (1,), None, 3, 1),
    Row("feedforward sublayer (Prop. 6)", lambda: Sublayer("feedforward"), (1,), 1, 1, EXACT),
    Row("feedforward sublayer, biases", lambda: Sublayer("feedforward", bias=True), (1,), None, 1, 1),
    Row("paper's encoder", network(PAPER), None, 1, 1, EXPONENTIAL),
    Row("paper's encoder, 4 layers", network(PAPER, layers=4), None, 1, 1, EXPONENTIAL),
    Row("paper's encoder, biases", network(PAPER, bias=True), None, None, 1, 1),
    Row("paper's with classifier", network(PAPER, make=Classifier, of=THREE), None, 2, 2, EXPONENTIAL),
    Row("paper's with classifier, biases", network(PAPER, bias=True, make=Classifier, of=THREE), None, None, 2, 1),
    Row("paper's, tied language model", network(PAPER, make=LanguageModel, of=TIED), None, 2, 2, EXPONENTIAL),
    Row("usual pre-norm encoder", network(USUAL), None, None, 3, 2),
    Row("usual pre-norm encoder, biases", network(USUAL, bias=True), None, None, 3, 1),
    Row("usual, final norm", network(USUAL, final_norm=True), None, None, 1, 2),
    Row("usual, final norm, biases", network(USUAL, final_norm=True, bias=True), None, None, 1, 1),
    Row("usual with classifier", network(USUAL, make=Classifier, of=THREE), None, None, 4, 2),
    Row("usual, final norm, classifier", network(USUAL, final_norm=True, make=Classifier, of=THREE), None, None, 2, 2),
    Row("post-norm encoder", network(POST), None, None, 1, 2),
    Row("post-norm encoder, biases", network(POST, bias=True), None, None, 1, 1),
    Row("post-norm with classifier", network(POST, make=Classifier, of=THREE), None, None, 2, 2),
]  # fmt: skip


def built(row: Row, seed: int = 0) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The network of a row and its arguments."""
    torch.manual_seed(seed)
    if row.inputs is None:
        return spread_norms(row.make().double()), (IDS,)
    return Fed(row.make(), *row.inputs), ()
