"""Least squares of each law: against other solvers, on data made from the law, and by its symmetries."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares

from normgrowth.fit import fit
from normgrowth.fit.laws import LAWS
from normgrowth.paper.published.tables import published

T5 = published("t5_norm")

# Truths that can be told from each other on steps up to 1e5, with norms of some hundreds.
TRUTHS = {
    "sqrt": dict(a=2.0, b=50.0),
    "sqrt2": dict(a=2.0, b=150.0),
    "power2": dict(a=0.05, b=100.0, p=1.4),
    "power": dict(a=0.4, b=90.0, p=0.65),
    "linear": dict(a=0.004, b=100.0),
    "root4": dict(a=30.0, b=60.0),
    "log": dict(a=40.0, b=70.0),
    "relax": dict(n0=600.0, n_inf=120.0, tau=2e4),
    "constant": dict(b=300.0),
}
STEPS = np.linspace(0, 1e5, 60)


def made(law, noise=0.0, seed=0, steps=STEPS):
    rng = np.random.default_rng(seed)
    return LAWS[law].predict(steps, TRUTHS[law]) + noise * rng.normal(size=len(steps))


def quick(steps, norms, **more):
    return fit(steps, norms, bootstrap=0, **more)


# --- The published series


def test_the_published_t5_norms():
    fits = quick(T5["step"], T5["norm"])
    assert fits["sqrt"].r2 == pytest.approx(0.9986, abs=5e-5)
    assert fits["sqrt"].params == pytest.approx({"a": 5.41, "b": 193.6}, rel=5e-4)
    assert fits["linear"].r2 == pytest.approx(0.966, abs=5e-4)
    assert fits["root4"].r2 == pytest.approx(0.936, abs=5e-4)
    assert fits["sqrt2"].r2 == pytest.approx(0.9995, abs=5e-5)
    assert fits["power"].params["p"] == pytest.approx(0.5587, abs=1e-4)
    assert fits["power2"].params["p"] == pytest.approx(0.9854, abs=1e-4)


def test_the_verdict_on_t5():
    fits = fit(T5["step"], T5["norm"])
    assert fits.best.law == "sqrt2"
    assert 3 < fits["sqrt"].aicc_effective - fits["sqrt2"].aicc_effective < 6
    # Taken for independent, the residuals would make it a certainty, and for another law.
    assert min(fits.only.values(), key=lambda law: law.aicc).law == "power"
    assert fits["sqrt"].aicc - fits["power"].aicc == pytest.approx(154.8, abs=0.1)
    assert fits["power"].interval("p")[0] > 0.5
    low, high = fits["power2"].interval("p")
    assert low < 1 < high
    assert fits["relax"].interval("tau")[1] == np.inf
    assert fits["relax"].at_bound == ("tau",)
    assert (
        fits["power"].held_out_error
        < fits["sqrt2"].held_out_error
        < 0.005
        < 0.02
        < fits["sqrt"].held_out_error
    )


# --- Other ways to the same numbers


@pytest.mark.parametrize(
    ("law", "function"),
    [("sqrt", np.sqrt), ("linear", lambda t: t), ("root4", lambda t: t**0.25), ("log", np.log1p)],
)
def test_laws_linear_in_the_norm_agree_with_polyfit(law, function):
    x, y = function(T5["step"].astype(float)), T5["norm"]
    a, b = np.polyfit(x, y, 1)
    found = quick(T5["step"], y)[law]
    assert found.params == pytest.approx({"a": a, "b": b}, rel=1e-9)
    off = y - (a * x + b)
    assert found.r2 == pytest.approx(1 - (off @ off) / ((y - y.mean()) ** 2).sum(), rel=1e-12)
    assert found.r2 == pytest.approx(np.corrcoef(x, y)[0, 1] ** 2, rel=1e-9)
    n, k = len(y), 3
    aicc = n * np.log(off @ off / n) + 2 * k + 2 * k * (k + 1) / (n - k - 1)
    assert found.aicc == pytest.approx(aicc, rel=1e-12)


@pytest.mark.parametrize("data", ["t5", *TRUTHS])
@pytest.mark.parametrize("law", ["sqrt2", "power2", "power", "relax"])
def test_nothing_that_scipy_finds_is_better(law, data):
    """Levenberg-Marquardt from twelve random starts, bounded as ours is, in other variables."""
    t, y = (T5["step"].astype(float), T5["norm"]) if data == "t5" else (STEPS, made(data, 2.0))
    found = quick(t, y, laws=law)[law]
    ours = ((y - found.predict(t)) ** 2).sum()
    assert found.converged
    x, scale = t / t[-1], y.max()
    curve = {
        "sqrt2": lambda q: np.sqrt(np.exp(q[0]) + np.exp(q[1]) * x),
        "power2": lambda q: np.sqrt(
            np.exp(q[0]) * (1 - x ** np.exp(q[2])) + np.exp(q[1]) * x ** np.exp(q[2])
        ),
        "power": lambda q: q[0] + q[1] * x ** np.exp(q[2]),
        "relax": lambda q: np.sqrt(np.exp(q[1]) + (np.exp(q[0]) - np.exp(q[1])) * np.exp(-x / np.exp(q[2]))),
    }[law]
    low, high = np.full(3, -30.0), np.full(3, 30.0)
    low[2], high[2] = np.log(LAWS[law].bounds(x)) if LAWS[law].shape else (-1, 1)
    rng = np.random.default_rng(0)
    best = np.inf
    for _ in range(12):
        start = np.array([*rng.normal(size=2), rng.uniform(low[2], high[2])])
        result = least_squares(lambda q: curve(q) - y / scale, start, bounds=(low, high), xtol=1e-12)
        best = min(best, 2 * result.cost * scale**2)
    assert ours <= best * (1 + 1e-6) + 1e-9


def test_power_against_every_exponent():
    """Brute force: a straight line for each of 2,000 exponents."""
    t, y = STEPS, made("power", 2.0)
    exponents = np.linspace(0.01, 2, 2000)
    sums = []
    for p in exponents:
        columns = np.stack([t**p, np.ones_like(t)], axis=1)
        weights, *_ = np.linalg.lstsq(columns, y, rcond=None)
        sums.append(((y - columns @ weights) ** 2).sum())
    found = quick(t, y, laws="power")["power"]
    assert found.params["p"] == pytest.approx(exponents[np.argmin(sums)], abs=0.001)
    assert ((y - found.predict(t)) ** 2).sum() <= min(sums) * (1 + 1e-12)


# --- Data from each law


@pytest.mark.parametrize("law", TRUTHS)
def test_a_law_without_noise_is_found_exactly(law):
    fits = quick(STEPS, made(law))
    assert fits[law].params == pytest.approx(TRUTHS[law], rel=1e-6)
    assert fits[law].predict(STEPS) == pytest.approx(made(law), rel=1e-9)
    assert fits.best.law == law


@pytest.mark.parametrize("law", TRUTHS)
def test_the_right_law_is_preferred(law):
    right = [quick(STEPS, made(law, 1.0, seed)).best.law == law for seed in range(10)]
    # A constant has eight rivals that contain it, and each is preferred now and then.
    assert sum(right) >= (6 if law == "constant" else 8)


def test_names_and_order():
    names = ["sqrt", "sqrt2", "power2", "power", "linear", "root4", "log", "relax", "constant"]
    fits = quick(STEPS, made("sqrt", 1.0), laws=reversed(names))
    assert list(LAWS) == list(fits.only) == [row.law for row in fits.only.laws.values()] == names
    assert sum(law.weight for law in fits.only.values()) == pytest.approx(1)
    assert fits["sqrt"].formula == "a·√t + b"


# --- Symmetries

several = st.sampled_from(list(TRUTHS))
seeds = st.integers(0, 10_000)


def close(one, other):
    return one == pytest.approx(other, rel=1e-4, abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(several, seeds, st.floats(1e-20, 1e20))
def test_the_unit_of_the_norm_does_not_matter(law, seed, c):
    y = made(law, 2.0, seed)
    one, other = quick(STEPS, y), quick(STEPS, c * y)
    degree = {"a": 1, "b": 1, "p": 0, "n0": 1, "n_inf": 1, "tau": 0}
    for name in one:
        assert other[name].r2 == pytest.approx(one[name].r2, abs=1e-9)
        assert other[name].weight == pytest.approx(one[name].weight, abs=1e-6)
    for name in (law, "sqrt", "linear"):  # a law that does not fit may have a parameter that is nowhere
        power = degree | ({"a": 2} if name == "power2" else {})
        for param, value in one[name].params.items():
            assert close(other[name].params[param] / c ** power[param], value)


@settings(max_examples=25, deadline=None)
@given(several, seeds, st.floats(1e-4, 1e4))
def test_the_unit_of_time_does_not_matter(law, seed, k):
    y = made(law, 2.0, seed)
    one, other = quick(STEPS, y), quick(k * STEPS, y)
    exponent = {"sqrt": 0.5, "sqrt2": 0.5, "linear": 1, "root4": 0.25}
    for name in set(one) - {"log"}:  # log(1 + t) knows its unit
        assert other[name].r2 == pytest.approx(one[name].r2, abs=1e-9)
    for name in {law, "sqrt", "linear"} - {"log"}:
        p = one[name].params
        factors = {"a": k ** -exponent.get(name, p.get("p", 0)), "tau": k}
        for param, value in p.items():
            assert close(other[name].params[param], value * factors.get(param, 1))


@settings(max_examples=15, deadline=None)
@given(several, seeds, st.randoms(use_true_random=False))
def test_the_order_of_points_does_not_matter(law, seed, random):
    y, order = made(law, 2.0, seed), list(range(len(STEPS)))
    random.shuffle(order)
    one = fit(STEPS, y, laws=[law, "power"], bootstrap=40)
    other = fit(STEPS[order], y[order], laws=[law, "power"], bootstrap=40)
    assert one.only.laws == other.only.laws


norms = st.lists(st.just(0.0) | st.floats(1e-6, 1e3), min_size=6, max_size=30)


@settings(max_examples=40, deadline=None)
@given(norms, seeds)
def test_a_law_that_contains_another_is_never_worse(y, seed):
    steps = np.sort(np.random.default_rng(seed).choice(10**6, len(y), replace=False))
    fits = quick(steps, y)
    if np.isnan(fits["sqrt"].r2) or not fits["power"].fitted:
        return
    r2 = {name: law.r2 for name, law in fits.only.items()}
    assert r2["power"] >= max(r2["sqrt"], r2["linear"], r2["root4"]) - 1e-9
    assert r2["power2"] >= r2["sqrt2"] - 1e-9
    assert min(r2.values()) >= r2["constant"] - 1e-9
    assert max(r2.values()) <= 1
