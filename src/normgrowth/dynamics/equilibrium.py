"""Equilibrium of weight decay and random gradients: its norm, the rotation per step, and the time to reach it.

The paper studies weight decay only by experiment (§5.6, §F). For gradients without memory, the equilibrium has a
closed form; the derivations below are not from the paper. η is the learning rate, λ the decay, C the number of
parameters and G the norm of the gradient. There are three kinds of weight decay:

    decoupled  θ ← (1 − ηλ)θ − ηu      PyTorch's AdamW
    coupled    the gradient is g + λθ, and passes through momentum: PyTorch's SGD and Adam
    eq3        θ ← (1 − λ)θ − ηu       eq. (3) of the paper, where η does not scale the decay

**Recursion.** Let d be the decay per step (ηλ, or λ for eq3) and u an average of gradients with memory μ
(SGD: u = μu + g; Adam: β₁u + (1 − β₁)g over the rms of g). Each weight follows
θ' = (1 + r − w)θ − rθ_before + noise, with r = (1 − d)μ, w = d(1 − μ) for decoupled decay and r = μ, w = ηλ for
coupled decay. Its stationary square is

    E‖θ‖² = q (1 + r) / ((1 − r) w (2(1 + r) − w)),   q: the squared noise per step,

and the correlation of one step is 1 − w/(1 + r), independent of the size of the gradient. For slow decay:

    AdamW           ‖θ‖² = ηC/(2λ)             rotation √(2ηλ(1 − β₁)/(1 + β₁))
    SGD, coupled    ‖θ‖² = ηG²/(2λ(1 − μ))     rotation √(2ηλ/(1 + μ))
    SGD, decoupled  ‖θ‖² = ηG²/(2λ(1 − μ)²)    rotation √(2ηλ(1 − μ)/(1 + μ))

The norm under AdamW does not depend on β₁: one update has a square of (1 − β₁)/(1 + β₁) per weight, but updates
k steps apart are correlated by β₁^k, which multiplies their long-run square by exactly the inverse.

**Second moments.** Adam divides by √v, not by the rms itself. v contains the newest gradient, which makes large
updates smaller, and it fluctuates, which makes updates larger. To first order in 1 − β₂, for normal gradients,
the covariances of the updates become A·β₁^k + B·(β₁β₂)^k; see `_second_moment`. This reduces ‖θ‖² by 0.1% for
β = (0.9, 0.999) and by 2% for (0.9, 0.95).

**Scale-invariant weights** (followed by a norm layer) have gradients orthogonal to θ with G = γ/‖θ‖. In high
dimensions, the formulas above hold with this G. Solved for the norm, they give ‖θ‖⁴ = γ²·K, where K = E‖θ‖²/G² is
the ratio for a constant G. The rotation is the same, and the equilibrium is reached twice as fast. Adam cancels the
factor γ/‖θ‖, so nothing changes.

**Time.** With G ∝ ‖θ‖^p, the flow of y = ‖θ‖^(2−2p) is linear, y' = (1 − p)(q' − 2d·y). It relaxes exponentially, in
τ = 1/(2d) steps for p = 0 and in 1/(4d) for p = −1. The paper's Assumption 1 is p = 1: then there is no equilibrium,
only a threshold; see `normgrowth.dynamics.prediction.holding_decay`.
"""

from dataclasses import dataclass
from math import asin, exp, inf, isfinite, log, log1p, nan, sqrt
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normgrowth.errors import InputError

Floats = NDArray[np.float64]
Decay = Literal["decoupled", "coupled", "eq3"]
Optimizer = Literal["adamw", "sgd"]


@dataclass(frozen=True)
class Equilibrium:
    """The equilibrium of weight decay and random gradients.

    norm: √E‖θ‖²; inf without weight decay, NaN if the learning rate is also 0.
    rotation: the angle in radians between the weights before and after one step.
    time: the number of steps in which the distance of ‖θ‖^(2−2p) to equilibrium falls by a factor of e.
    p: the norm of the gradient is ∝ ‖θ‖^p: 0 for gradients of a fixed size and for Adam, −1 if scale-invariant.
    r, w: coefficients of the recursion θ' = (1 + r − w)θ − rθ_before + noise.
    """

    norm: float
    rotation: float
    time: float
    p: int
    r: float
    w: float

    def norm_at(self, steps: ArrayLike, norm0: float) -> Floats:
        """Return ‖θ‖ after this many steps from norm0, at a constant learning rate.

        This is a continuous approximation. While momentum and Adam's averages warm up, it can be off by about
        2/(1 − μ) steps.
        """
        t = np.asarray(steps, np.float64)
        if not isfinite(self.norm):
            raise InputError(f"there is no equilibrium (norm {self.norm}); use predict_norm")
        k = 2 - 2 * self.p
        return (self.norm**k + (norm0**k - self.norm**k) * np.exp(-t / self.time)) ** (1 / k)

    def time_from(self, norm0: float, within: float = 0.01) -> float:
        """Return the number of steps after which ‖θ‖ stays within this fraction of its equilibrium."""
        if not 0 < within < 1:
            raise InputError(f"within must be between 0 and 1, got {within}")
        if not isfinite(self.norm) or self.norm == 0:
            return nan if isfinite(self.norm) else inf
        k = 2 - 2 * self.p
        start = (norm0 / self.norm) ** k - 1
        edge = (1 + within) ** k - 1 if start > 0 else 1 - (1 - within) ** k
        return self.time * max(0.0, log(abs(start) / edge)) if start else 0.0

    def angle(self, lag: ArrayLike) -> Floats:
        """Return the expected angle in radians between the weights at two checkpoints, `lag` steps apart.

        It follows from the autocorrelation of the recursion, whose roots are z₁ and z₂:
        ρ_k = ((1 − z₂²)z₁^(k+1) − (1 − z₁²)z₂^(k+1)) / ((z₁ − z₂)(1 + z₁z₂)).
        """
        k = np.asarray(lag, np.float64)
        half = (1 + self.r - self.w) / 2
        root = np.sqrt(np.complex128(half * half - self.r))
        root = root if abs(root) > 1e-8 else np.complex128(1e-8)  # equal roots: approximate the limit to 1e-8
        z1, z2 = half + root, half - root
        rho = ((1 - z2**2) * z1 ** (k + 1) - (1 - z1**2) * z2 ** (k + 1)) / ((z1 - z2) * (1 + z1 * z2))
        angle = np.arccos(np.clip(rho.real, -1.0, 1.0))
        return np.where(k == 1, self.rotation, np.where(k == 0, 0.0, angle))


def equilibrium(
    optimizer: Optimizer = "adamw",
    *,
    lr: float,
    weight_decay: float,
    numel: int | None = None,
    gradient_norm: float | None = None,
    betas: tuple[float, float] = (0.9, 0.999),
    momentum: float = 0.0,
    decay: Decay | None = None,
    invariant: bool = False,
) -> Equilibrium:
    """Return norm, rotation per step and time of the equilibrium of random gradients under weight decay.

    optimizer: "adamw", which needs numel and betas, or "sgd", which needs gradient_norm and may have a momentum.
    lr, weight_decay: η and λ, both constant.
    numel: C, the number of weights that receive gradients.
    gradient_norm: √E‖g‖² of one step; for invariant weights ‖g‖·‖θ‖, which does not depend on ‖θ‖.
    betas: β₁ and β₂ of Adam. momentum: μ of SGD.
    decay: "decoupled" (θ ← (1 − ηλ)θ − ηu; default for adamw), "coupled" (λθ is added to the gradient and passes
    through momentum; default for sgd) or "eq3" (θ ← (1 − λ)θ − ηu, eq. (3) of the paper). Adam with coupled decay also
    needs gradient_norm; the result holds while λ‖θ‖ is much smaller than it.
    invariant: the weights are scale-invariant, like weights that are followed by a norm.

    >>> round(ng.equilibrium("adamw", lr=3e-3, weight_decay=0.01, numel=6_000).norm, 2)
    29.98
    """
    c = _Case(optimizer, lr, numel, gradient_norm, betas, momentum, decay, invariant)
    if not (isfinite(weight_decay) and weight_decay >= 0):
        raise InputError(f"weight decay must be >= 0, got {weight_decay}")
    r, w = c.recursion(weight_decay)
    if w == 0:  # no decay: the norm grows forever, unless the learning rate is 0
        return Equilibrium(inf if lr > 0 else nan, 0.0, inf, c.p, r, w)
    square = c.square(weight_decay)
    norm = square ** (1 / (2 - 2 * c.p))
    return Equilibrium(norm, 2 * asin(sqrt(w / (1 + r) / 2)), _time(r, w) / (1 - c.p), c.p, r, w)


def stationary_decay(norm0: float, optimizer: Optimizer = "adamw", *, lr: float, **setting: Any) -> float:
    """Return λ*, the weight decay whose equilibrium is norm0; a larger λ shrinks the norm, a smaller one lets it grow.

    For slow decay, λ* = ηC/(2‖θ₀‖²) for AdamW (η times that for eq3), ηG²/(2(1 − μ)‖θ₀‖²) for SGD, and
    ηγ²/(2(1 − μ)‖θ₀‖⁴) for SGD on invariant weights. Here λ* is solved exactly. It is inf if a single update is
    larger than norm0, because then no weight decay is strong enough. setting: arguments of `equilibrium`.
    """
    from scipy.optimize import root_scalar

    c = _Case(optimizer, lr, **setting)
    if not (isfinite(norm0) and norm0 > 0):
        raise InputError(f"norm0 must be > 0, got {norm0}")
    if lr == 0:
        return 0.0
    target = log(norm0) * (2 - 2 * c.p)
    full = c.full_decay()

    def excess(x: float) -> float:
        return log(c.square(exp(x))) - target

    top = log(full) - 1e-9
    if excess(top) > 0:
        return inf
    low = top - 1.0
    while excess(low) < 0:
        low -= 10.0
    return exp(root_scalar(excess, method="brentq", bracket=(low, top), xtol=1e-13).root)


@dataclass(frozen=True)
class _Case:
    """The validated arguments of `equilibrium`, and the recursion they define."""

    optimizer: Optimizer
    lr: float
    numel: int | None = None
    gradient_norm: float | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.0
    decay: Decay | None = None
    invariant: bool = False

    def __post_init__(self) -> None:
        if self.optimizer not in get_args(Optimizer):
            raise InputError(f"unknown optimizer {self.optimizer!r}; known: {', '.join(get_args(Optimizer))}")
        if self.decay is not None and self.decay not in get_args(Decay):
            raise InputError(f"unknown decay {self.decay!r}; known: {', '.join(get_args(Decay))}")
        if not (isfinite(self.lr) and self.lr >= 0):
            raise InputError(f"the learning rate must be >= 0, got {self.lr}")
        for name, value in (("momentum", self.momentum), ("beta1", self.betas[0]), ("beta2", self.betas[1])):
            if not 0 <= value < 1:
                raise InputError(f"{name} must be >= 0 and < 1, got {value}")
        adam = self.optimizer == "adamw"
        if adam and not (self.numel and self.numel > 0):
            raise InputError(
                "adamw needs numel, the number of weights; each moves by about the learning rate per step"
            )
        if not adam or self.way == "coupled":
            if self.gradient_norm is None:
                raise InputError(f"{self.optimizer} with {self.way} decay needs gradient_norm")
            if not (isfinite(self.gradient_norm) and self.gradient_norm > 0):
                raise InputError(f"gradient_norm must be > 0, got {self.gradient_norm}")
        if adam and self.way == "coupled" and self.invariant:
            raise InputError("adamw with coupled decay on invariant weights has no closed form here")

    @property
    def way(self) -> Decay:
        return self.decay or ("decoupled" if self.optimizer == "adamw" else "coupled")

    @property
    def p(self) -> int:
        return -1 if self.invariant and self.optimizer == "sgd" else 0

    @property
    def memory(self) -> float:
        return self.betas[0] if self.optimizer == "adamw" else self.momentum

    def recursion(self, weight_decay: float) -> tuple[float, float]:
        """Return r and w of the recursion for this weight decay."""
        d = weight_decay / self.full_decay()
        if d >= 1:
            raise InputError(
                f"weight decay {weight_decay} removes all weights in one step; use a smaller one"
            )
        mu = self.memory
        if self.way != "coupled":
            return (1 - d) * mu, d * (1 - mu)
        return mu, d

    def full_decay(self) -> float:
        """Return the λ that removes all weights in one step."""
        if self.way == "eq3":
            return 1.0
        if self.optimizer == "adamw" and self.way == "coupled":
            assert self.gradient_norm is not None
            assert self.numel is not None
            rms = self.gradient_norm / sqrt(self.numel)
            return rms / (self.lr * (1 - self.betas[0])) if self.lr else inf
        return 1 / self.lr if self.lr else inf

    def square(self, weight_decay: float) -> float:
        """Return E‖θ‖²; for invariant weights with SGD, ‖θ‖⁴."""
        r, w = self.recursion(weight_decay)
        if self.optimizer == "adamw":
            assert self.numel is not None
            a = 1 - (_slow(r, w) if self.way == "coupled" else weight_decay / self.full_decay())
            noise = self.lr**2 * (1 - self.betas[0]) ** 2 * self.numel * _second_moment(a, *self.betas)
        else:
            assert self.gradient_norm is not None
            noise = (self.lr * self.gradient_norm) ** 2
        return noise * (1 + r) / ((1 - r) * w * (2 * (1 + r) - w))


def _slow(r: float, w: float) -> float:
    """Return 1 − |z| for the slower root z of the recursion z² = (1 + r − w)z − r."""
    b = 1 - r + w
    root = b * b - 4 * w
    return 2 * w / (b + sqrt(root)) if root >= 0 else 1 - sqrt(r)


def _time(r: float, w: float) -> float:
    """Return the number of steps in which the influence of the initial ‖θ‖² falls by a factor of e."""
    slow = _slow(r, w)
    return -1 / (2 * log1p(-slow)) if slow < 1 else 0.0


def _second_moment(a: float, b: float, beta2: float) -> float:
    """Return the factor by which fluctuations of Adam's v change E‖θ‖², to first order in ε = 1 − β₂.

    Let the gradient be normal with rms 1, and v = 1 + x, so that u = m(1 − x/2 + 3x²/8). x has the variance
    V = 2ε/(1 + β₂) and the autocorrelation β₂^k. As g enters both m and x, E[m_t m_{t+k} x_t] is
    X·b^k with X = 2ε(1 − b)²/(1 − b²β₂), and β₂^k times that with x_{t+k}. So

        E[u_t u_{t+k}] = b^k (s(1 + 3V/4) − X/2) + (bβ₂)^k (sV/4 − X/2),   s = (1 − b)/(1 + b),

    compared with s·b^k for constant v. A weight that retains the fraction a of itself per step sums c^k to
    (1 + ac)/(1 − ac).
    """
    e = 1 - beta2
    s, v, x = (1 - b) / (1 + b), 2 * e / (1 + beta2), 2 * e * (1 - b) ** 2 / (1 - b * b * beta2)

    def summed(c: float) -> float:
        return (1 + a * c) / (1 - a * c)

    first, second = s * (1 + 0.75 * v) - x / 2, s * v / 4 - x / 2
    return (first * summed(b) + second * summed(b * beta2)) / (s * summed(b))
