"""Predicted norms against vectors that take the steps, closed forms against scipy, and laws that must hold."""

from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from vectors import norms, simulate

from normgrowth.dynamics.prediction import holding_decay, predict_norm
from normgrowth.errors import InputError
from normgrowth.schedules import constant, cosine, inverse_sqrt, linear

aligned = partial(predict_norm, model="aligned")
misaligned = partial(predict_norm, model="misaligned")
SCHEDULES = [
    constant(0.02),
    constant(0.03, warmup=50),
    linear(0.05, 250, warmup=20),
    cosine(0.05, 200, warmup=20, end=0.005),  # ends before the last step
    inverse_sqrt(0.06, hold=30),
    lambda t: 0.02 * (1 + np.sin(t / 40) / 2),  # any callable
    lambda t: 0.04 if t < 100 else 0.01,
]
each = pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: getattr(s, "shape", "callable"))
STEPS = 300


@each
@pytest.mark.parametrize(("model", "kappa"), [("aligned", 0.3), ("misaligned", 2.0)])
@pytest.mark.parametrize("lam", [0.0, 0.3])
def test_predictions_are_what_vectors_do(schedule, model, kappa, lam):
    true = norms(simulate(schedule, kappa, STEPS, model=model, norm0=5.0, weight_decay=lam, dims=2_000))
    at = np.arange(STEPS + 1)
    exact = predict_norm(schedule, kappa, at, 5.0, model=model, weight_decay=lam, discrete=True)
    np.testing.assert_allclose(exact, true, rtol=1e-10)
    flow = predict_norm(schedule, kappa, at[::20], 5.0, model=model, weight_decay=lam)
    np.testing.assert_allclose(flow, true[::20], rtol=0.02)


@pytest.mark.parametrize("p", [0.0, -1.0, 0.5])
@pytest.mark.parametrize("lam", [0.0, 0.5])
@pytest.mark.parametrize(("model", "kappa"), [("aligned", 0.3), ("misaligned", 3.0)])
def test_steps_that_do_not_go_as_the_norm(p, lam, model, kappa):
    schedule = cosine(0.03, 400, warmup=20)
    true = norms(simulate(schedule, kappa, STEPS, model=model, norm0=2.0, p=p, weight_decay=lam, dims=1_000))
    options = dict(model=model, p=p, weight_decay=lam)
    at = np.arange(0, STEPS + 1, 50)
    np.testing.assert_allclose(
        predict_norm(schedule, kappa, at, 2.0, discrete=True, **options), true[::50], rtol=1e-9
    )
    np.testing.assert_allclose(predict_norm(schedule, kappa, at, 2.0, **options), true[::50], rtol=0.02)


def test_random_gradients_are_misaligned_without_being_made_so():
    """In expectation (§5.4): steps in directions that know nothing of θ."""
    rng = np.random.default_rng(0)
    theta = rng.standard_normal(10_000) / 100
    first = np.linalg.norm(theta)
    for t in range(STEPS):
        step = rng.standard_normal(10_000)
        theta += 2.0 * SCHEDULES[3](t) * np.linalg.norm(theta) * step / np.linalg.norm(step)
    predicted = misaligned(SCHEDULES[3], 2.0, STEPS, first)
    assert np.linalg.norm(theta) == pytest.approx(predicted, rel=0.02)


@pytest.mark.parametrize("decay", ["decoupled", "eq3"])
def test_the_two_ways_to_decay(decay):
    schedule, lam = cosine(0.1, 300), {"decoupled": 0.1, "eq3": 0.004}[decay]
    true = norms(simulate(schedule, 0.5, STEPS, weight_decay=lam, decay=decay, dims=1_000))
    at = np.arange(STEPS + 1)
    options = dict(weight_decay=lam, decay=decay)
    np.testing.assert_allclose(misaligned(schedule, 0.5, at, discrete=True, **options), true, rtol=1e-10)
    np.testing.assert_allclose(misaligned(schedule, 0.5, at, **options), true, rtol=0.01)


# --- the paper's schedule ------------------------------------------------------------------------


@pytest.mark.parametrize("kappa", [0.5, 1.0, 1.5])
def test_inverse_root_schedule_gives_a_power_of_t_that_is_a_root_for_kappa_1_only(kappa):
    schedule = inverse_sqrt(1.0)
    t = np.array([100, 1_000])
    # Not below step 100: there κη is no small number, and the flow is not the product.
    path = norms(simulate(schedule, kappa, 900, dims=2_000, start=100))
    true = np.log(path[-1] / path[0]) / np.log(10)
    assert true == pytest.approx(kappa**2 / 2, rel=0.02)
    flow = misaligned(schedule, kappa, t)
    assert np.log10(flow[1] / flow[0]) == pytest.approx(kappa**2 / 2, rel=1e-12)
    assert (abs(true - 0.5) < 0.02) == (kappa == 1.0)


@pytest.mark.parametrize("kappa", [0.5, 1.0, 1.5])
def test_norms_that_grow_as_a_root_have_constant_steps_under_assumption_1(kappa):
    """Footnote 13, for any κ in ‖δ‖ = κη‖θ‖; norms that grow otherwise have other steps."""
    schedule, t = inverse_sqrt(1.0), np.array([1e2, 1e4, 1e6])
    rates = np.array([schedule(step) for step in t])
    np.testing.assert_allclose(kappa * rates * (3 * np.sqrt(t)), 3 * kappa, rtol=1e-12)
    assert np.ptp(np.log(kappa * rates * misaligned(schedule, kappa, t))) == pytest.approx(
        abs(kappa**2 - 1) / 2 * np.log(1e4), rel=1e-6, abs=1e-9
    )


@pytest.mark.parametrize("kappa", [0.1, 1.0])
def test_inverse_root_schedule_gives_an_exponential_of_2_kappa_root_t(kappa):
    t = np.array([10_000, 40_000])
    flow = np.log(aligned(inverse_sqrt(1.0), kappa, t))
    assert flow[1] - flow[0] == pytest.approx(2 * kappa * 100, rel=1e-12)
    exact = np.log(aligned(inverse_sqrt(1.0), kappa, t, discrete=True))
    # log(1 + κη) = κη − κ²η²/2: the product is less by t^(κ²/2).
    assert exact[1] - exact[0] == pytest.approx(2 * kappa * 100 - kappa**2 / 2 * np.log(4), rel=1e-3 * kappa)


# --- laws ----------------------------------------------------------------------------------------

rates = st.sampled_from([s for s in SCHEDULES if not callable(s) or hasattr(s, "shape")])
kappas = st.floats(0, 3)
models = st.sampled_from(["aligned", "misaligned"])
when = st.integers(0, 1_000)
flows = st.booleans()


@settings(deadline=None)
@given(rates, kappas, kappas, models, when, flows)
def test_more_kappa_is_more_norm(schedule, a, b, model, t, discrete):
    low, high = sorted([a, b])
    small, large = (predict_norm(schedule, k, t, model=model, discrete=discrete) for k in (low, high))
    assert small <= large * (1 + 1e-12)


@settings(deadline=None)
@given(rates, st.floats(0, 20), when)
def test_aligned_steps_grow_the_norm_most(schedule, kappa, t):
    assert aligned(schedule, kappa, t, discrete=True) >= misaligned(schedule, kappa, t, discrete=True)


@settings(deadline=None)
@given(st.floats(1e-3, 1e3), st.floats(1e-3, 2), models, when, flows)
def test_units_do_not_matter(c, kappa, model, t, discrete):
    one, other = cosine(0.05, 200, warmup=20), cosine(0.05 * c, 200, warmup=20)
    assert predict_norm(other, kappa / c, t, model=model, discrete=discrete) == pytest.approx(
        predict_norm(one, kappa, t, model=model, discrete=discrete), rel=1e-9
    )


@settings(deadline=None)
@given(rates, st.floats(0, 2), models, st.integers(0, 400), st.integers(0, 400), st.floats(0, 1))
def test_starting_later_from_the_norm_there_changes_nothing(schedule, kappa, model, a, b, lam):
    options = dict(model=model, weight_decay=lam)
    middle = predict_norm(schedule, kappa, a, 3.0, **options)
    whole = predict_norm(schedule, kappa, a + b, 3.0, **options)
    assert predict_norm(schedule, kappa, a + b, float(middle), start=a, **options) == pytest.approx(whole)


@pytest.mark.parametrize("schedule", SCHEDULES[:5], ids=str)
@pytest.mark.parametrize("p", [1.0, 0.0])
@pytest.mark.parametrize("model", ["aligned", "misaligned"])
def test_closed_forms_are_what_scipy_integrates(schedule, p, model):
    at = np.array([0, 3, 40, 300, 5_000])
    closed = predict_norm(schedule, 0.7, at, 2.0, p=p, model=model)
    integrated = predict_norm(lambda t: schedule(t), 0.7, at, 2.0, p=p, model=model)
    np.testing.assert_allclose(integrated, closed, rtol=1e-7)


@pytest.mark.parametrize("decay", ["decoupled", "eq3"])
def test_closed_forms_with_decay_are_what_scipy_integrates(decay):
    schedule, at = cosine(0.05, 200, warmup=20), np.array([0, 30, 200, 1_000])
    options = dict(weight_decay=0.2, decay=decay, model="misaligned")
    closed = predict_norm(schedule, 0.7, at, 2.0, **options)
    np.testing.assert_allclose(
        predict_norm(lambda t: schedule(t), 0.7, at, 2.0, **options), closed, rtol=1e-7
    )


def test_a_drop_of_the_rate_is_not_stepped_over():
    def schedule(t):
        return 0.01 if 5_000 <= t < 5_050 else 1e-6

    assert aligned(schedule, 1.0, 10_000) == pytest.approx(np.exp(0.5), rel=0.03)


@settings(deadline=None)
@given(st.floats(0, 2), st.floats(1e-4, 0.1), models, st.sampled_from(["decoupled", "eq3"]))
def test_under_assumption_1_decay_has_a_threshold_and_no_equilibrium(kappa, lr, model, decay):
    lam = holding_decay(kappa, lr, model=model, decay=decay)
    assume(lam * (1 if decay == "eq3" else lr) < 0.4)
    at = np.array([0, 1_000])
    options = dict(model=model, decay=decay)
    still = predict_norm(constant(lr), kappa, at, 3.0, weight_decay=lam, **options)
    np.testing.assert_allclose(still, 3.0, rtol=1e-9)
    if lam * lr > 1e-9:
        more, less = (
            predict_norm(constant(lr), kappa, at, 3.0, weight_decay=f * lam, **options)[1] for f in (1.1, 0.9)
        )
        assert more < 3.0 < less


# --- edges ---------------------------------------------------------------------------------------


def test_nothing_moves_without_rate_or_kappa():
    for schedule, kappa in ((constant(0.0), 1.0), (constant(0.1), 0.0), (lambda t: 0.0, 1.0)):
        for model in ("aligned", "misaligned"):
            for discrete in (False, True):
                np.testing.assert_array_equal(
                    predict_norm(schedule, kappa, [0, 10, 100], 2.0, model=model, discrete=discrete), 2.0
                )
    np.testing.assert_array_equal(misaligned(constant(0.1), 1.0, [0, 5], 0.0), 0.0)
    assert misaligned(constant(0.1), 1.0, [], 1.0).shape == (0,)
    assert aligned(constant(1.0), 1.0, 10_000) == np.inf
    assert aligned(constant(1.0), 0.0, 10_000, weight_decay=0.9) == 0
    assert misaligned(constant(0.1), 1.0, 3, 2.0).shape == ()


def test_a_root_that_is_not_defined_at_0():
    def eta(t):
        return 1 / t**0.5

    with pytest.raises(InputError, match="no value at step 0"):
        misaligned(eta, 1.0, 10, discrete=True)
    with pytest.raises(InputError, match="no value at step 0"):
        misaligned(eta, 1.0, 10)
    assert misaligned(eta, 1.0, 100, start=1) == pytest.approx(10.0)


@pytest.mark.parametrize("model", ["aligned", "misaligned"])
def test_powers_near_1_and_norms_near_0_keep_their_digits(model):
    at = [0, 50, 100]
    near, one = (predict_norm(constant(0.05), 0.7, at, 2.0, model=model, p=p) for p in (1 - 1e-12, 1.0))
    np.testing.assert_allclose(near, one, rtol=1e-10)
    still = predict_norm(constant(0.05), 0.7, at, 1e-200, model=model, p=3.0)
    np.testing.assert_allclose(still, 1e-200, rtol=1e-10)


def test_norms_that_leave_for_infinity():
    assert aligned(constant(0.1), 1.0, 200, 1.0, p=2.0) == np.inf  # 1/(1 − t/10)
    assert aligned(constant(0.1), 1.0, 5, 1.0, p=2.0) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(kappa=-1.0), "kappa must be >= 0, got -1"),
        (dict(kappa=float("nan")), "kappa must be >= 0"),
        (dict(norm0=-1.0), "norm0 must be >= 0"),
        (dict(weight_decay=-1.0), "weight decay must be >= 0"),
        (dict(start=5, steps=[4, 6]), "start .5., got 4"),
        (dict(model="sideways"), "'sideways'; known: aligned, misaligned"),
        (dict(decay="sideways"), "known: decoupled, eq3"),
        (dict(weight_decay=1.5, decay="eq3", discrete=True), "weight decay 1.5"),
        (dict(steps=[0.5], discrete=True), "integer steps"),
        (dict(schedule=lambda t: -1.0), "got -1.0 at step 0"),
        (dict(schedule=lambda t: float("nan"), discrete=True), "got nan at step 0"),
        (dict(schedule=[0.1, 0.2].__getitem__), "no value at step 0: list indices"),
        (dict(schedule=[0.1, 0.2].__getitem__, discrete=True), "no value at step 2: list index out of range"),
        (dict(steps=10**9, discrete=True), "too many steps for a callable schedule: 10{9} "),
    ],
)
def test_bad_arguments_are_one_clear_line(change, said):
    arguments = dict(schedule=constant(0.1), kappa=1.0, steps=10, norm0=1.0) | change
    with pytest.raises(InputError, match=said) as error:
        predict_norm(**arguments)
    assert "\n" not in str(error.value)


def test_a_schedule_of_whole_steps_goes_step_by_step():
    table = [0.1, 0.2, 0.05]
    assert aligned(table.__getitem__, 1.0, 3, discrete=True) == pytest.approx(1.1 * 1.2 * 1.05)
