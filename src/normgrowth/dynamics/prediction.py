"""The norm that a learning-rate schedule predicts under the paper's models of the dynamics.

Assumption 1 (§5.2) says ‖δ_t‖ ∝ η_t‖θ_t‖. Here κ is its constant: ‖δ‖ = κη‖θ‖. Then

    aligned (§5.3)     ‖θ_t‖ = ‖θ₀‖ exp(κ∫η)          for η = 1/√t:  exp(2κ√t)
    misaligned (§5.4)  ‖θ_t‖ = ‖θ₀‖ exp(κ²/2 ∫η²)     for η = 1/√t:  t^(κ²/2), the paper's √t for κ = 1 only

in continuous time. In discrete steps they are the products of 1 + κη and of √(1 + κ²η²), which are smaller: for
η = 1/√t, the aligned product is smaller by t^(κ²/2) up to a constant, the misaligned one by a constant. Decay by λ
multiplies both by exp(−λ∫η), or by exp(−λt) in the form of eq. (3) (`decay="eq3"`).

Steps are not proportional to ‖θ‖ for every optimizer. With ‖δ‖ = κη‖θ‖^p (p is 1 in Assumption 1, near 0 for Adam,
−1 for SGD on scale-invariant weights), the flows are ‖θ‖^(1−p) = ‖θ₀‖^(1−p) + (1 − p)κ∫η and
‖θ‖^(2−2p) = ‖θ₀‖^(2−2p) + (1 − p)κ²∫η².

Flows of a `Schedule` have a closed form, unless p ≠ 1 and there is weight decay. All others are integrated by scipy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite, log
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normgrowth.errors import InputError
from normgrowth.schedules import Schedule

Floats = NDArray[np.float64]
Rate = Schedule | Callable[[Any], float]
Model = Literal["aligned", "misaligned"]
Decay = Literal["decoupled", "eq3"]
LONGEST = 10_000_000  # largest number of steps that are summed one by one


def predict_norm(
    schedule: Rate,
    kappa: float,
    steps: ArrayLike,
    norm0: float = 1.0,
    *,
    model: Model = "misaligned",
    start: int = 0,
    p: float = 1.0,
    weight_decay: float = 0.0,
    decay: Decay = "decoupled",
    discrete: bool = False,
) -> Floats:
    """Return the predicted ‖θ‖ at each of the steps, starting from norm0 at step `start`.

    schedule: η at each step: a `Schedule`, or a function of the step, which must be defined from `start` on; 1/√t is
    not defined at 0.
    kappa, p: κ and p of the step size ‖δ‖ = κη‖θ‖^p; p is 1 in Assumption 1, near 0 for Adam.
    steps: where to predict, all at least `start`. norm0, start: the norm at the first step, and this step.
    model: "aligned": steps along the weights; "misaligned": steps perpendicular to the weights.
    weight_decay, decay: λ, and its kind: "decoupled" (θ -= ηλθ) or "eq3" (θ -= λθ, the paper's eq. (3)).
    discrete: compute the exact product over optimizer steps instead of the continuous flow; they differ by O(κη).
    A norm that overflows is inf, one that underflows is 0.

    >>> from normgrowth import schedules
    >>> norms = ng.predict_norm(schedules.parse("constant:lr=3e-3"), 1.0, [0, 100, 1000], norm0=8.0)
    """
    at = np.asarray(steps, np.float64)
    check_not_negative(kappa=kappa, norm0=norm0, weight_decay=weight_decay, start=start)
    check_words(model, decay)
    if at.size and not at.min() >= start:
        raise InputError(f"steps must be >= start ({start}), got {at.min():g}")
    if not at.size or norm0 == 0:
        return np.full(at.shape, norm0)
    course = _Course(
        schedule, kappa, log(norm0), 1 if model == "aligned" else 2, start, p, weight_decay, decay
    )
    if discrete:
        log_norm = course.by_steps(at)
    elif isinstance(schedule, Schedule) and (p == 1 or not weight_decay):
        log_norm = course.closed(schedule, at)
    else:
        log_norm = course.integrated(at)
    with np.errstate(over="ignore", under="ignore"):
        return np.exp(log_norm)


def holding_decay(
    kappa: float, lr: float, *, model: Model = "misaligned", decay: Decay = "decoupled"
) -> float:
    """Return the weight decay λ that keeps the norm constant under ‖δ‖ = κη‖θ‖.

    Growth and decay are then both proportional to ‖θ‖, so there is no equilibrium but a threshold: κ (aligned) or
    κ²η/2 (misaligned), times η for eq. (3). Above it the norm falls to 0, below it the norm grows without limit.
    """
    check_not_negative(kappa=kappa, lr=lr)
    check_words(model, decay)
    rate = kappa if model == "aligned" else kappa**2 * lr / 2
    return rate * lr if decay == "eq3" else rate


def schedule_sums(schedule: Rate, at: Floats, power: int) -> Floats:
    """Return Ση^power over the steps before each entry, up to a common constant; for very long runs ∫η^power."""
    low, high = float(at.min()), float(at.max())
    if isinstance(schedule, Schedule) and high - low > LONGEST:
        return schedule.integral(at, power)
    eta = _rates(schedule, int(low), int(np.ceil(high)))
    return np.concatenate([[0.0], np.cumsum(eta**power)])[np.asarray(at - int(low), np.int64)]


def decay_loss(schedule: Rate, at: Floats, weight_decay: float, decay: str) -> Floats:
    """Return the loss of log‖θ‖ to weight decay before each step, −Σlog(1 − d), up to a common constant."""
    if not weight_decay:
        return np.zeros_like(at)
    if decay == "eq3":
        _check_decay(weight_decay, weight_decay)
        return -at * np.log1p(-weight_decay)
    low, high = float(at.min()), float(at.max())
    if isinstance(schedule, Schedule) and high - low > LONGEST:
        return weight_decay * schedule.integral(at) + weight_decay**2 / 2 * schedule.integral(at, 2)
    d = weight_decay * _rates(schedule, int(low), int(np.ceil(high)))
    _check_decay(weight_decay, d.max(initial=0.0))
    return np.concatenate([[0.0], np.cumsum(-np.log1p(-d))])[np.asarray(at - int(low), np.int64)]


def _check_decay(weight_decay: float, d: float) -> None:
    if d >= 1:
        raise InputError(f"weight decay {weight_decay:g} removes all weights in one step; use a smaller one")


def _rates(schedule: Rate, first: int, last: int) -> Floats:
    """Return η(first), …, η(last − 1)."""
    if last - first > LONGEST:
        raise InputError(
            f"too many steps for a callable schedule: {last - first} (limit {LONGEST}); use a Schedule"
        )
    if isinstance(schedule, Schedule):
        return schedule(np.arange(first, last))
    return np.array([_rate(schedule, t) for t in range(first, last)], np.float64)


def _rate(schedule: Rate, t: float) -> float:
    try:
        eta = float(schedule(t))
    except (ArithmeticError, ValueError, TypeError, LookupError) as error:
        raise InputError(
            f"the schedule has no value at step {t:g}: {error} (flows need real steps; discrete=True does not)"
        ) from error
    if not (isfinite(eta) and eta >= 0):
        raise InputError(f"the learning rate must be >= 0, got {eta} at step {t:g}")
    return eta


@dataclass(frozen=True)
class _Course:
    """log‖θ‖ from x0 at `start`, by three algorithms. order: 1 if aligned (lengths add), 2 if not (squares add)."""

    schedule: Rate
    kappa: float
    x0: float
    order: int
    start: int
    p: float
    lam: float
    decay: Decay

    def closed(self, schedule: Schedule, at: Floats) -> Floats:
        """Return the flow, from the integrals of the schedule."""
        exposure = schedule.integral(at, self.order) - schedule.integral(self.start, self.order)
        grown = self.kappa**self.order * exposure / self.order
        if self.p == 1:
            eq3 = self.decay == "eq3"
            time = at - self.start if eq3 else schedule.integral(at) - schedule.integral(self.start)
            return self.x0 + grown - self.lam * time
        k = self.order * (1 - self.p)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            gain = k * grown * np.exp(-k * self.x0)
            # With p > 1, the norm diverges in finite time.
            return np.where(gain > -1, self.x0 + np.log1p(gain) / k, inf)

    def by_steps(self, at: Floats) -> Floats:
        """Return the exact recursion: (1 − d)n + κηn^p, or the root of ((1 − d)n)² + (κηn^p)²."""
        if (at != np.round(at)).any():
            raise InputError("discrete=True needs integer steps")
        eta = _rates(self.schedule, self.start, int(at.max()))
        d = np.full_like(eta, self.lam) if self.decay == "eq3" else self.lam * eta
        _check_decay(self.lam, d.max(initial=0.0))
        if self.p == 1:
            x = np.concatenate([[0.0], np.cumsum(self._gain(self.kappa * eta, d))]) + self.x0
        else:
            x = np.empty(len(eta) + 1)
            x[0] = self.x0
            for i in range(len(eta)):
                with np.errstate(over="ignore"):
                    ratio = self.kappa * eta[i] * np.exp((self.p - 1) * x[i])
                    x[i + 1] = x[i] + self._gain(ratio, d[i])
        return x[(at - self.start).astype(np.int64)]

    def _gain(self, ratio: Any, d: Any) -> Any:
        return np.log1p(ratio - d) if self.order == 1 else np.log1p(ratio**2 - d * (2 - d)) / 2

    def integrated(self, at: Floats) -> Floats:
        """Return the flow, integrated by scipy in pieces that start at powers of two and at corners of the schedule."""
        from scipy.integrate import solve_ivp

        def slope(t: float, x: Floats) -> Floats:
            eta = _rate(self.schedule, t)
            with np.errstate(over="ignore"):
                growth = (self.kappa * eta * np.exp((self.p - 1) * x)) ** self.order / self.order
            return growth - self.lam * (1.0 if self.decay == "eq3" else eta)

        start, end = float(self.start), float(at.max())
        corners = set(self.schedule.knots()) if isinstance(self.schedule, Schedule) else set()
        corners |= {start + 2.0**i for i in range(64)} | {float(t) for t in at.ravel()}
        edges = [start, *sorted(t for t in corners if start < t < end), end]
        widest = max(64.0, (end - start) / 2_000)  # the solver must not skip a short peak of the schedule
        found = {start: self.x0}
        for a, b in pairwise(edges):
            if a == b:
                continue
            way = solve_ivp(
                slope, (a, b), [found[a]], method="DOP853", rtol=1e-10, atol=1e-10, max_step=widest
            )
            if not way.success or not np.isfinite(way.y[0, -1]):
                raise InputError(f"the flow could not be integrated from step {a:g} to {b:g}: {way.message}")
            found[b] = float(way.y[0, -1])
        return np.vectorize(found.__getitem__, otypes=[np.float64])(at)


def check_not_negative(**values: float) -> None:
    for name, value in values.items():
        if not (isfinite(value) and value >= 0):
            raise InputError(f"{name.replace('_', ' ')} must be >= 0, got {value}")


def check_words(model: str, decay: str) -> None:
    for given, known in ((model, get_args(Model)), (decay, get_args(Decay))):
        if given not in known:
            raise InputError(f"unknown value {given!r}; known: {', '.join(known)}")
