"""The equilibrium of random gradients beside the norms of a run."""

import numpy as np
import pytest
import torch
from vectors import norms

from normgrowth.dynamics.equilibrium import equilibrium
from normgrowth.dynamics.prediction import predict_norm
from normgrowth.dynamics.weight_decay import felt_decay, sentences, settling
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
    setting = dict(optimizer="adamw", numel=2_000)
    steps = np.arange(0, 801, 50)
    (row,) = settling(steps, norms(np.array(path))[::50], schedule, 0.5, **setting)
    assert row.lr == 1e-2
    assert row.reached == pytest.approx(1.0, abs=0.03)
    assert row.boundary == pytest.approx(1e-2 / (2 * 0.05**2), rel=0.2)  # the slow limit
    text = sentences([row], 0.5, 1.0, setting)
    assert "settle at a norm of" in text[0]
    assert "λ* =" in text[1]


def test_peak_and_last_rate():
    setting = dict(optimizer="sgd", gradient_norm=2.0, momentum=0.9)
    rows = settling([0, 100, 300], [1.0, 2.0, 2.5], cosine(0.1, 400, warmup=100), 0.01, **setting)
    assert [row.step for row in rows] == [100, 299]
    assert rows[0].lr == 0.1 > rows[1].lr
    for row in rows:
        assert row.equilibrium == equilibrium(lr=row.lr, weight_decay=0.01, **setting)
    ended = settling([0, 100, 900], [1.0, 2.0, 2.5], cosine(0.1, 400), 0.01, **setting)
    assert "nothing but the decay moves" in sentences(ended, 0.01, 1.0, setting)[-1]
    none = settling([0, 100], [1.0, 2.0], constant(0.1), 0.0, **setting)
    assert "there is no equilibrium" in sentences(none, 0.0, 1.0, setting)[0]
    with pytest.raises(InputError, match="after step 0"):
        settling([0], [1.0], constant(0.1), 0.1, **setting)


def test_how_fast_a_coupled_decay_shrinks():
    sgd = dict(optimizer="sgd", momentum=0.9, gradient_norm=1.0)
    assert felt_decay(0.1, sgd) == pytest.approx(1.0)
    assert felt_decay(0.1, sgd | dict(decay="decoupled")) == 0.1
    adam = dict(optimizer="adamw", numel=400, decay="coupled")
    assert felt_decay(0.1, adam | dict(gradient_norm=2.0)) == pytest.approx(1.0)
    assert felt_decay(0.1, dict(optimizer="adamw", numel=400)) == 0.1
    with pytest.raises(InputError, match="gradient_norm"):
        felt_decay(0.1, adam)
    with pytest.raises(InputError, match="gradient_norm must be more than 0, not -1"):
        felt_decay(0.1, adam | dict(gradient_norm=-1.0))
    with pytest.raises(InputError, match="depends on numel"):
        felt_decay(0.1, adam | dict(gradient_norm=2.0, numel=None))
    for momentum in (1.0, 2.0):
        with pytest.raises(InputError, match="momentum must be"):
            felt_decay(0.1, sgd | dict(momentum=momentum))


@pytest.mark.parametrize("decay", ["coupled", "decoupled", "eq3"])
def test_the_decay_that_holds_any_norm_is_in_the_optimiser_s_own_units(decay):
    setting = dict(optimizer="sgd", momentum=0.9, gradient_norm=1.0, decay=decay)
    rows = settling([0, 100], [1.0, 2.0], constant(0.1), 1e-4, **setting)
    text = sentences(rows, 1e-4, 0.5, setting)[-1]
    hold = float(text.removesuffix(" would hold any.").rpartition("λ = ")[2])
    way = "eq3" if decay == "eq3" else "decoupled"
    still = predict_norm(constant(0.1), 0.5, 1_000, weight_decay=felt_decay(hold, setting), decay=way)
    assert still == pytest.approx(1.0, rel=1e-2)
