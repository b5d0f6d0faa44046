"""The lemmas of sections C and E: the true statements, and where the printed ones fail (B, D: test_scaling_limit).

On a ray θ = r·u Definition 3 says what f is (test_definition_3_on_a_ray): u·rᵏ + O(e^(−br)). Such functions are
drawn at random, and errors computed with 250 digits, since what is to be seen are sizes like e^(−300).
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mpmath import mpf

some = settings(max_examples=settings.default.max_examples * 2 // 5, deadline=None)
SCALES = (1, 1.01, 2, 50, 1e6)


@pytest.fixture(autouse=True, scope="module")
def digits():
    with mpmath.workdps(250):
        yield


@dataclass(frozen=True)
class Ray:
    """u·rᵏ + a·sin(wr)·e^(−br)."""

    k: int
    u: float
    a: float
    b: float
    w: float

    def __call__(self, r):
        return mpf(self.u) * mpf(r) ** self.k + self.a * mpmath.sin(self.w * r) * mpmath.exp(-self.b * mpf(r))


SIZES = st.one_of(st.just(0.0), st.floats(0.2, 5), st.floats(-5, -0.2))


def positive(k):
    return rays(k, st.floats(0.2, 5))


def rays(k=None, u=SIZES):
    degree = st.integers(0, 3) if k is None else st.just(k)
    return st.builds(Ray, degree, u, st.floats(-5, 5), st.floats(0.5, 1.5), st.floats(0, 10))


def error(f, k, r, c):
    """|f(cr)/cᵏ − f(r)|, the largest of a vector. Definition 3 prints it without the division."""
    above, below = f(mpf(c) * r), f(mpf(r))
    above, below = (x if isinstance(x, list) else [x] for x in (above, below))
    return max(abs(x / mpf(c) ** k - y) for x, y in zip(above, below, strict=True))


def rate(f, k):
    """The d in e^(−d·r), for large r and any c ≥ 1. Near 0 or below: the error does not vanish."""
    worst = {r: max(error(f, k, r, c) for c in SCALES) + mpf(10) ** -240 for r in (150, 250)}
    return min(float(-mpmath.log(e) / r) for r, e in worst.items())


def relu(x):
    return max(x, mpf(0))


def sigmoid(x):
    return 1 / (1 + mpmath.exp(-x))


def softmax(x):
    weights = [mpmath.exp(y - max(x)) for y in x]
    return [w / sum(weights) for w in weights]


def layer_norm(x):
    """The paper's: over the norm, no eps."""
    centered = [y - sum(x) / len(x) for y in x]
    size = mpmath.sqrt(sum(y * y for y in centered))
    return [y / size for y in centered]


# C. Approximate homogeneity ---------------------------------------------------------------------------


@some
@given(rays())
def test_definition_3_on_a_ray(f):
    """Definition 3, corrected: it holds iff f is its limit, exactly k-homogeneous, up to O(e^(−d‖θ‖))."""
    assert rate(f, f.k) > 0.8 * f.b
    limit = f(mpf(10) ** 30) / mpf(10) ** (30 * f.k)
    assert abs(f(200) - limit * 200**f.k) <= mpmath.exp(-0.8 * f.b * 200)


def test_definition_3_as_printed_grows_with_c():
    """Definition 3 as printed: θ·σ(θ) is not approximately 1-homogeneous, at any ‖θ‖: not divided by cᵏ."""
    f = lambda r: r * sigmoid(r)  # noqa: E731
    assert rate(f, 1) > 0.9
    for r in (10, 100, 200):
        assert error(f, 1, r, 1e100) * mpf(10) ** 100 > 1


@some
@given(rays(), st.integers(0, 4))
def test_lemma_1_consistency(f, k):
    """Lemma 1: a function has one degree at the most, unless its limit is 0."""
    if f.u:
        assert (rate(f, k) > 0.1) == (k == f.k)
    else:
        assert rate(f, k) > 0.8 * f.b


def test_lemma_1_as_printed_fails_for_zero():
    """Lemma 1 as printed: f = 0 has every degree (the proof divides by f)."""
    assert all(error(lambda r: mpf(0), k, 1, 10) * 10**k == 0 for k in range(5))


@some
@given(rays())
def test_lemma_2_relu(f):
    """Lemma 2: ReLU preserves approximate k-homogeneity, with the same error."""
    assert rate(lambda r: relu(f(r)), f.k) > 0.8 * f.b
    for c in SCALES:
        assert error(lambda r: relu(f(r)), f.k, 7, c) <= error(f, f.k, 7, c)


@some
@given(st.integers(0, 3).flatmap(lambda k: st.tuples(rays(k), rays(k))))
def test_lemma_3_sum(pair):
    """Lemma 3: sums of equal degrees."""
    f, g = pair
    assert rate(lambda r: f(r) + g(r), f.k) > 0.8 * min(f.b, g.b)


@some
@given(st.sampled_from([(1, 0), (2, 0), (2, 1), (3, 1)]).flatmap(lambda ks: st.tuples(*map(positive, ks))))
def test_lemma_3_needs_equal_degrees(pair):
    """Beyond Lemma 3: a sum of unlike degrees keeps the higher, but the rest falls like a power only (biases)."""
    f, g = pair
    total = lambda r: f(r) + g(r)  # noqa: E731
    assert all(rate(total, k) < 0.1 for k in range(5))
    rest = [total(r) / mpf(r) ** f.k - f.u for r in (200, 400)]
    assert float(mpmath.log(rest[0] / rest[1], 2)) == pytest.approx(f.k - g.k, abs=1e-6)


@some
@given(rays(), rays())
def test_lemma_4_product(f, g):
    """Lemma 4, with Definition 3 corrected: degrees add.

    Here one error meets the other's growth: up to 25 r³ e^(−br), whose rate at r = 150 is b − 0.12 ≥ 0.75 b.
    """
    assert rate(lambda r: f(r) * g(r), f.k + g.k) > 0.7 * min(f.b, g.b)


def test_lemma_4_as_printed_fails():
    """Lemma 4 as printed: θ and σ(θ) satisfy Definition 3 as printed, their product does not."""
    as_printed = lambda f, k, r, c: error(f, k, r, c) * mpf(c) ** k  # noqa: E731
    identity, product = (lambda r: r), (lambda r: r * sigmoid(r))
    assert as_printed(identity, 1, 200, 1e100) == 0
    assert as_printed(sigmoid, 0, 200, 1e100) < mpmath.exp(-200)
    assert as_printed(product, 1, 200, 1e100) > 1


vectors = st.integers(0, 3).flatmap(lambda k: st.tuples(rays(k), rays(k), rays(k)))


@some
@given(vectors)
def test_lemma_5_layer_norm(fs):
    """Lemma 5, corrected: LN(f) is approximately 0-homogeneous if the limit of f, centered, is not 0."""
    assume(max(f.u for f in fs) - min(f.u for f in fs) > 0.1)
    assert rate(lambda r: layer_norm([f(r) for f in fs]), 0) > 0.8 * min(f.b for f in fs)


@some
@given(st.lists(st.floats(-5, 5), min_size=6, max_size=6), st.sampled_from([1, 1e-3, 1e-30]))
def test_lemma_5_bound(numbers, small):
    """Lemma 5, corrected: |LN(f + ε) − LN(f)| ≤ 2‖ε‖/‖f − μ‖."""
    f, eps = [mpf(x) for x in numbers[:3]], [mpf(small) * x for x in numbers[3:]]
    moved = [x + y for x, y in zip(f, eps, strict=True)]
    assume(max(f) - min(f) > 1e-3 and max(moved) - min(moved) > 1e-3)
    size = mpmath.sqrt(sum((x - sum(f) / 3) ** 2 for x in f))
    for before, after in zip(layer_norm(f), layer_norm(moved), strict=True):
        assert abs(after - before) <= 2 * mpmath.sqrt(sum(y * y for y in eps)) / size


def test_lemma_5_bound_as_printed_does_not_vanish():
    """Lemma 5 as printed: the last bound, |εᵢ − εv|/|ε|, is 0.71 for every ε; the true error is below ε."""
    v = layer_norm([mpf(1), mpf(0), mpf(-1)])
    for small in (1, 1e-10, 1e-100):
        eps = [mpf(small) * x for x in (1, -1, 0)]
        size = mpmath.sqrt(sum(x * x for x in eps))
        printed = max(abs(x - size * y) / size for x, y in zip(eps, v, strict=True))
        moved = layer_norm([x + y for x, y in zip((1, 0, -1), eps, strict=True)])
        assert float(printed) == pytest.approx(0.7071, abs=1e-4)
        assert max(abs(x - y) for x, y in zip(moved, v, strict=True)) < small


def test_lemma_5_as_printed_fails():
    """Lemma 5 as printed: e^(−θ)(cos θ, sin θ, 0) is approximately 0-homogeneous, its layer norm turns forever."""
    f = lambda r: [mpmath.exp(-r) * x for x in (mpmath.cos(r), mpmath.sin(r), mpf(0))]  # noqa: E731
    assert rate(f, 0) > 0.9
    assert rate(lambda r: layer_norm(f(r)), 0) < 0.01


@some
@given(st.floats(-100, 100), st.floats(1, 1e6))
def test_lemma_6_sigmoid(x, c):
    """Lemma 6: the scaling error of σ is at most e^(−|x|), and for large c at least half of that."""
    bound = mpmath.exp(-abs(mpf(x)))
    assert error(sigmoid, 0, x, c) <= bound
    if x:
        assert error(sigmoid, 0, x, 1 + 300 / abs(mpf(x))) >= bound / 2.01


@some
@given(st.lists(st.one_of(st.floats(-50, 50), st.integers(-2, 2)), min_size=2, max_size=6), st.floats(1, 1e6))
def test_lemma_7_softmax(x, c):
    """Lemma 7, corrected: with m maxima and the next entry g below, the error is at most (n − m)/m · e^(−g)."""
    x = [mpf(y) for y in x]
    m = x.count(max(x))
    gap = min((max(x) - y for y in x if y < max(x)), default=mpf(0))
    scale = lambda s: softmax([s * y for y in x])  # noqa: E731
    assert error(scale, 0, 1, c) <= mpf(len(x) - m) / m * mpmath.exp(-gap)


@some
@given(st.floats(1, 1e15))
def test_lemma_7_as_printed_fails(big):
    """Lemma 7 as printed: x = (M, M − 0.1), c = 100 has the error 0.475 for every M, however large ‖x‖."""
    scale = lambda s: softmax([s * mpf(big), s * (mpf(big) - mpf("0.1"))])  # noqa: E731
    assert float(error(scale, 0, 1, 100)) == pytest.approx(0.475, abs=1e-4)


@some
@given(st.floats(-100, 100), st.floats(1, 1e6))
def test_lemma_8_tanh(x, c):
    """Lemma 8: the scaling error of tanh is at most 2e^(−2|x|)."""
    assert error(mpmath.tanh, 0, x, c) <= 2 * mpmath.exp(-2 * abs(mpf(x)))


@some
@given(vectors)
def test_proposition_3_scale_invariance(fs):
    """Prop. 3, on each ray: σ, tanh and softmax of approximately homogeneous functions have degree 0."""
    f, k = fs[0], fs[0].k
    u = sorted({g.u for g in fs})
    gaps = [b - a for a, b in pairwise(u)]
    assume(k == 0 or min(gaps, default=1) > 0.2)
    for g in (lambda r: sigmoid(f(r)), lambda r: mpmath.tanh(f(r))):
        assert rate(g, 0) > 0.8 * min(f.b, abs(f.u) if k and f.u else math.inf)
    slowest = min(*(g.b for g in fs), *(gaps if k else []))
    assert rate(lambda r: softmax([g(r) for g in fs]), 0) > 0.8 * slowest


@some
@given(st.floats(1, 1e12))
def test_proposition_3_as_printed_fails(big):
    """Prop. 3 as printed: θ₁ + θ₂ is 1-homogeneous, but at (M, 0.1 − M) the error of σ is 0.475, however large ‖θ‖."""
    summed = lambda c: sigmoid(c * mpf(big) + c * (mpf("0.1") - mpf(big)))  # noqa: E731
    assert float(abs(summed(100) - summed(1))) == pytest.approx(0.475, abs=1e-3)


# E. Sums of steps -------------------------------------------------------------------------------------


@some
@given(st.lists(st.lists(st.floats(-3, 3), min_size=3, max_size=3), min_size=1, max_size=9))
def test_section_e2_misaligned_squares_add(steps):
    """§E.2: ‖θ_t‖² = ‖θ₀‖² + Σ‖δ‖² if each δ is orthogonal to θ; else + 2⟨θ, δ⟩ (printed without the 2)."""
    theta, total, general = np.array([1.0, 2.0, 0.5]), 5.25, 5.25
    other = theta
    for step in np.array(steps):
        across = step - theta * (step @ theta) / (theta @ theta)
        total += across @ across
        theta = theta + across
        general += 2 * other @ step + step @ step
        other = other + step
    assert theta @ theta == pytest.approx(total)
    assert other @ other == pytest.approx(general)


@some
@given(st.floats(0.2, 1.5))
def test_section_e_growth_has_a_constant(kappa):
    """§E.1, §E.2 with ‖δ‖ = κη‖θ‖, η = 1/√t: aligned exp(2κ√t), misaligned t^(κ²/2); as printed only for κ = ½, 1."""
    t = np.arange(1, 400_000.0)
    aligned = np.log1p(kappa / np.sqrt(t)).cumsum()
    misaligned = np.log1p(kappa**2 / t).cumsum() / 2
    late, later = 100_000, 399_998
    # log(1 + x) = x − x²/2 + ...: the second term makes −κ²/2 · log t of it, which exp(2κ√t) outgrows.
    grown = aligned[later] - aligned[late] + kappa**2 / 2 * math.log(t[later] / t[late])
    assert grown / (math.sqrt(t[later]) - math.sqrt(t[late])) == pytest.approx(2 * kappa, rel=1e-2)
    exponent = (misaligned[later] - misaligned[late]) / math.log(t[later] / t[late])
    assert exponent == pytest.approx(kappa**2 / 2, rel=1e-3)
