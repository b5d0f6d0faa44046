"""Table 1 and section D of the paper as a table of networks, with the degree as printed and as it is.

The last column says what is left of ‖f(cθ)/cᵏ − limit‖ as c grows:

    EXACT          nothing at any c: homogeneous
    EXPONENTIAL    less than any power: approximately homogeneous, as Definition 3 wants it
    n              c⁻ⁿ: a limit with a degree, but not approximately homogeneous: eps, or terms of lower degree
"""

import math
from typing import Any, NamedTuple

import torch
from homogeneity import Fed, spread_norms
from torch import nn
from torch.nn import functional

from normgrowth.network.encoders import (
    Attention,
    Classifier,
    Encoder,
    EncoderConfig,
    Feedforward,
    LanguageModel,
    PaperPreNormBlock,
)

EXACT, EXPONENTIAL = math.inf, "exponential"
SMALL = dict(vocabulary=11, max_length=9, width=6, heads=2, feedforward=24)
IDS = torch.tensor([[1, 5, 3, 3, 8, 0, 2], [7, 7, 2, 9, 10, 4, 1]])


class Row(NamedTuple):
    component: str
    make: Any  # part -> fed with inputs of the degrees; None: a whole network, fed with tokens
    inputs: tuple[int, ...] | None
    printed: int | None  # None: not in the paper
    degree: int
    rest: Any


class Bias(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(6))

    def forward(self, x):
        return x + self.bias


class Head(nn.Module):
    """Definition 4, in plain operations."""

    def __init__(self, bias=False):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(6, 6, bias) for _ in range(3))

    def forward(self, x):
        scores = self.query(x) @ self.key(x).mT / math.sqrt(6)
        return scores.softmax(-1) @ self.value(x)


class Sublayer(nn.Module):
    """Definitions 5 and 6: LN(f(x)) + x. eps is 0, as in the paper, unless told."""

    def __init__(self, branch, bias=False, eps=0.0):
        super().__init__()
        config = EncoderConfig(**SMALL, bias=bias, causal=False, eps=eps)
        block = PaperPreNormBlock(config)
        self.f, self.norm = getattr(block, branch), getattr(block, f"{branch}_norm")
        self.more = (None,) if branch == "attention" else ()

    def forward(self, x):
        return self.norm(self.f(x, *self.more)) + x


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(11, 6)

    def forward(self, ids):
        return self.tokens(ids)


def linear(bias=False):
    return lambda: nn.Linear(6, 4, bias)


def norm(affine, eps=0.0, bias=True):
    return lambda: nn.LayerNorm(6, eps, affine, bias and affine)


def attention(bias=False, **options):
    config = EncoderConfig(**SMALL, bias=bias, causal=False, **options)
    return lambda: _WithoutMask(config)


class _WithoutMask(Attention):
    def forward(self, x):
        return super().forward(x, None)


def feedforward(bias=False):
    return lambda: Feedforward(EncoderConfig(**SMALL, bias=bias))


def network(kind, final_norm=False, bias=False, eps=0.0, layers=2, make=Encoder, **options):
    config = EncoderConfig(**SMALL, kind=kind, final_norm=final_norm, bias=bias, eps=eps, layers=layers)
    return lambda: make(config, **options)


def softmax():
    return lambda x: functional.softmax(x, -1)


def each(component, make, degrees, printed, degree, rest):
    """A row for each degree of the input; the other columns may depend on it."""
    of = lambda value, k: value(k) if callable(value) else value  # noqa: E731
    return [
        Row(f"{component} of {k}", make, (k,), of(printed, k), of(degree, k), of(rest, k)) for k in degrees
    ]


PAPER, USUAL, POST = "paper_pre_norm", "usual_pre_norm", "post_norm"
TABLE = [
    # Table 1
    *each("linear", linear(), range(4), lambda k: k + 1, lambda k: k + 1, EXACT),
    Row("bias of 1", Bias, (1,), 1, 1, EXACT),
    Row("bias of 0: the input vanishes", Bias, (0,), None, 1, 1),
    *each("bias of more: it vanishes,", Bias, (2, 3), None, lambda k: k, lambda k: k - 1),
    Row("affine of 0", linear(bias=True), (0,), 1, 1, EXACT),
    *each("affine of more: the bias vanishes,", linear(bias=True), (1, 2, 3), None, lambda k: k + 1, lambda k: k),
    *each("layer norm", norm(False), range(4), 0, 0, EXACT),
    *each("layer norm with eps", norm(False, eps=0.1), (1, 2), 0, 0, lambda k: 2 * k),
    *each("layer norm with affine", norm(True), range(4), 1, 1, EXACT),
    *each("layer norm with gain", norm(True, bias=False), range(4), 1, 1, EXACT),
    *each("layer norm with affine and eps", norm(True, eps=0.1), (1, 2), 1, 1, lambda k: 2 * k),
    *each("ReLU", nn.ReLU, range(4), lambda k: k, lambda k: k, EXACT),
    *(Row(f"sum of {k} and {k}", lambda: torch.add, (k, k), k, k, EXACT) for k in range(4)),
    *(Row(f"sum of 1 and {k}", lambda: torch.add, (1, k), None, k, k - 1) for k in (2, 3)),
    *(Row(f"product of 1 and {k}", lambda: torch.mul, (1, k), 1 + k, 1 + k, EXACT) for k in range(4)),
    # Section C.3
    Row("softmax of 0", softmax, (0,), 0, 0, EXACT),
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
    Row("paper's with classifier", network(PAPER, make=Classifier, classes=3), None, 2, 2, EXPONENTIAL),
    Row("paper's with classifier, biases", network(PAPER, bias=True, make=Classifier, classes=3), None, None, 2, 1),
    Row("paper's, tied language model", network(PAPER, make=LanguageModel, tied=True), None, 2, 2, EXPONENTIAL),
    Row("usual pre-norm encoder", network(USUAL), None, None, 3, 2),
    Row("usual pre-norm encoder, biases", network(USUAL, bias=True), None, None, 3, 1),
    Row("usual, final norm", network(USUAL, final_norm=True), None, None, 1, 2),
    Row("usual, final norm, biases", network(USUAL, final_norm=True, bias=True), None, None, 1, 1),
    Row("usual with classifier", network(USUAL, make=Classifier, classes=3), None, None, 4, 2),
    Row("usual, final norm, classifier", network(USUAL, final_norm=True, make=Classifier, classes=3), None, None, 2, 2),
    Row("post-norm encoder", network(POST), None, None, 1, 2),
    Row("post-norm encoder, biases", network(POST, bias=True), None, None, 1, 1),
    Row("post-norm with classifier", network(POST, make=Classifier, classes=3), None, None, 2, 2),
]  # fmt: skip


def built(row, seed=0):
    """The network of a row and its arguments."""
    torch.manual_seed(seed)
    if row.inputs is None:
        return spread_norms(row.make().double()), (IDS,)
    return Fed(row.make(), *row.inputs), ()
