"""The equilibrium of random gradients for a run, and the decay that optimizers apply."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from vectors import norms

from normgrowth.dynamics.equilibrium import equilibrium
from normgrowth.dynamics.prediction import predict_norm
from normgrowth.dynamics.weight_decay import OptimizerSettings, decoupled_equivalent, equilibria
from normgrowth.errors import InputError
from normgrowth.schedules import constant, cosine


def test_a_run_beside_its_equilibrium():
    generator = torch.Generator().manual_seed(0)
    weights = torch.nn.Parameter(torch.randn(2_000, generator=generator) * 0.05)
    optimizer = torch.optim.AdamW([weights], lr=1.0, weight_decay=0.5)
    schedule = constant(1e-2, warmup=20)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    path = []
    for _ in range(801):
        path.append(weights.detach().double().numpy().copy())
        weights.grad = torch.randn(2_000, generator=generator)
        optimizer.step()
        scheduler.step()
    settings = OptimizerSettings(numel=2_000)
    steps = np.arange(0, 801, 50)
    (row,) = equilibria(steps, norms(np.array(path))[::50], schedule, 0.5, settings, 1.0)
    assert row.lr == 1e-2
    assert row.reached == pytest.approx(1.0, abs=0.03)
    assert row.stationary_decay == pytest.approx(1e-2 / (2 * 0.05**2), rel=0.2)  # the slow limit


def test_peak_and_last_rate():
    settings = OptimizerSettings("sgd", gradient_norm=2.0, momentum=0.9)
    rows = equilibria([0, 100, 300], [1.0, 2.0, 2.5], cosine(0.1, 400, warmup=100), 0.01, settings, 1.0)
    assert [row.step for row in rows] == [100, 299]
    assert rows[0].lr == 0.1 > rows[1].lr
    for row in rows:
        assert row.equilibrium == equilibrium(lr=row.lr, weight_decay=0.01, **asdict(settings))
    ended = equilibria([0, 100, 900], [1.0, 2.0, 2.5], cosine(0.1, 400), 0.01, settings, 1.0)
    assert ended[-1].lr == 0
    assert np.isnan(ended[-1].equilibrium.norm)
    (none,) = equilibria([0, 100], [1.0, 2.0], constant(0.1), 0.0, settings, 1.0)
    assert none.equilibrium.norm == np.inf
    with pytest.raises(InputError, match="after step 0"):
        equilibria([0], [1.0], constant(0.1), 0.1, settings, 1.0)


def test_too_little_is_known_for_an_equilibrium():
    norms = [0, 100], [1.0, 2.0], constant(0.1)
    assert equilibria(*norms, 0.1, OptimizerSettings(numel=None), 1.0) == ()
    assert equilibria(*norms, 0.0, OptimizerSettings("sgd"), 1.0) == ()
    with pytest.raises(InputError, match="gradient_norm"):
        equilibria(*norms, 0.1, OptimizerSettings("sgd"), 1.0)


def test_how_fast_a_coupled_decay_shrinks():
    sgd = OptimizerSettings("sgd", momentum=0.9, gradient_norm=1.0)
    assert decoupled_equivalent(0.1, sgd) == pytest.approx(1.0)
    assert decoupled_equivalent(0.1, replace(sgd, decay="decoupled")) == 0.1
    adam = OptimizerSettings("adamw", numel=400, decay="coupled")
    assert decoupled_equivalent(0.1, replace(adam, gradient_norm=2.0)) == pytest.approx(1.0)
    assert decoupled_equivalent(0.1, OptimizerSettings(numel=400)) == 0.1
    with pytest.raises(InputError, match="gradient_norm"):
        decoupled_equivalent(0.1, adam)
    with pytest.raises(InputError, match="gradient_norm must be > 0, got -1"):
        decoupled_equivalent(0.1, replace(adam, gradient_norm=-1.0))
    with pytest.raises(InputError, match="numel"):
        decoupled_equivalent(0.1, replace(adam, gradient_norm=2.0, numel=None))
    for momentum in (1.0, 2.0):
        with pytest.raises(InputError, match="momentum must be"):
            decoupled_equivalent(0.1, replace(sgd, momentum=momentum))


@pytest.mark.parametrize("decay", ["coupled", "decoupled", "eq3"])
def test_the_decay_that_holds_any_norm_is_in_the_optimizer_s_own_units(decay):
    settings = OptimizerSettings("sgd", momentum=0.9, gradient_norm=1.0, decay=decay)
    (row,) = equilibria([0, 100], [1.0, 2.0], constant(0.1), 1e-4, settings, 0.5)
    way = "eq3" if decay == "eq3" else "decoupled"
    decoupled = decoupled_equivalent(row.holding_decay, settings)
    still = predict_norm(constant(0.1), 0.5, 1_000, weight_decay=decoupled, decay=way)
    assert still == pytest.approx(1.0, rel=1e-2)
