"""Direction and uniformity: does θ/‖θ‖ converge, and does every part grow at the same rate?

The paper reads off cos(θ_t, θ_{t+1}) → 1 that the direction converges (§3, §4). It does not follow: a
random walk in many dimensions shows the same. What matters is how fast the angles fall. Let the angle of
an interval of h steps obey angle²/h ∝ t^(−q). Then

    q ≤ 1      even the squared angles sum to infinity: it turns on, unless later turns undo earlier ones
    1 < q ≤ 2  it converges if intervals turn independently, and does not if they turn the same way
    q > 2      the angles themselves have a finite sum: it converges

Misaligned dynamics with η = 1/√t have q = 1. The cosine of θ_t with θ_{t/2} needs no exponent: it goes to
1 if the direction converges, and stays below 1 if turning goes on over each doubling of the time.

Proposition 1 needs every parameter to grow at the same rate; `uniformity` looks at the share of each part
in ‖θ‖², which then stays what it is.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import nan

import numpy as np
from numpy.typing import NDArray

from normgrowth.dynamics.kappa import blocks
from normgrowth.errors import InputError
from normgrowth.records import Records

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]
ROUNDING = 1e-8  # radians: an angle below is that of rounded weights


@dataclass(frozen=True)
class Lag:
    """Cosines between checkpoints `lag` places apart."""

    lag: int
    steps: Steps  # of the later one
    earlier: Steps
    cosine: Floats


@dataclass(frozen=True)
class Direction:
    """How the direction of the weights moves.

    steps, angle, total: the end of each interval, its angle in radians, and the angles summed so far. The
    sum is a lower bound of the way travelled: checkpoints cut corners.
    q, low, high: angle²/h ∝ t^(−q) over the last decade of steps, with a 95 % interval; nan if too few.
    lags: cosines at growing lags, as far as the trace has them. doubled: those of θ_t with θ_{t/2}.
    verdict: "turns on", "converges" or "undecided"; findings: why, in sentences.
    """

    steps: Steps
    angle: Floats
    total: Floats
    q: float
    low: float
    high: float
    lags: list[Lag]
    doubled: Lag
    verdict: str
    findings: list[str]


def direction(records: Records, *, level: str = "model", name: str | None = None) -> Direction:
    """Angles, their sum and cosines at growing lags of one thing in a trace."""
    rows = intervals_of(records, level, name)
    marks = rows.series("norm", level=level)[0]
    ends, angle = rows.series("angle", level=level)
    start = marks[np.searchsorted(marks, ends) - 1]
    total = np.nancumsum(angle)
    q, low, high = _exponent((start + ends) / 2, angle, ends - start)
    lags = _lags(rows, marks, level)
    doubled = _doubled(lags)
    verdict = "turns on" if high < 1 else "converges" if low > 2 else "undecided"
    findings = _sentences(ends, total, (q, low, high), doubled, verdict)
    return Direction(ends, angle, total, q, low, high, lags, doubled, verdict, findings)


def rows_of(records: Records, level: str, name: str | None) -> Records:
    """The rows of one layer, role, tensor or the model."""
    rows = records.where(level=level)
    rows.single_run()
    if name is None:
        return rows
    names = rows.distinct("name")
    if name not in names:
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        raise InputError(f"there is no {level} {name!r}; there is {', '.join(names[:8]) or 'none'}{more}")
    return rows.where(name=name)


def intervals_of(records: Records, level: str, name: str | None) -> Records:
    """The same, with comparisons between measured steps only, as a trace has them.

    A tracker compares single optimizer steps, the first as well: with every=1, all but the first are such comparisons.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = rows_of(records, level, name)
    sizes = rows.where(quantity="step_size").compared_with().table["step"].to_pylist()
    steps = sorted(set(rows.where(quantity="norm").table["step"].to_pylist()))
    if not steps or steps[0] not in sizes:
        return rows
    if any(later - step > 1 for step, later in pairwise(steps)):
        raise InputError(
            "these are single optimizer steps with others between them: the distance between the measured weights is "
            "not known; track with every=1, or trace the run's checkpoints"
        )
    of_weights = pc.is_in(rows.table["quantity"], pa.array(("norm", "rms", "largest", "numel", "nonfinite")))  # pyright: ignore[reportAttributeAccessIssue]
    kept = pc.or_(of_weights, pc.not_equal(rows.table["step"], steps[0]))  # pyright: ignore[reportAttributeAccessIssue]
    return Records(rows.table.filter(kept), rows.made_by)


def _lags(rows: Records, marks: Steps, level: str) -> list[Lag]:
    """The cosines to the previous checkpoint and to those further back, nearest first."""
    found: dict[int, str] = {}
    for reference in rows.where(quantity="cosine").distinct("reference"):
        lag = "1" if reference == "previous" else str(reference).removeprefix("lag")
        if lag.isdigit():
            found.setdefault(int(lag), reference)
    lags = []
    for lag, reference in sorted(found.items()):
        later, cosine = rows.series("cosine", level=level, reference=reference)
        lags.append(Lag(lag, later, marks[np.searchsorted(marks, later) - lag], cosine))
    return lags


def _exponent(t: Floats, angle: Floats, h: NDArray[np.integer]) -> tuple[float, float, float]:
    """q of angle²/h ∝ t^(−q), by least squares in logarithms, from a tenth of the last step on."""
    good = (t > 0) & (angle > ROUNDING) & (t >= t.max(initial=0.0) / 10)
    if good.sum() < 6:
        return nan, nan, nan
    x, y = np.log(t[good]), np.log(angle[good] ** 2 / h[good])

    def slope(index: NDArray[np.integer]) -> Floats:
        a = x[index] - x[index].mean(axis=-1, keepdims=True)
        return -(a * y[index]).sum(axis=-1) / (a * a).sum(axis=-1)

    # Residuals are drawn in blocks, and not points: a draw of points may miss the early ones.
    q = float(slope(np.arange(len(x))))
    residual = y - y.mean() + q * (x - x.mean())
    drawn = residual[blocks(len(x), seed=0)]
    a = x - x.mean()
    spread = -((drawn - drawn.mean(axis=-1, keepdims=True)) @ a) / (a @ a)
    low, high = np.quantile(q + spread, [0.025, 0.975])
    return q, float(low), float(high)


def _doubled(lags: list[Lag]) -> Lag:
    """For each step the pair with the earlier one nearest to its half, within 10 %."""
    best: dict[int, tuple[float, int, float]] = {}
    for lag in lags:
        for step, earlier, cosine in zip(lag.steps, lag.earlier, lag.cosine, strict=True):
            miss = abs(2 * earlier / step - 1)
            if miss <= 0.1 and np.isfinite(cosine) and miss < best.get(int(step), (1.0, 0, nan))[0]:
                best[int(step)] = (miss, int(earlier), float(cosine))
    steps = sorted(best)
    return Lag(
        0,
        np.array(steps, np.int64),
        np.array([best[step][1] for step in steps], np.int64),
        np.array([best[step][2] for step in steps], np.float64),
    )


def _sentences(
    ends: Steps, total: Floats, fitted: tuple[float, float, float], doubled: Lag, verdict: str
) -> list[str]:
    q, low, high = fitted
    said = [
        f"The direction turned by {total[-1]:.3g} radians in all up to step {ends[-1]:,}, checkpoint to checkpoint."
    ]
    if np.isfinite(q):
        meaning = {
            "turns on": "the angles shrink too slowly for it to converge, unless later turns undo earlier ones",
            "converges": "the angles have a finite sum: it converges, as it must where η falls to 0",
            "undecided": "that does not decide whether it converges",
        }[verdict]
        said.append(f"Squared angles per step go as t^{-q:.2f} ({-high:.2f} to {-low:.2f}): {meaning}.")
    else:
        said.append(
            "There are too few intervals that turn to say how fast the angles fall, and whether it converges."
        )
    if len(doubled.steps) > 1:
        a, b = doubled.steps[0], doubled.steps[-1]
        said.append(
            f"cos(θ_t, θ_t/2) is {doubled.cosine[0]:.4f} at step {a:,} and {doubled.cosine[-1]:.4f} at {b:,}; "
            "a direction that converges takes it to 1."
        )
    else:
        said.append(
            "Lags of 1, 2, 4, 8, … checkpoints in the trace would give cos(θ_t, θ_t/2), which decides more."
        )
    return said


@dataclass(frozen=True)
class Uniformity:
    """How evenly the parts grow.

    share: (steps, parts), the share of each part in the sum of their ‖θ‖²; factor: last norm over first.
    spread: largest factor over smallest, 1 if uniform. moved: half the summed change of the shares from the
    first step to the last, 0 if uniform, at most 1.
    """

    names: list[str]
    steps: Steps
    share: Floats
    factor: Floats
    spread: float
    moved: float


def uniformity(records: Records, *, level: str = "layer") -> Uniformity:
    """The share of each layer, role or tensor in ‖θ‖² over time (Proposition 1, §4)."""
    rows = records.where(level=level, quantity="norm")
    if not len(rows):
        raise InputError(f"no norms at level {level}; there is {', '.join(records.distinct('level'))}")
    rows.single_run()
    names = rows.distinct("name")
    place = {name: i for i, name in enumerate(names)}
    steps, row = np.unique(rows.table["step"].to_numpy(), return_inverse=True)
    norm = np.full((len(steps), len(names)), np.nan)
    norm[row, [place[name] for name in rows.table["name"].to_pylist()]] = rows.table["value"].to_numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        share = norm**2 / (norm**2).sum(axis=1, keepdims=True)
        factor = norm[-1] / norm[0]
    known = factor[np.isfinite(factor) & (factor > 0)]
    spread = float(known.max() / known.min()) if len(known) else nan
    return Uniformity(names, steps, share, factor, spread, float(np.abs(share[-1] - share[0]).sum() / 2))


def uniformity_sentence(found: Uniformity, level: str) -> str:
    """What the factors and shares say."""
    good = np.flatnonzero(np.isfinite(found.factor))
    if len(good) < 2 or len(found.steps) < 2:
        return f"There is too little to compare the growth of {level}s."
    low, high = (int(good[f(found.factor[good])]) for f in (np.argmin, np.argmax))
    return (
        f"{level.capitalize()}s grew by ×{found.factor[low]:.3g} ({found.names[low]}) to ×{found.factor[high]:.3g} "
        f"({found.names[high]}), unevenly by ×{found.spread:.3g}; {100 * found.moved:.2g} % of ‖θ‖² moved between them."
    )
