"""κ from checkpoints of vectors whose κ is known."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vectors import norms, simulate

from normgrowth.dynamics.kappa import fit_kappa, kappa_of_growth
from normgrowth.dynamics.prediction import predict_norm
from normgrowth.errors import InputError
from normgrowth.fit.bootstrap import block_bootstrap_indices
from normgrowth.schedules import constant, cosine, inverse_sqrt

COSINE = cosine(0.05, 400, warmup=40, end=0.005)


def seen(path, every, start=0):
    """What checkpoints show of a path: steps, norms, and step sizes between them."""
    kept = path[::every]
    return np.arange(len(kept)) * every + start, norms(kept), norms(np.diff(kept, axis=0))


@pytest.mark.parametrize("every", [1, 10, 50])
def test_of_misaligned_steps_squares_add(every):
    found = fit_kappa(*seen(simulate(COSINE, 1.5, 400), every), COSINE)
    assert found.value == pytest.approx(1.5, rel=1e-9 if every == 1 else 0.01)
    assert found.drift == pytest.approx(1.0, abs=0.03)
    assert found.each[-1] == pytest.approx(1.5, rel=0.05)


@pytest.mark.parametrize("every", [1, 10, 50])
def test_of_aligned_steps_lengths_add(every):
    path = simulate(COSINE, 0.2, 400, model="aligned", dims=100)
    found = fit_kappa(*seen(path, every), COSINE, model="aligned")
    assert found.value == pytest.approx(0.2, rel=1e-9 if every == 1 else 0.01)
    np.testing.assert_allclose(found.each[1:], 0.2, rtol=0.01)  # in the first, η(0) is 0


def test_lengths_give_a_lower_bound_whatever_the_steps_do():
    for options in (dict(model="aligned"), dict(), dict(alignment=0.3)):
        path = simulate(COSINE, 0.7, 400, dims=500, **options)
        assert fit_kappa(*seen(path, 20), COSINE, model="aligned").value <= 0.7 * 1.02


@settings(deadline=None)
@given(st.floats(0.01, 3), st.floats(0.01, 100))
def test_exact_on_exact_dynamics(kappa, c):
    """Norms and steps of the flow itself give κ back, to rounding; and units do not matter."""
    eta = inverse_sqrt(0.1 * c, hold=100)
    steps = np.array([0, 100, 1_000, 5_000, 5_100])
    grown = np.exp((kappa / c) ** 2 / 2 * np.array([eta(np.arange(t)) @ eta(np.arange(t)) for t in steps]))
    sizes = np.sqrt(np.diff(grown**2))
    assert fit_kappa(steps, grown, sizes, eta).value == pytest.approx(kappa / c, rel=1e-6)
    assert kappa_of_growth(steps, grown, eta) == pytest.approx(kappa / c, rel=1e-6)


def test_a_single_step_every_now_and_then():
    path = simulate(COSINE, 1.5, 400, dims=200)
    steps = np.arange(5, 400, 50)
    sizes = norms(path[steps + 1] - path[steps])
    for model in ("aligned", "misaligned"):
        found = fit_kappa(steps, norms(path[steps]), sizes, COSINE, single=True, model=model)
        np.testing.assert_allclose(found.each, 1.5, rtol=1e-9)
        assert found.value == pytest.approx(1.5)


@pytest.mark.parametrize(("decay", "lam"), [("decoupled", 0.5), ("eq3", 0.01)])
def test_what_decay_took_is_given_back(decay, lam):
    options = dict(weight_decay=lam, decay=decay)
    path = simulate(COSINE, 1.0, 400, **options)
    steps, n, sizes = seen(path, 40)
    assert fit_kappa(steps, n, sizes, COSINE, **options).value == pytest.approx(1.0, rel=0.02)
    assert fit_kappa(steps, n, sizes, COSINE).value > 1.03  # the decay, taken for steps
    assert kappa_of_growth(steps, n, COSINE, **options) == pytest.approx(1.0, rel=0.03)
    every = np.arange(0, 400, 7)
    single = fit_kappa(
        every, norms(path[every]), norms(path[every + 1] - path[every]), COSINE, single=True, **options
    )
    assert single.value == pytest.approx(1.0, rel=0.01)


def test_other_powers_of_the_norm():
    path = simulate(COSINE, 2.0, 400, p=0.0)
    assert fit_kappa(*seen(path, 40), COSINE, p=0.0).value == pytest.approx(2.0, rel=0.01)


def test_momentum_makes_kappa_of_sparse_checkpoints_larger_than_that_of_steps():
    """By √((1 + β₁)/(1 − β₁)) for Adam: the long-run square of correlated updates."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.nn.Parameter(torch.randn(2_000, generator=generator, dtype=torch.float64))
    adam = torch.optim.AdamW([weights], lr=1e-3, betas=(0.9, 0.999), weight_decay=0.0)
    path = []
    for _ in range(1_621):
        path.append(weights.detach().numpy().copy())
        weights.grad = torch.randn(2_000, generator=generator, dtype=torch.float64)
        adam.step()
    steps, sparse = seen(np.array(path[101:]), 1), seen(np.array(path[101:]), 190)
    once = fit_kappa(*steps, constant(1e-3), p=0.0).value
    assert once == pytest.approx(np.sqrt(2_000 / 19), rel=0.02)
    many = fit_kappa(*sparse, constant(1e-3), p=0.0).value
    assert many / once == pytest.approx(np.sqrt(19), rel=0.05)  # less 9/190 of it, at the ends of intervals


def test_growth_and_steps_tell_the_same_story_where_the_model_holds():
    steps, n, sizes = seen(simulate(COSINE, 1.5, 400), 20)
    assert kappa_of_growth(steps, n, COSINE) == pytest.approx(
        fit_kappa(steps, n, sizes, COSINE).value, rel=0.02
    )
    pulled = seen(simulate(COSINE, 1.5, 400, alignment=0.1), 20)
    assert kappa_of_growth(*pulled[:2], COSINE) > 1.3 * fit_kappa(*pulled, COSINE).value
    assert np.isnan(kappa_of_growth([0, 10], [2.0, 1.0], COSINE))
    assert kappa_of_growth([0, 10, 20], [1.0, 1.0, 1.0], constant(0.1)) == 0
    assert np.isnan(kappa_of_growth([0, 10], [1.0, 2.0], constant(0.0)))


def test_the_interval_covers_kappa_and_shrinks_with_more_of_it():
    """κ scattered by a factor around 1 from interval to interval."""
    rng = np.random.default_rng(0)
    steps = np.arange(0, 20_001, 100)
    hits = 0
    widths = {}
    for count in (20, 200):
        hits = 0
        for trial in range(40):
            scatter = 1 + 0.3 * rng.standard_normal(count)
            n = np.ones(count + 1)
            sizes = np.sqrt(np.abs(scatter)) * 1e-3 * 10
            found = fit_kappa(steps[: count + 1], n, sizes, constant(1e-3), seed=trial)
            hits += found.low <= 1.0 <= found.high
            widths[count] = found.high - found.low
        assert hits >= 32
    assert widths[200] < widths[20] / 2
    again = fit_kappa(steps[: count + 1], n, sizes, constant(1e-3), seed=trial)
    assert (again.low, again.high) == (found.low, found.high)


def test_a_kappa_that_changes_shows_as_drift():
    first = simulate(COSINE, 1.0, 400, dims=2_000)
    second = simulate(constant(0.02), 2.0, 400, norm0=norms(first)[-1], dims=2_000)
    steps, n, sizes = seen(first, 20)
    more = seen(second, 20, start=400)
    rates = lambda t: COSINE(t) if t < 400 else 0.02  # noqa: E731
    steps, n, sizes = (
        np.append(steps, more[0][1:]),
        np.append(n, more[1][1:]),
        np.append(sizes, more[2]),
    )
    assert fit_kappa(steps, n, sizes, rates).drift == pytest.approx(2.0, rel=0.05)


def test_gaps_are_left_out():
    steps, n, sizes = seen(simulate(COSINE, 1.5, 400, dims=2_000), 20)
    n[3] = np.nan
    sizes[2:4] = np.nan
    found = fit_kappa(steps, n, sizes, COSINE)
    assert found.value == pytest.approx(1.5, rel=0.03)
    assert list(np.flatnonzero(np.isnan(found.each))) == [2, 3]
    dead = fit_kappa([0, 1, 2, 3], [1, 1, 1, 1.0], [0, 0.1, 0.1], cosine(0.1, 10, warmup=1))
    assert np.isnan(dead.each[0])  # η(0) = 0: nothing to measure
    assert np.isnan(dead.low)  # and too few for an interval
    assert fit_kappa([0, 10], [1.0, 1.0], [0.0], constant(0.1)).value == 0


def test_very_long_runs_are_integrated():
    eta = inverse_sqrt(0.01, hold=10_000)
    steps = np.arange(0, 10**9 + 1, 10**8)
    n = predict_norm(eta, 0.7, steps)
    assert fit_kappa(steps, n, np.sqrt(np.diff(n**2)), eta).value == pytest.approx(0.7, rel=1e-6)
    with pytest.raises(InputError, match="use a Schedule"):
        fit_kappa(steps, n, np.sqrt(np.diff(n**2)), lambda t: 0.1)


@pytest.mark.parametrize(
    ("steps", "n", "sizes", "said"),
    [
        ([0, 10], [1.0], [1.0], "2 steps need 2 norms and 1 step sizes"),
        ([0, 10], [1.0, 2.0], [1.0, 1.0], "1 step sizes"),
        ([0], [1.0], [], "at least one interval"),
        ([0, 0], [1.0, 2.0], [1.0], "steps must increase"),
        ([0, 10], [0.0, 0.0], [1.0], "κ"),
        ([0, 10], [np.nan, 1.0], [1.0], "κ"),
    ],
)
def test_bad_arguments_are_one_clear_line(steps, n, sizes, said):
    with pytest.raises(InputError, match=said):
        fit_kappa(steps, n, sizes, constant(0.1))
    with pytest.raises(InputError, match="two finite norms"):
        kappa_of_growth([0], [1.0], constant(0.1))


def test_blocks_keep_neighbors_together():
    drawn = block_bootstrap_indices(100, seed=0)
    assert drawn.shape == (2000, 100)
    assert ((np.diff(drawn, axis=1) % 100) == 1).mean() > 0.85
    assert np.abs(np.bincount(drawn.ravel()) - 2000).max() < 400
    assert predict_norm(constant(0.1), 1.0, 0) == 1
