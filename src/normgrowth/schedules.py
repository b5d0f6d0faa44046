"""Schedules: the learning rate η as a function of the step.

Steps are counted from 0: η(t) is the rate of the update after t earlier updates, as in PyTorch's `LambdaLR`.
The weights of a checkpoint at step s have received updates with η(0), …, η(s − 1). A warm-up of w steps gives
η(t) = lr·t/w for t < w, so η(0) is 0, as in transformers; without a warm-up, η(0) is lr. After its last step,
a schedule stays at `end`.

Call a schedule with a number or an array of steps, which need not be integers. `integral` computes ∫η and ∫η² in
closed form. `parse` reads a schedule from text; `str` converts it back.

    constant(3e-4)                              linear(1e-3, steps=10_000, warmup=500)
    cosine(1e-3, steps=10_000, end=1e-4)        inverse_sqrt(5e-4, warmup=4_000)
    inverse_sqrt(0.01, hold=10_000)             T5's 1/√max(t, 10⁴)
    inverse_sqrt(1.0)                           the 1/√t of §5.3, with η(0) = η(1) = 1
    recorded({0: 1e-3, 500: 1e-4})              the rates that a run logged, interpolated linearly
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import InputError

Floats = NDArray[np.float64]
Curve = Callable[[Floats], Floats]


RECORDED = "recorded"
SEVERAL = " and "  # between the classes of several optimizers of a run
STRAIGHT = 1e-9  # tolerance, relative to the rates, for a recorded rate to be on a line


@dataclass(frozen=True)
class OptimizerGroup:
    """Settings of an optimizer for a group of parameters.

    parameters: the number of values in the group. options: other settings that affect the steps, such as eps.
    """

    parameters: int
    weight_decay: float = 0.0
    decoupled: bool = False  # True: ηλθ is subtracted from the weights; False: λθ is added to the gradient
    betas: tuple[float, float] | None = None  # of Adam and its variants
    momentum: float | None = None  # of SGD
    options: dict[str, bool | float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Shape:
    """The decay of the rate: h with h(0) = 1, and ∫h and ∫h² from 0, in units of the decay's length."""

    h: Curve
    once: Curve
    twice: Curve


# u is the time since the end of the warm-up, in units of the decay's length; h is constant from u = 1 on.
SHAPES = {
    "constant": Shape(np.ones_like, lambda u: u, lambda u: u),
    "linear": Shape(
        lambda u: 1 - np.minimum(u, 1),
        lambda u: np.minimum(u, 1) * (1 - np.minimum(u, 1) / 2),
        lambda u: (1 - (1 - np.minimum(u, 1)) ** 3) / 3,
    ),
    "cosine": Shape(
        lambda u: (1 + np.cos(np.pi * np.minimum(u, 1))) / 2,
        lambda u: (np.minimum(u, 1) + _sin(np.minimum(u, 1))) / 2,
        lambda u: (1.5 * np.minimum(u, 1) + 2 * _sin(np.minimum(u, 1)) + _sin(2 * np.minimum(u, 1)) / 4) / 4,
    ),
    # Here u is the step, divided by the step at which the decay begins.
    "inverse_sqrt": Shape(
        lambda u: 1 / np.sqrt(np.maximum(u, 1)),
        lambda u: np.minimum(u, 1) + 2 * (np.sqrt(np.maximum(u, 1)) - 1),
        lambda u: np.minimum(u, 1) + np.log(np.maximum(u, 1)),
    ),
}


def _sin(u: Floats) -> Floats:
    """∫cos(πu)."""
    return np.sin(np.pi * u) / np.pi


@dataclass(frozen=True)
class Schedule:
    """η(t), created by `constant`, `linear`, `cosine`, `inverse_sqrt`, `recorded` or `parse`.

    lr: the peak. steps: the step at which the decay ends. warmup: the number of warm-up steps. end: the rate after
    `steps`. hold: inverse_sqrt stays at its peak up to this step. points: steps and rates of a recorded schedule.
    """

    shape: str
    lr: float
    steps: int | None = None
    warmup: int = 0
    end: float = 0.0
    hold: int = 0
    points: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        # From JSON they come as lists.
        object.__setattr__(self, "points", tuple((int(step), float(rate)) for step, rate in self.points))
        if self.shape == RECORDED and self.points:
            return
        if self.shape not in SHAPES:
            raise InputError(f"unknown schedule {self.shape!r}; choose one of {', '.join(SHAPES)}")
        for name in ("lr", "end"):
            value = getattr(self, name)
            if not (isfinite(value) and value >= 0):
                raise InputError(f"schedule {self.shape}: {name} must be >= 0, got {value}")
        for name in ("steps", "warmup", "hold"):
            value = getattr(self, name)
            if value is not None and not (float(value).is_integer() and value >= 0):
                raise InputError(
                    f"schedule {self.shape}: {name} must be a whole number of steps, got {value}"
                )
        if self.shape in ("linear", "cosine") and (self.steps is None or self.steps <= self.warmup):
            raise InputError(
                f"schedule {self.shape}: steps ({self.steps}) must be greater than warmup ({self.warmup})"
            )

    @overload
    def __call__(self, step: float) -> float: ...
    @overload
    def __call__(self, step: NDArray[Any] | Sequence[float]) -> Floats: ...
    def __call__(self, step: Any) -> Any:
        """η at a step, or at each step of an array."""
        t = _checked(step)
        if self.points:
            eta = np.interp(t, *self._curve())
            return eta if np.ndim(step) else float(eta)
        eta = self.end + (self.lr - self.end) * SHAPES[self.shape].h(self._unit(t))
        if self.warmup:
            eta = np.where(t < self.warmup, self.lr * t / self.warmup, eta)
        return eta if np.ndim(step) else float(eta)

    @overload
    def integral(self, step: float, power: int = 1) -> float: ...
    @overload
    def integral(self, step: NDArray[Any] | Sequence[float], power: int = 1) -> Floats: ...
    def integral(self, step: Any, power: int = 1) -> Any:
        """∫η dt (power 1) or ∫η² dt (power 2) from 0 to a step, in closed form."""
        if power not in (1, 2):
            raise InputError(f"power must be 1 or 2, got {power}")
        if self.points:
            found = self._recorded_integral(_checked(step), power)
            return found if np.ndim(step) else float(found)
        t, w = _checked(step), float(self.warmup)
        _, unit = self._decay()
        after = np.maximum(t, w)
        body = unit * (self._primitive(self._unit(after), power) - self._primitive(self._unit(w), power))
        if self.warmup:
            # ∫(lr·t/w)^p = lr^p·t·(t/w)^p/(p + 1)
            before = np.minimum(t, w)
            body = body + self.lr**power * before * (before / w) ** power / (power + 1)
        return body if np.ndim(step) else float(body)

    def knots(self) -> tuple[float, ...]:
        """The steps at which the curve has a corner."""
        if self.points:
            return tuple(float(step) for step, _ in self.points if step)
        origin, unit = self._decay()
        corners = {float(self.warmup)} | (set() if self.shape == "constant" else {origin + unit})
        return tuple(sorted(corners - {0.0}))

    def __str__(self) -> str:
        if self.points:
            rates = [rate for _, rate in self.points]
            return f"recorded learning rates, {min(rates):g} to {max(rates):g}"
        values = {
            "lr": self.lr,
            "steps": self.steps,
            "warmup": self.warmup,
            "end": self.end,
            "hold": self.hold,
        }
        given = [
            f"{k}={v!r}"
            for k, v in values.items()
            if k in KEYWORDS[self.shape] and (v or k in ("lr", "steps"))
        ]
        return f"{self.shape}:{','.join(given)}"

    def _curve(self) -> tuple[Floats, Floats]:
        """Steps and rates of a recorded schedule."""
        steps, rates = np.array(self.points, np.float64).T
        return steps, rates

    def _recorded_integral(self, t: Floats, power: int) -> Floats:
        """The exact integral of the linear interpolation, which is constant outside the recorded steps."""
        steps, rates = self._curve()
        corners = np.unique(np.concatenate([[0.0], steps, np.ravel(t)]))
        eta = np.interp(corners, steps, rates)
        a, b = eta[:-1], eta[1:]
        pieces = np.diff(corners) * ((a + b) / 2 if power == 1 else (a * a + a * b + b * b) / 3)
        return np.concatenate([[0.0], np.cumsum(pieces)])[np.searchsorted(corners, t)]

    def _decay(self) -> tuple[float, float]:
        """The step at which u is 0, and the number of steps until u is 1."""
        if self.shape == "inverse_sqrt":
            return 0.0, float(max(self.warmup, self.hold, 1))
        return float(self.warmup), float((self.steps or self.warmup + 1) - self.warmup)

    def _unit(self, t: Floats | float) -> Floats:
        origin, unit = self._decay()
        return np.maximum(np.asarray(t) - origin, 0.0) / unit

    def _primitive(self, u: Floats, power: int) -> Floats:
        """∫η^power du with η = end + (lr − end)·h(u)."""
        shape, e, fall = SHAPES[self.shape], self.end, self.lr - self.end
        if power == 1:
            return e * u + fall * shape.once(u)
        return e * e * u + 2 * e * fall * shape.once(u) + fall * fall * shape.twice(u)


def _checked(step: Any) -> Floats:
    t = np.asarray(step, np.float64)
    if not (t >= 0).all():
        raise InputError(f"step must be >= 0, got {t[~(t >= 0)].flat[0]}")
    return t


def constant(lr: float, *, warmup: int = 0) -> Schedule:
    """η = lr."""
    return Schedule("constant", lr, warmup=warmup)


def linear(lr: float, steps: int, *, warmup: int = 0, end: float = 0.0) -> Schedule:
    """Linear decay from lr at the end of the warm-up to `end` at `steps`."""
    return Schedule("linear", lr, steps, warmup, end)


def cosine(lr: float, steps: int, *, warmup: int = 0, end: float = 0.0) -> Schedule:
    """Cosine decay from lr at the end of the warm-up to `end` at `steps`."""
    return Schedule("cosine", lr, steps, warmup, end)


def inverse_sqrt(lr: float, *, warmup: int = 0, hold: int = 0) -> Schedule:
    """lr·√(m/max(t, m)) with m = max(warmup, hold, 1): the peak, then 1/√t.

    With a warm-up, the schedule of fairseq and transformers; with hold and no warm-up, the schedule of T5.
    """
    return Schedule("inverse_sqrt", lr, warmup=warmup, hold=hold)


def recorded(rates: Mapping[int, float]) -> Schedule:
    """The learning rates that a run logged, by step, with linear interpolation between them."""
    points = sorted((int(step), float(rate)) for step, rate in rates.items())
    kept = points[:1]
    for i in range(1, len(points)):
        if i + 1 < len(points):  # drop a point on the line between its neighbors
            (x, a), (step, rate), (y, b) = kept[-1], points[i], points[i + 1]
            line = a + (b - a) * (step - x) / (y - x)
            if abs(rate - line) <= STRAIGHT * max(abs(a), abs(b)):
                continue
        kept.append(points[i])
    if not kept or any(step < 0 or not (isfinite(rate) and rate >= 0) for step, rate in kept):
        raise InputError(f"recorded learning rates and their steps must be >= 0, got {dict(rates)}")
    return Schedule(RECORDED, max(rate for _, rate in kept), points=tuple(kept))


KEYWORDS = {
    "constant": ("lr", "warmup"),
    "linear": ("lr", "steps", "warmup", "end"),
    "cosine": ("lr", "steps", "warmup", "end"),
    "inverse_sqrt": ("lr", "warmup", "hold"),
}
NEEDED = {"constant": ("lr",), "linear": ("lr", "steps"), "cosine": ("lr", "steps"), "inverse_sqrt": ("lr",)}


def parse(text: str) -> Schedule:
    """A schedule from text, such as ``cosine:lr=1e-3,steps=1000,warmup=100``; a single number is a constant rate."""
    text = text.strip()
    given, _, rest = text.partition(":")
    shape = given.strip().replace("-", "_")
    if shape not in SHAPES:
        try:
            lr = float(text)
        except ValueError:
            raise InputError(
                f"schedule {text!r}: {given!r} is neither one of {', '.join(SHAPES)} nor a learning rate; "
                f"examples: 3e-4, {EXAMPLES['cosine']}"
            ) from None
        return constant(lr)
    values: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in KEYWORDS[shape]:
            raise InputError(
                f"schedule {text!r}: unknown option {name!r}; {shape} takes {', '.join(KEYWORDS[shape])}"
            )
        if name in values:
            raise InputError(f"schedule {text!r}: {name} is given twice")
        try:
            number = float(value)
            values[name] = number if name in ("lr", "end") or int(number) != number else int(number)
        except (ValueError, OverflowError):
            said = f"{value!r} is not a number" if equals else "it has no value"
            raise InputError(f"schedule {text!r}: {name}: {said}; example: {EXAMPLES[shape]}") from None
    if missing := [name for name in NEEDED[shape] if name not in values]:
        raise InputError(f"schedule {text!r}: {missing[0]} is missing; example: {EXAMPLES[shape]}")
    return Schedule(shape, **values)


EXAMPLES = {
    "constant": "constant:lr=3e-4",
    "linear": "linear:lr=1e-3,steps=10000,warmup=500",
    "cosine": "cosine:lr=1e-3,steps=10000,warmup=500,end=1e-4",
    "inverse_sqrt": "inverse_sqrt:lr=0.01,hold=10000",
}
