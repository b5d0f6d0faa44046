"""Equilibria against PyTorch's own optimizers, fed with random gradients until they settle."""

from math import inf, isnan, nan, pi, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vectors import norms

from normgrowth.dynamics.equilibrium import equilibrium, stationary_decay
from normgrowth.errors import InputError

pytestmark = pytest.mark.usefixtures("one_thread")

C = 10_000


def train(make, steps, norm0, *, gradient_norm=100.0, invariant=False, shrink=0.0, seed=0):
    """θ at each step under random gradients of a known norm; if invariant orthogonal to θ, and ∝ 1/‖θ‖.

    shrink: θ is multiplied by 1 − shrink before each step, for decays that PyTorch does not have.
    """
    generator = torch.Generator().manual_seed(seed)

    def random():
        return torch.randn(C, generator=generator, dtype=torch.float64)

    start = random()
    weights = torch.nn.Parameter(start * norm0 / start.norm())
    optimizer = make([weights])
    path = []
    for _ in range(steps):
        theta = weights.detach()
        path.append(theta.numpy().copy())
        g = random()
        size = gradient_norm / sqrt(C)
        if invariant:
            g -= theta * (theta @ g) / (theta @ theta)
            size /= float(theta.norm())
        weights.grad = g * size
        theta.mul_(1 - shrink)
        optimizer.step()
    return np.array(path)


def measured(path, lag=1):
    """Norm and mean angle of a path's second half."""
    path = path[len(path) // 2 :]
    n = norms(path)
    cosine = (path[lag:] * path[:-lag]).sum(axis=1) / (n[lag:] * n[:-lag])
    return np.sqrt((n**2).mean()), np.arccos(cosine.mean())


def adamw(lr, lam, betas):
    return lambda p: torch.optim.AdamW(p, lr=lr, weight_decay=lam, betas=betas)


def sgd(lr, lam, mu):
    return lambda p: torch.optim.SGD(p, lr=lr, weight_decay=lam, momentum=mu)


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize(
    ("lr", "lam", "betas"),
    [
        (1e-2, 1.0, (0.9, 0.999)),
        (2e-2, 0.5, (0.9, 0.95)),
        (1e-2, 1.0, (0.0, 0.95)),
        (5e-2, 2.0, (0.9, 0.99)),  # decay as fast as momentum: far from the slow limit
    ],
)
def test_adamw(lr, lam, betas, invariant):
    found = equilibrium(lr=lr, weight_decay=lam, numel=C, betas=betas, invariant=invariant)
    path = train(adamw(lr, lam, betas), 800, found.norm, gradient_norm=7.0, invariant=invariant)
    norm, rotation = measured(path)
    assert norm == pytest.approx(found.norm, rel=0.01)
    assert rotation == pytest.approx(found.rotation, rel=0.01)
    assert measured(path, 20)[1] == pytest.approx(found.angle(20), rel=0.02)


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize(("lr", "lam", "mu"), [(0.1, 0.1, 0.0), (0.1, 0.02, 0.9), (0.05, 0.1, 0.9)])
def test_sgd(lr, lam, mu, invariant):
    found = equilibrium("sgd", lr=lr, weight_decay=lam, momentum=mu, gradient_norm=3.0, invariant=invariant)
    path = train(sgd(lr, lam, mu), 800, found.norm, gradient_norm=3.0, invariant=invariant)
    norm, rotation = measured(path)
    assert norm == pytest.approx(found.norm, rel=0.01)
    assert rotation == pytest.approx(found.rotation, rel=0.01)
    assert measured(path, 20)[1] == pytest.approx(found.angle(20), rel=0.02)


@pytest.mark.parametrize(("optimizer", "mu"), [("sgd", 0.0), ("sgd", 0.9), ("adamw", 0.9)])
@pytest.mark.parametrize("decay", ["decoupled", "eq3"])
def test_decays_that_are_not_pytorch_s(optimizer, mu, decay):
    lr = 0.05
    lam, shrink = (0.2, 0.01) if decay == "decoupled" else (0.01, 0.01)
    found = equilibrium(
        optimizer, lr=lr, weight_decay=lam, momentum=mu, gradient_norm=3.0, numel=C, decay=decay
    )
    make = sgd(lr, 0.0, mu) if optimizer == "sgd" else adamw(lr, 0.0, (0.9, 0.999))
    norm, rotation = measured(train(make, 800, found.norm, gradient_norm=3.0, shrink=shrink))
    assert norm == pytest.approx(found.norm, rel=0.01)
    assert rotation == pytest.approx(found.rotation, rel=0.01)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.9, 0.95)])
def test_adam_with_the_decay_in_its_gradient(betas):
    options = dict(numel=C, gradient_norm=0.1 * sqrt(C), decay="coupled", betas=betas)
    found = equilibrium(lr=1e-2, weight_decay=0.1, **options)
    path = train(
        lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.1, betas=betas),
        1_000,
        found.norm,
        gradient_norm=0.1 * sqrt(C),
    )
    norm, rotation = measured(path)
    assert norm == pytest.approx(found.norm, rel=0.015)
    assert rotation == pytest.approx(found.rotation, rel=0.02)


# --- the way there -------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [3.0, 0.6])
@pytest.mark.parametrize("case", ["adamw", "sgd", "momentum", "invariant"])
def test_the_way_there(case, factor):
    options = dict(lr=0.1, weight_decay=0.05, gradient_norm=3.0)
    if case == "adamw":
        found = equilibrium(lr=5e-3, weight_decay=1.0, numel=C)
        make = adamw(5e-3, 1.0, (0.9, 0.999))
    elif case == "momentum":
        found = equilibrium("sgd", **(options | dict(weight_decay=0.005)), momentum=0.9)
        make = sgd(0.1, 0.005, 0.9)
    else:
        found = equilibrium("sgd", **options, invariant=case == "invariant")
        make = sgd(0.1, 0.05, 0.0)
    n = norms(train(make, 600, factor * found.norm, gradient_norm=3.0, invariant=case == "invariant"))
    # Adam's first updates are larger, before its averages fill, and momentum takes 1/(1 − μ) steps to gather:
    # the curve may run ahead or behind by up to twice as many.
    shift = 20 if case in ("adamw", "momentum") else 0
    t = np.arange(len(n))
    early, late = (found.norm_at(np.maximum(t + s, 0), factor * found.norm) for s in (-shift, shift))
    assert (n <= 1.02 * np.maximum(early, late)).all()
    assert (n >= 0.98 * np.minimum(early, late)).all()
    within = found.time_from(factor * found.norm, within=0.1)
    away = np.abs(n / found.norm - 1)
    assert away[int(within * 0.9) - shift] > 0.1 > away[int(within * 1.1) + shift]


def test_time_doubles_in_speed_where_weights_are_invariant():
    options = dict(lr=0.1, weight_decay=0.01, gradient_norm=1.0)
    plain, fast = (equilibrium("sgd", invariant=i, **options) for i in (False, True))
    assert plain.time == pytest.approx(1 / (2 * 0.001), rel=0.01)
    assert fast.time == pytest.approx(plain.time / 2)
    assert fast.rotation == plain.rotation


# --- the slow limit, which is what PAPER.md and the literature write ------------------------------

slow = st.floats(1e-7, 1e-4)
memories = st.floats(0, 0.95)


@settings(deadline=None)
@given(slow, slow, memories, st.integers(1, 10**9))
def test_slow_decay_of_adamw(lr, lam, beta1, numel):
    found = equilibrium(lr=lr, weight_decay=lam, numel=numel, betas=(beta1, 1 - 1e-9))
    assert found.norm == pytest.approx(sqrt(lr * numel / (2 * lam)), rel=1e-3)
    assert found.rotation == pytest.approx(sqrt(2 * lr * lam * (1 - beta1) / (1 + beta1)), rel=1e-3)
    assert found.time == pytest.approx(1 / (2 * lr * lam), rel=1e-3)


@settings(deadline=None)
@given(slow, slow, memories, st.floats(1e-3, 1e3))
def test_slow_decay_of_sgd(lr, lam, mu, g):
    coupled, decoupled = (
        equilibrium("sgd", lr=lr, weight_decay=lam, momentum=mu, gradient_norm=g, decay=decay)
        for decay in ("coupled", "decoupled")
    )
    assert coupled.norm == pytest.approx(g * sqrt(lr / (2 * lam * (1 - mu))), rel=1e-3)
    assert coupled.rotation == pytest.approx(sqrt(2 * lr * lam / (1 + mu)), rel=1e-3)
    assert coupled.time == pytest.approx((1 - mu) / (2 * lr * lam), rel=1e-3)
    assert decoupled.norm == pytest.approx(g * sqrt(lr / (2 * lam)) / (1 - mu), rel=1e-3)
    assert decoupled.rotation == pytest.approx(sqrt(2 * lr * lam * (1 - mu) / (1 + mu)), rel=1e-3)
    assert decoupled.time == pytest.approx(1 / (2 * lr * lam), rel=1e-3)


def test_beta1_is_not_in_the_norm_but_in_the_rotation():
    found = [
        equilibrium(lr=1e-3, weight_decay=0.01, numel=C, betas=(b, 1 - 1e-9)) for b in (0.0, 0.5, 0.9, 0.95)
    ]
    for one in found[1:]:
        assert one.norm == pytest.approx(found[0].norm, rel=1e-3)
        assert one.rotation < found[0].rotation


def test_long_lags_turn_by_a_right_angle():
    found = equilibrium(lr=1e-2, weight_decay=1.0, numel=C)
    angles = found.angle([0, 1, 2, 10, 100, 10_000])
    assert angles[0] == 0
    assert angles[1] == found.rotation
    assert (np.diff(angles) > 0).all()
    assert angles[-1] == pytest.approx(pi / 2)
    assert found.angle(1) == pytest.approx(np.arccos((0.99 + 0.9) / (1 + 0.99 * 0.9)))
    equal = equilibrium(lr=0.1, weight_decay=1.0, numel=C, betas=(0.9, 0.999))  # both roots are 0.9
    assert equal.angle(2) == pytest.approx(
        equilibrium(lr=0.1001, weight_decay=1.0, numel=C).angle(2), rel=1e-2
    )


# --- λ* ------------------------------------------------------------------------------------------

CASES = [
    ("adamw", dict(numel=C)),
    ("adamw", dict(numel=C, betas=(0.9, 0.95), decay="eq3")),
    ("adamw", dict(numel=C, decay="coupled", gradient_norm=5.0)),
    ("sgd", dict(gradient_norm=5.0)),
    ("sgd", dict(gradient_norm=5.0, momentum=0.9)),
    ("sgd", dict(gradient_norm=5.0, momentum=0.9, invariant=True)),
    ("sgd", dict(gradient_norm=5.0, momentum=0.9, decay="decoupled")),
    ("sgd", dict(gradient_norm=5.0, decay="eq3")),
]


@settings(deadline=None)
@given(st.sampled_from(CASES), st.floats(1e-5, 1e-2), st.floats(1.0, 1e3))
def test_at_the_boundary_the_equilibrium_is_the_norm(case, lr, norm0):
    optimizer, options = case
    lam = stationary_decay(norm0, optimizer, lr=lr, **options)
    if lam < inf:
        assert equilibrium(optimizer, lr=lr, weight_decay=lam, **options).norm == pytest.approx(
            norm0, rel=1e-9
        )
        assert equilibrium(optimizer, lr=lr, weight_decay=lam / 2, **options).norm > norm0


def test_boundary_of_adamw_is_that_of_the_claims_table():
    """λ* = ηC/(2‖θ₀‖²), which holds for slow decay; eq. (3) has η² there."""
    assert stationary_decay(50.0, lr=1e-3, numel=C) == pytest.approx(1e-3 * C / (2 * 50.0**2), rel=0.02)
    assert stationary_decay(50.0, lr=1e-3, numel=C, decay="eq3") == pytest.approx(
        1e-6 * C / (2 * 50.0**2), rel=0.02
    )
    assert stationary_decay(5.0, "sgd", lr=1e-3, gradient_norm=2.0, momentum=0.9) == pytest.approx(
        1e-3 * 2.0**2 / (2 * 0.1 * 5.0**2), rel=0.01
    )


@pytest.mark.parametrize(("times", "sign"), [(0.5, 1), (1.0, 0), (2.0, -1)])
def test_around_the_boundary_training_grows_or_shrinks(times, sign):
    lr, norm0 = 5e-3, 10.0
    lam = times * stationary_decay(norm0, lr=lr, numel=C)
    n = norms(train(adamw(lr, lam, (0.9, 0.999)), 400, norm0))
    grown = n[-100:].mean() / norm0 - 1
    assert abs(grown) < 0.02 if sign == 0 else sign * grown > 0.1


# --- edges ---------------------------------------------------------------------------------------


def test_without_decay_there_is_none():
    found = equilibrium(lr=1e-3, weight_decay=0.0, numel=C)
    assert (found.norm, found.rotation, found.time) == (inf, 0.0, inf)
    assert found.time_from(1.0) == inf
    with pytest.raises(InputError, match="no equilibrium"):
        found.norm_at(3, 1.0)


def test_without_a_learning_rate_nothing_moves():
    found = equilibrium(lr=0.0, weight_decay=0.1, numel=C)
    assert isnan(found.norm)
    assert (found.rotation, found.time) == (0.0, inf)
    assert stationary_decay(1.0, lr=0.0, numel=C) == 0
    shrinking = equilibrium(lr=0.0, weight_decay=0.1, numel=C, decay="eq3")  # eq. (3) decays all the same
    assert shrinking.norm == 0
    assert isnan(shrinking.time_from(1.0))


def test_a_norm_below_one_update_cannot_be_held():
    assert stationary_decay(1e-6, lr=1e-2, numel=C) == inf


def test_time_is_0_within_reach():
    found = equilibrium(lr=1e-3, weight_decay=0.1, numel=C)
    assert found.time_from(found.norm) == 0
    assert found.time_from(found.norm * 1.001) == 0
    assert found.time_from(found.norm * 2) > found.time


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (dict(), "numel"),
        (dict(optimizer="sgd"), "needs gradient_norm"),
        (dict(optimizer="lion"), "'lion'; known: adamw, sgd"),
        (dict(numel=C, decay="soft"), "'soft'; known: decoupled"),
        (dict(numel=C, decay="coupled"), "needs gradient_norm"),
        (dict(numel=C, decay="coupled", gradient_norm=1.0, invariant=True), "no closed form"),
        (dict(numel=C, lr=-1.0), "learning rate must be >= 0, got -1"),
        (dict(numel=C, weight_decay=nan), "weight decay must be >= 0"),
        (dict(numel=C, lr=1.0, weight_decay=1.0), "weight decay 1.0"),
        (dict(numel=C, betas=(1.0, 0.9)), "beta1 must be"),
        (dict(optimizer="sgd", gradient_norm=0.0), "gradient_norm must be > 0"),
        (dict(optimizer="sgd", gradient_norm=1.0, momentum=1.0), "momentum must be"),
    ],
)
def test_bad_arguments_are_one_clear_line(arguments, said):
    with pytest.raises(InputError, match=said):
        equilibrium(**(dict(lr=1e-3, weight_decay=0.1) | arguments))
    with pytest.raises(InputError, match="norm0"):
        stationary_decay(0.0, lr=1e-3, numel=C)
    with pytest.raises(InputError, match="between 0 and 1"):
        equilibrium(lr=1e-3, weight_decay=0.1, numel=C).time_from(1.0, within=2.0)
