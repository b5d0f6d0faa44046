"""Random small programs of operations that the limit has rules for, beside the same programs in mpmath."""

import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIZE = 4  # rows and columns of every value: means are exact
PARAMETERS, LEAVES = 3, 4  # the last leaf is a constant
VALUES = (-2.0, -1.0, 1.0, 2.0, 3.0, 0.5)
EPS = 0.5  # of norms
ZERO, ONE = mpmath.mpf(0), mpmath.mpf(1)
Step = tuple[Any, ...]  # name of an operation, positions of its arguments


class NoReference(ArithmeticError):
    """The program is not defined, or torch chooses among equal values in an unknown order."""


def each(f: Callable[..., Any], arguments: int = 1) -> Any:
    return np.frompyfunc(f, arguments, 1)


def rows(f: Callable[..., list[Any]]) -> Any:
    """A function of arrays from a function of their rows."""

    def apply(*arrays: Any) -> Any:
        found = np.empty(arrays[0].shape, dtype=object)
        for i in range(len(found)):
            found[i] = f(*(list(array[i]) for array in arrays))
        return found

    return apply


def spread(f: Callable[[list[Any]], Any]) -> Any:
    return rows(lambda row: [f(row)] * len(row))


def sigmoid(x: Any) -> Any:
    return ONE / (1 + mpmath.exp(-x)) if x >= 0 else mpmath.exp(x) / (1 + mpmath.exp(x))


def softplus(x: Any) -> Any:
    return max(x, ZERO) + mpmath.log(1 + mpmath.exp(-abs(x)))


def log_sum(row: list[Any]) -> Any:
    most = max(row)
    return most + mpmath.log(sum(mpmath.exp(x - most) for x in row))


def softmax(row: list[Any]) -> list[Any]:
    most = max(row)
    weights = [mpmath.exp(x - most) for x in row]
    total = sum(weights)
    return [w / total for w in weights]


def normed(row: list[Any], center: bool) -> list[Any]:
    away = [x - sum(row) / len(row) for x in row] if center else row
    size = mpmath.sqrt(sum(x * x for x in away) / len(row) + mpmath.mpf(EPS))
    return [x / size for x in away]


def running(f: Callable[[Any, Any], Any]) -> Any:
    def apply(row: list[Any]) -> list[Any]:
        found = row[:1]
        for x in row[1:]:
            found.append(f(found[-1], x))
        return found

    return rows(apply)


def largest_two(row: list[Any], values: list[Any]) -> list[Any]:
    order = sorted(range(SIZE), key=lambda k: row[k], reverse=True)
    if row[order[1]] == row[order[2]]:
        raise NoReference
    return [values[k] if k in order[:2] else ZERO for k in range(SIZE)]


def in_order(row: list[Any], values: list[Any]) -> list[Any]:
    return [values[k] for k in sorted(range(SIZE), key=lambda k: row[k])]


def at_largest(row: list[Any], values: list[Any]) -> list[Any]:
    return [values[max(range(SIZE), key=lambda k: row[k])]] * SIZE


def take_two(a: Tensor, b: Tensor) -> Tensor:
    chosen = a.topk(2, -1).indices
    return b * torch.zeros_like(b).scatter(-1, chosen, torch.ones_like(b))


def over_row(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: f(x).expand_as(x)


greater = each(lambda x, y: ONE if x > y else ZERO, 2)
Pair = tuple[Callable[..., Tensor], Callable[..., Any]]  # the operation in torch, and in mpmath
SATURATING: dict[str, Pair] = {
    "sigmoid": (torch.sigmoid, each(sigmoid)),
    "tanh": (torch.tanh, each(mpmath.tanh)),
    "softplus": (lambda x: -F.logsigmoid(-x), each(softplus)),
    "logaddexp": (lambda x: torch.logaddexp(x, torch.zeros_like(x)), each(softplus)),
    "logsigmoid": (F.logsigmoid, each(lambda x: -softplus(-x))),
    "exp": (lambda x: torch.exp(-x.abs()), each(lambda x: mpmath.exp(-abs(x)))),
    "elu": (F.elu, each(lambda x: x if x > 0 else mpmath.exp(x) - 1)),
    "silu": (F.silu, each(lambda x: x * sigmoid(x))),
    "gelu": (F.gelu, each(lambda x: x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2)),
    "softmax": (lambda x: x.softmax(-1), rows(softmax)),
    "log_softmax": (lambda x: x.log_softmax(-1), rows(lambda row: [x - log_sum(row) for x in row])),
    "logsumexp": (over_row(lambda x: x.logsumexp(-1, keepdim=True)), spread(log_sum)),
}
UNARY: dict[str, Pair] = SATURATING | {
    "neg": (torch.neg, each(lambda x: -x)),
    "abs": (torch.abs, each(abs)),
    "relu": (torch.relu, each(lambda x: max(x, ZERO))),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.25), each(lambda x: x if x > 0 else x / 4)),
    "clamp": (lambda x: x.clamp(-1, 2), each(lambda x: min(max(x, -ONE), 2 * ONE))),
    "square": (torch.square, each(lambda x: x * x)),
    "root": (lambda x: x.abs().sqrt(), each(lambda x: mpmath.sqrt(abs(x)))),
    "reciprocal": (lambda x: 1 / (1 + x.abs()), each(lambda x: 1 / (1 + abs(x)))),
    "log": (lambda x: x.sigmoid().log(), each(lambda x: mpmath.log(sigmoid(x)))),
    "log1p": (lambda x: x.sigmoid().log1p(), each(lambda x: mpmath.log(1 + sigmoid(x)))),
    "one minus": (lambda x: 1 - x, each(lambda x: 1 - x)),
    "one plus": (lambda x: x + 1, each(lambda x: 1 + x)),
    "half": (lambda x: x * 0.5, each(lambda x: x / 2)),
    "layer_norm": (lambda x: F.layer_norm(x, (SIZE,), eps=EPS), rows(lambda row: normed(row, True))),
    "rms_norm": (lambda x: F.rms_norm(x, (SIZE,), eps=EPS), rows(lambda row: normed(row, False))),
    "sum": (over_row(lambda x: x.sum(-1, keepdim=True)), spread(sum)),
    "mean": (over_row(lambda x: x.mean(-1, keepdim=True)), spread(lambda row: sum(row) / len(row))),
    "amax": (over_row(lambda x: x.amax(-1, keepdim=True)), spread(max)),
    "behind": (lambda x: x - x.amax(-1, keepdim=True), rows(lambda row: [x - max(row) for x in row])),
    "cumsum": (lambda x: x.cumsum(-1), running(lambda a, b: a + b)),
    "cumprod": (lambda x: x.cumprod(-1), running(lambda a, b: a * b)),
    "prod": (
        over_row(lambda x: x.prod(-1, keepdim=True)),
        spread(lambda row: row[0] * row[1] * row[2] * row[3]),
    ),
    "flip": (lambda x: x.flip(-1), lambda a: a[:, ::-1].copy()),
    "roll": (lambda x: x.roll(1, 0), lambda a: np.roll(a, 1, 0)),
    "sort": (lambda x: x.sort(-1).values, rows(sorted)),
}
RANKING: dict[str, Pair] = {
    "topk": (take_two, rows(largest_two)),
    "sort by": (lambda a, b: b.gather(-1, a.sort(dim=-1, stable=True).indices), rows(in_order)),
    "argmax": (lambda a, b: b.gather(-1, a.argmax(-1, keepdim=True)).expand_as(b), rows(at_largest)),
    "gt": (lambda a, b: (a > b).to(a.dtype) * b, lambda a, b: greater(a, b) * b),
    "maximum": (torch.maximum, each(max, 2)),
    "div": (torch.div, each(lambda x, y: x / y, 2)),
}
BINARY: dict[str, Pair] = RANKING | {
    "add": (torch.add, lambda a, b: a + b),
    "sub": (torch.sub, lambda a, b: a - b),
    "mul": (torch.mul, lambda a, b: a * b),
    "minimum": (torch.minimum, each(min, 2)),
    "lerp": (lambda a, b: torch.lerp(a, b, 0.25), lambda a, b: a + (b - a) / 4),
    "matmul": (lambda a, b: a @ b.T, lambda a, b: a.dot(b.T)),
    "addmm": (lambda a, b: torch.addmm(a, a, b.T), lambda a, b: a + a.dot(b.T)),
    "attention": (lambda a, b: (a @ b.T).softmax(-1) @ b, lambda a, b: rows(softmax)(a.dot(b.T)).dot(b)),
    "where": (
        lambda a, b: torch.where(a > b, a, torch.ones_like(a)),
        lambda a, b: np.where(greater(a, b) == ONE, a, ONE),
    ),
}
OPERATIONS = UNARY | BINARY


def random_steps(draw: random.Random) -> list[Step]:
    """Some saturating functions of the parameters, operations on their results, and last a ranking or a ratio."""
    steps: list[Step] = []

    def add(names: Any, first: int, other: int) -> None:
        name = draw.choice(list(names))
        steps.append((name, first) if name in UNARY else (name, first, other))

    for _ in range(draw.randint(1, 3)):
        add(SATURATING, draw.randrange(PARAMETERS), 0)
    for _ in range(draw.randint(1, 4)):
        made = range(LEAVES, LEAVES + len(steps))
        other = draw.choice(made) if draw.random() < 0.75 else draw.randrange(LEAVES)
        add(UNARY if draw.random() < 0.45 else BINARY, draw.choice(made), other)
    last = LEAVES + len(steps) - 1
    add(RANKING, last, draw.choice([*range(PARAMETERS), last]))
    return steps


def random_leaves(draw: random.Random) -> list[Tensor]:
    """Three parameters and a constant; equal rows and entries make ties."""
    leaves = [
        torch.tensor([[draw.choice(VALUES) for _ in range(SIZE)] for _ in range(SIZE)], dtype=torch.float64)
        for _ in range(LEAVES)
    ]
    if draw.random() < 0.6:
        leaves[1][1] = leaves[1][0]
    if draw.random() < 0.4:
        leaves[0][0, 1] = leaves[0][0, 0]
    if draw.random() < 0.3:
        leaves[2] = -leaves[0]
    return leaves


def run(steps: list[Step], leaves: list[Any], kind: int) -> Any:
    """The last value that the steps compute. kind: 0 in torch, 1 in mpmath."""
    values = list(leaves)
    needed = {LEAVES + len(steps) - 1}
    for i in reversed(range(len(steps))):
        if LEAVES + i in needed:
            needed |= set(steps[i][1:])
    for i, (name, *places) in enumerate(steps):
        wanted = LEAVES + i in needed
        values.append(OPERATIONS[name][kind](*(values[k] for k in places)) if wanted else None)
    return values[-1]


class Program(nn.Module):
    def __init__(self, steps: list[Step], leaves: list[Tensor]) -> None:
        super().__init__()
        self.parameters_ = nn.ParameterList(leaves[:PARAMETERS])
        self.steps, self.constants = steps, leaves[PARAMETERS:]

    def forward(self) -> Tensor:
        return run(self.steps, [*self.parameters_, *self.constants], 0)


def errors(steps: list[Step], leaves: list[Tensor], c: int, found: Tensor, degree: Fraction | None) -> Any:
    """The distance of the scaled program over c^degree from its limit, relative to 1 + the limit."""
    exact = each(lambda x: mpmath.mpf(float(x)))
    arrays = [exact(leaf.numpy()) for leaf in leaves]
    try:
        value = run(steps, [*(a * c for a in arrays[:PARAMETERS]), *arrays[PARAMETERS:]], 1)
    except (ZeroDivisionError, ValueError) as error:
        raise NoReference from error
    power = Fraction(0) if degree is None else degree
    value = value / mpmath.mpf(c) ** (mpmath.mpf(power.numerator) / power.denominator)
    limit = exact(found.detach().numpy())
    return (each(abs)(value - limit) / (1 + each(abs)(limit))).astype(float)


def approaches(steps: list[Step], leaves: list[Tensor], found: Tensor, degree: Fraction | None) -> bool:
    """Whether the scaled program approaches its limit as c grows; more digits if few do not show it.

    The last c are small: exp(-36 c^2) beside 1 has more than 6,000 digits at larger ones.
    """
    for near, far, digits in ((10, 24, 400), (24, 96, 6000), (6, 16, 6000)):
        with mpmath.workdps(digits):
            first, second = (errors(steps, leaves, c, found, degree) for c in (near, far))
        if bool(((second < 1e-6) | (second < 0.75 * first)).all()):
            return True
    return False
