"""Fit one law to many series at once by least squares: the data and their bootstrap replicates.

For a fixed shape, a law is linear in u and w, either in the norm or in its square. In the norm, this is a
linear regression. In the square, with ℓ = u·φ0 + w·φ1, the sum Σ(y − √ℓ)² = Σ(y² − 2y√ℓ + ℓ) is *convex*
in (u, w) because y ≥ 0. Where a constraint u, w ≥ 0 is active, the rest is √ℓ = c·√φ, again a linear
regression. So both have one minimum, which Newton's method or a closed form finds without an initial guess.
The shape is searched on a grid, then inside the best cell by bisection of the derivative. The search can
miss only a second minimum within one cell of the grid.
"""

from dataclasses import dataclass

import numpy as np

from normgrowth.fit.laws import Floats, Law

CELLS_PER_DECADE = 10
MOST_AT_ONCE = 1 << 21  # values that are processed together, so that long series fit into memory


@dataclass(frozen=True)
class Solution:
    """The best u, w and shape of each series, and how the search ended."""

    u: Floats
    w: Floats
    shape: Floats
    rss: Floats
    converged: np.ndarray  # bool
    low: np.ndarray  # bool: the shape is at its lower bound
    high: np.ndarray


@dataclass(frozen=True)
class _Inner:
    """u and w for one shape per series; `slope` is the derivative of `rss` with respect to the log of the shape."""

    u: Floats
    w: Floats
    rss: Floats
    slope: Floats
    converged: np.ndarray


def solve(law: Law, x: Floats, y: Floats, T: float) -> Solution:
    """Fit each row of y (series, n) at the times x = t/T; y ≥ 0 and of the order of 1."""
    series = len(y)
    if not law.shape:
        shape = np.full(series, T)
        best = _inner(law, x, y, shape)
        none = np.zeros(series, bool)
        return Solution(best.u, best.w, shape, best.rss, best.converged, none, none)
    grid = _grid(law, x)
    i = _profile(law, x, y, grid).argmin(axis=1)
    low, high = grid[np.maximum(i - 1, 0)], grid[np.minimum(i + 1, len(grid) - 1)]
    middle = grid[i]
    on_grid = best = _inner(law, x, y, np.exp(middle))
    for _ in range(44 if series == 1 else 24):
        rising = best.slope > 0
        low, high = np.where(rising, low, middle), np.where(rising, middle, high)
        middle = (low + high) / 2
        best = _inner(law, x, y, np.exp(middle), (best.u, best.w))
    # Never return a worse fit than the grid, which includes the exponents of the laws that this law contains.
    better = best.rss <= on_grid.rss
    middle = np.where(better, middle, grid[i])
    width = 1e-6
    return Solution(
        np.where(better, best.u, on_grid.u),
        np.where(better, best.w, on_grid.w),
        np.exp(middle),
        np.where(better, best.rss, on_grid.rss),
        np.where(better, best.converged, on_grid.converged),
        middle - grid[0] < width,
        grid[-1] - middle < width,
    )


def _grid(law: Law, x: Floats) -> Floats:
    """Return the logarithms of the shapes of the initial grid."""
    low, high = law.bounds(x)
    cells = max(16, round(CELLS_PER_DECADE * np.log10(high / low)))
    even, known = np.linspace(np.log(low), np.log(high), cells + 1), np.log(law.contains)
    # Remove near-duplicates: a cell of zero width would stall the search.
    apart = [all(abs(point - other) > 1e-3 for other in known) for point in even]
    return np.sort(np.append(even[apart], known))


def _profile(law: Law, x: Floats, y: Floats, grid: Floats) -> Floats:
    """Return sums of squares (series, grid) with the best u and w at each shape.

    For one series they are exact. For many series that scatter around their mean, they are approximated by one
    Gauss-Newton step from the solution of the mean, which is a single matrix product. They only select the cell.
    """
    if len(y) == 1:
        parts = np.array_split(np.exp(grid), min(len(grid), -(-len(grid) * len(x) // MOST_AT_ONCE)))
        return np.concatenate([_inner(law, x, np.repeat(y, len(q), axis=0), q).rss for q in parts])[None]
    mean = y.mean(axis=0)
    at = _inner(law, x, np.repeat(mean[None], len(grid), axis=0), np.exp(grid))
    phi0, phi1, _, _ = law.basis(x, np.exp(grid)[:, None])
    curve = at.u[:, None] * phi0 + at.w[:, None] * phi1
    if law.squared:
        curve = np.sqrt(np.maximum(curve, 1e-18))
        phi0, phi1 = phi0 / curve, phi1 / curve
    first = _unit(phi0)
    second = _unit(phi1 - (first * phi1).sum(axis=1, keepdims=True) * first)
    scatter, off = y - mean, mean - curve  # kept separate: either may be small compared with y
    total = (scatter**2).sum(axis=1)[:, None] + 2 * scatter @ off.T + (off**2).sum(axis=1)
    for tangent in (first, second):
        total = total - (scatter @ tangent.T + (off * tangent).sum(axis=1)) ** 2
    return total


def _unit(rows: Floats) -> Floats:
    size = np.sqrt((rows**2).sum(axis=1, keepdims=True))
    return np.where(size > 1e-12, rows / np.maximum(size, 1e-12), 0.0)


def _inner(
    law: Law, x: Floats, y: Floats, shape: Floats, start: tuple[Floats, Floats] | None = None
) -> _Inner:
    phi0, phi1, dphi0, dphi1 = law.basis(x[None], shape[:, None])
    if law.squared:
        u, w, converged = _convex(phi0, phi1, y, start)
        curve = np.sqrt(u[:, None] * phi0 + w[:, None] * phi1)
        per_square = 0.5 / np.maximum(curve, 1e-12)
    else:
        u, w = _line(phi1, y)
        converged = np.ones(len(y), bool)
        curve = u[:, None] * phi0 + w[:, None] * phi1
        per_square = np.ones_like(curve)
    off = y - curve
    slope = -2 * (off * per_square * (u[:, None] * dphi0 + w[:, None] * dphi1)).sum(axis=1)
    return _Inner(u, w, (off**2).sum(axis=1), slope, converged)


def _line(phi: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Fit y = u + w·φ."""
    mean, level = phi.mean(axis=1, keepdims=True), y.mean(axis=1, keepdims=True)
    spread = ((phi - mean) ** 2).sum(axis=1)
    w = np.where(
        spread > 0, ((phi - mean) * (y - level)).sum(axis=1) / np.where(spread > 0, spread, 1.0), 0.0
    )
    return level[:, 0] - w * mean[:, 0], w


def _convex(
    phi0: Floats, phi1: Floats, y: Floats, start: tuple[Floats, Floats] | None
) -> tuple[Floats, Floats, np.ndarray]:
    """Fit y = √(u·φ0 + w·φ1) with u, w ≥ 0.

    The best point of an edge is the global minimum if the sum of squares increases from it to the inside. If this
    holds on neither edge, the minimum is inside, where Newton's method finds it.
    """
    nothing = np.zeros(len(y))
    u_edge, w_edge = _edge(phi0, y), _edge(phi1, y)
    on_u = _slope(u_edge, phi0, phi1, y) >= -1e-13 * y.shape[1]
    on_w = _slope(w_edge, phi1, phi0, y) >= -1e-13 * y.shape[1]
    u, w, converged = _newton(phi0, phi1, y, start, on_u | on_w)
    u = np.select([on_u, on_w], [u_edge, nothing], u)
    w = np.select([on_u, on_w], [nothing, w_edge], w)
    return u, w, converged


def _edge(phi: Floats, y: Floats) -> Floats:
    """Return the best c² of y = c·√φ."""
    size = phi.sum(axis=1)
    c = (y * np.sqrt(phi)).sum(axis=1) / np.where(size > 0, size, 1.0)
    return np.where(size > 0, c, 0.0) ** 2


def _slope(edge: Floats, phi: Floats, other: Floats, y: Floats) -> Floats:
    """Return the derivative of the sum of squares with respect to the other coefficient, at ℓ = edge·φ."""
    size = np.sqrt(np.maximum(edge[:, None] * phi, 1e-200))
    return ((1 - y / size) * other).sum(axis=1)


@np.errstate(
    over="ignore", invalid="ignore", divide="ignore"
)  # series that have converged may leave the valid range
def _newton(
    phi0: Floats, phi1: Floats, y: Floats, start: tuple[Floats, Floats] | None, done: np.ndarray
) -> tuple[Floats, Floats, np.ndarray]:
    """Minimize Σ(ℓ − 2y√ℓ) over u, w > 0; all series step together until all are done."""
    level = (y**2).mean(axis=1) + 1e-300
    u, w = (level, level) if start is None else (np.maximum(s, 1e-4 * level) for s in start)
    # Scale the columns to size 1: for a long τ, φ1 is small everywhere and w is large.
    sizes = [np.maximum(phi.max(axis=1), 1e-300) for phi in (phi0, phi1)]
    phi0, phi1 = (phi / size[:, None] for phi, size in zip((phi0, phi1), sizes, strict=True))
    u, w = u * sizes[0], w * sizes[1]
    line = u[:, None] * phi0 + w[:, None] * phi1
    total = _objective(line, y)
    for _ in range(100):
        if done.all():
            break
        pull = y / np.sqrt(line)
        stiff = 0.5 * pull / line
        pull = 1 - pull
        g0, g1 = (pull * phi0).sum(axis=1), (pull * phi1).sum(axis=1)
        h00, h01, h11 = ((stiff * a * b).sum(axis=1) for a, b in ((phi0, phi0), (phi0, phi1), (phi1, phi1)))
        h00, h11 = h00 * (1 + 1e-13) + 1e-300, h11 * (1 + 1e-13) + 1e-300
        det = h00 * h11 - h01**2
        du, dw = -(h11 * g0 - h01 * g1) / det, -(h00 * g1 - h01 * g0) / det
        # Newton's method squares the error: below this limit, one more step reduces it to rounding.
        done = done | (-(du * g0 + dw * g1) < 1e-16 * y.shape[1])
        # Step at most nine tenths of the distance to an edge, then halve the step while it goes uphill.
        length = np.minimum(1.0, 0.9 / np.maximum(np.maximum(-du / u, -dw / w), 1e-9))
        step = du[:, None] * phi0 + dw[:, None] * phi1
        trial = line + length[:, None] * step
        value = _objective(trial, y)
        for _ in range(30):
            uphill = (value > total + 1e-13 * np.abs(total)) & ~done  # by more than rounding
            if not uphill.any():
                break
            length = np.where(uphill, length / 2, length)
            trial = line + length[:, None] * step
            value = _objective(trial, y)
        u, w, total = u + length * du, w + length * dw, value
        line = u[:, None] * phi0 + w[:, None] * phi1
    return u / sizes[0], w / sizes[1], done


def _objective(line: Floats, y: Floats) -> Floats:
    """Return the sum of squares without Σy²."""
    return (line - 2 * y * np.sqrt(line)).sum(axis=1)
