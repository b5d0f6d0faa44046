"""The growth laws: the norm at step t under each law, and the form used for least squares.

Every law is linear in two numbers u and w if its shape (an exponent p, a time τ) is fixed:

    norm   =   u·φ0(t) + w·φ1(t)     `sqrt`, `power`, `linear`, `root4`, `log`, `constant`
    norm²  =   u·φ0(t) + w·φ1(t)     `sqrt2`, `power2`, `relax`, with u, w ≥ 0 and 0 ≤ φ0, φ1

So one solver (`normgrowth.fit.solver`) serves all laws: u and w have a unique optimum for each shape, and
the shape is found by a one-dimensional search. Time is t/T, where T is the last step, so the scale of the
steps does not matter.

Step 0 needs no special case: √0 = 0^p = log(1 + 0) = 0, and each law starts at its b or n₀. This is why the
logarithm is that of 1 + t. As a consequence, `log` is the only law whose form depends on the unit of t.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# φ0, φ1 and their derivatives with respect to the logarithm of the shape
Basis = tuple[Floats, Floats, Floats, Floats]


@dataclass(frozen=True)
class Law:
    """One law. `basis` takes t/T and the shape, `natural` takes u, w, the shape and T."""

    name: str
    formula: str
    params: tuple[str, ...]
    curve: Callable[..., Floats]  # t and the parameters -> norm
    basis: Callable[[Floats, Floats], Basis]
    natural: Callable[[Floats, Floats, Floats, float], tuple[Floats, ...]]
    squared: bool = False  # the law is linear in the squared norm
    shape: str = ""  # the nonlinear parameter; for τ it is τ/T
    edges: tuple[str, str] = ("", "")  # the parameters that reach their minimum when u or w is 0
    contains: tuple[float, ...] = ()  # shapes at which the law equals one of the other laws
    # parameters that diverge when the shape leaves its bounds at the "low" or the "high" end
    diverging: Mapping[str, str] = field(default_factory=dict)

    def bounds(self, x: Floats) -> tuple[float, float]:
        """Return the bounds of the shape; values beyond them do not describe the data better.

        A power below 0.01 is practically a logarithm, and one above 10 affects only the last few checkpoints. A
        relaxation with τ below a fifth of the first step ends before the first point; τ = 100 T is a straight line.
        """
        return (0.01, 10.0) if self.shape == "p" else (float(x[x > 0][0]) / 5, 100.0)

    def predict(self, t: Floats, params: Mapping[str, float]) -> Floats:
        return self.curve(t, *(params[name] for name in self.params))


BEYOND = (0.0, inf)  # the interval of a shape that reaches the bounds of its search: the data do not bound it


def _fixed(function: Callable[[Floats], Floats]) -> Callable[[Floats, Floats], Basis]:
    """Return a basis of 1 and a function of time, without a shape."""

    def basis(x: Floats, _: Floats) -> Basis:
        none = np.zeros_like(x)
        return np.ones_like(x), function(x), none, none

    return basis


def _power(x: Floats, p: Floats) -> Basis:
    grown = x**p
    none = np.zeros_like(grown)
    return np.ones_like(grown), grown, none, p * grown * np.log(np.where(x > 0, x, 1.0))


def _power2(x: Floats, p: Floats) -> Basis:
    # u and w are the squared norms at 0 and at T, so a < 0 needs no extra constraint.
    _, grown, none, slope = _power(x, p)
    return 1 - grown, grown, none - slope, slope


def _relax(x: Floats, tau: Floats) -> Basis:
    left = np.exp(-x / tau)
    slope = left * x / tau
    return left, -np.expm1(-x / tau), slope, -slope


def _relaxing(t: Floats, n0: float, n_inf: float, tau: float) -> Floats:
    return np.sqrt(np.maximum(n0**2 + (n0**2 - n_inf**2) * np.expm1(-t / tau), 0.0))


def _root(squared: Floats) -> Floats:
    return np.sqrt(np.maximum(squared, 0.0))


_TABLE = (
    Law(
        "sqrt",
        "a·√t + b",
        ("a", "b"),
        lambda t, a, b: a * np.sqrt(t) + b,
        _fixed(np.sqrt),
        lambda u, w, _, T: (w / T**0.5, u),
    ),
    Law(
        "sqrt2",
        "√(b² + a²·t)",
        ("a", "b"),
        lambda t, a, b: np.sqrt(b**2 + a**2 * t),
        _fixed(lambda x: x),
        lambda u, w, _, T: (np.sqrt(w / T), np.sqrt(u)),
        squared=True,
        edges=("b", "a"),
    ),
    Law(
        "power2",
        "√(b² + a·t^p)",
        ("a", "b", "p"),
        lambda t, a, b, p: _root(b**2 + a * t**p),
        _power2,
        lambda u, w, p, T: ((w - u) / T**p, np.sqrt(u), p),
        squared=True,
        shape="p",
        edges=("b", "a"),
        contains=(1.0,),
        diverging={"a": "low"},
    ),
    Law(
        "power",
        "a·t^p + b",
        ("a", "b", "p"),
        lambda t, a, b, p: a * t**p + b,
        _power,
        lambda u, w, p, T: (w / T**p, u, p),
        shape="p",
        contains=(0.25, 0.5, 1.0),
        diverging={"a": "low", "b": "low"},
    ),
    Law(
        "linear",
        "a·t + b",
        ("a", "b"),
        lambda t, a, b: a * t + b,
        _fixed(lambda x: x),
        lambda u, w, _, T: (w / T, u),
    ),
    Law(
        "root4",
        "a·t^(1/4) + b",
        ("a", "b"),
        lambda t, a, b: a * t**0.25 + b,
        _fixed(lambda x: x**0.25),
        lambda u, w, _, T: (w / T**0.25, u),
    ),
    Law(
        "log",
        "a·log(1 + t) + b",
        ("a", "b"),
        lambda t, a, b: a * np.log1p(t) + b,
        # The shape argument of this law is T, which is fixed: log(1 + T·x), scaled to 1 at the last step.
        lambda x, T: (np.ones_like(x), np.log1p(T * x) / np.log1p(T), np.zeros_like(x), np.zeros_like(x)),
        lambda u, w, _, T: (w / np.log1p(T), u),
    ),
    Law(
        "relax",
        "√(n∞² + (n₀² − n∞²)·e^(−t/τ))",
        ("n0", "n_inf", "tau"),
        _relaxing,
        _relax,
        lambda u, w, tau, T: (np.sqrt(u), np.sqrt(w), tau * T),
        squared=True,
        shape="tau",
        edges=("n0", "n_inf"),
        diverging={"n_inf": "high"},
    ),
    Law(
        "constant",
        "b",
        ("b",),
        lambda t, b: np.full_like(t, b),
        _fixed(np.zeros_like),
        lambda u, *_: (u,),
    ),
)

LAWS: Mapping[str, Law] = {law.name: law for law in _TABLE}
