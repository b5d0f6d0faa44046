"""What `examine`, `direction`, `uniformity` and `settling` say of runs whose dynamics are known."""

import numpy as np
import pytest
import torch
from vectors import PARTS, norms, simulate, write_path

from normgrowth.errors import InputError
from normgrowth.records import Block, Records
from normgrowth.schedules import constant, cosine, inverse_sqrt
from normgrowth.weights.decay import felt_decay, sentences, settling
from normgrowth.weights.direction import direction, uniformity, uniformity_sentence
from normgrowth.weights.equilibrium import equilibrium
from normgrowth.weights.evidence import examine
from normgrowth.weights.trace import trace

COSINE = cosine(0.05, 400, warmup=40, end=0.005)
LAGS = (1, 2, 4, 8, 16)


@pytest.fixture
def traced(tmp_path):
    def traced(path, every=20, lags=LAGS):
        return trace(write_path(tmp_path / f"run{len(list(tmp_path.iterdir()))}", path, every), lags=lags)

    return traced


def published(steps, norm, cosine):
    """Records of a series of which only norms and cosines are known, as the paper's Figure 1."""
    n0, n1 = norm[:-1], norm[1:]
    delta = np.sqrt(n0**2 + n1**2 - 2 * n0 * n1 * cosine)
    values = {"step_size": delta, "alignment": (n1 * cosine - n0) / delta, "angle": np.arccos(cosine)}

    def block(at, values):
        columns = {k: v[:, None] for k, v in values.items()}
        return Block("model", ["model"], [None], [None], [int(t) for t in at], columns)

    return Records.from_blocks("run", [block(steps, {"norm": norm}), block(steps[1:], values)], {})


# --- which model ---------------------------------------------------------------------------------


def test_misaligned_steps_are_found_to_be_so(traced):
    path = simulate(COSINE, 1.5, 400, norm0=7.0)
    found = examine(traced(path), COSINE, weight_decay=0.0)
    assert found.fits == "misaligned"
    assert found.kappa["misaligned"].value == pytest.approx(1.5, rel=0.01)
    assert found.growth_kappa["misaligned"] == pytest.approx(1.5, rel=0.02)
    np.testing.assert_allclose(found.predicted["misaligned"], norms(path)[::20], rtol=0.02)
    assert found.error["misaligned"] < 0.02 < found.error["aligned"]
    assert found.by_steps == pytest.approx(1.0, abs=0.05)
    assert found.by_steps + found.by_alignment == pytest.approx(1.0)
    assert abs(found.alignment) < 0.01
    assert found.displacement == pytest.approx(1.0, abs=0.05)
    assert found.interval == (20, 20)
    assert found.by_decay == 0
    assert any("20 optimiser steps apart" in text for text in found.findings)
    assert any("single steps" in text for text in found.undecided)


def test_aligned_steps_are_found_to_be_so(traced):
    path = simulate(COSINE, 0.2, 400, model="aligned", dims=1_000)
    found = examine(traced(path), COSINE, weight_decay=0.0)
    assert found.fits == "aligned"
    assert found.kappa["aligned"].value == pytest.approx(0.2, rel=0.01)
    np.testing.assert_allclose(found.predicted["aligned"], norms(path)[::20], rtol=0.01)
    assert found.alignment == pytest.approx(1.0)
    assert found.displacement == pytest.approx(20, rel=0.3)
    assert any("go on in one direction" in text for text in found.undecided)


def test_in_between_and_beneath(traced):
    between = examine(traced(simulate(COSINE, 1.5, 400, alignment=0.1)), COSINE, weight_decay=0.0)
    assert between.fits == "between"
    beneath = examine(traced(simulate(COSINE, 1.0, 400, alignment=-0.1)), COSINE, weight_decay=0.0)
    assert beneath.fits == "neither"
    assert beneath.growth < 0
    assert np.isnan(beneath.growth_kappa["misaligned"])
    assert any("fell by" in text for text in beneath.findings)
    assert "less than either" in beneath.findings[-1]


def test_kappa_of_single_steps_decides_what_checkpoints_cannot(traced):
    """Each step turns back half of the one before: checkpoints see less than the steps took."""
    rng = np.random.default_rng(0)
    theta, before, path = rng.standard_normal(4_000), 0.0, []
    lr = constant(0.01)
    for t in range(401):
        path.append(theta)
        step = rng.standard_normal(4_000)
        step = lr(t) * np.linalg.norm(theta) * step / np.linalg.norm(step)
        theta, before = theta + step - before, step  # its length is √2·η‖θ‖
    path = np.array(path)
    single = np.linalg.norm(path[1:] - path[:-1], axis=1) / (0.01 * norms(path[:-1]))
    assert single[5:].mean() == pytest.approx(np.sqrt(2), rel=0.02)
    found = examine(traced(path), lr, weight_decay=0.0)
    assert found.kappa["misaligned"].value < 0.4
    known = examine(traced(path), lr, weight_decay=0.0, kappa=float(single.mean()))
    assert known.fits == "neither"  # steps point inwards, which checkpoints cannot show
    assert not any("single steps" in text for text in known.undecided)


def test_decay_is_told_from_steps(traced):
    path = simulate(COSINE, 1.0, 400, weight_decay=0.1)
    found = examine(traced(path), COSINE, weight_decay=0.1)
    assert found.fits == "misaligned"
    assert found.kappa["misaligned"].value == pytest.approx(1.0, rel=0.02)
    turned = found.by_alignment * found.growth
    assert turned < 0
    assert found.by_decay == pytest.approx(-turned, rel=0.1)
    unknown = examine(traced(path), COSINE)
    assert unknown.fits == "neither"
    assert np.isnan(unknown.by_decay)
    assert any("weight decay" in text for text in unknown.undecided)


def test_one_layer_and_few_checkpoints(traced):
    records = traced(simulate(COSINE, 1.5, 60), every=20)
    layer = records.where(scope="layer").distinct("name")[0]
    found = examine(records, COSINE, scope="layer", name=layer)
    assert found.norms[0] == pytest.approx(records.series("norm", scope="layer", name=layer)[1][0])
    assert any("3 intervals are too few" in text for text in found.undecided)
    with pytest.raises(InputError, match="several series"):
        examine(records, COSINE, scope="layer")
    with pytest.raises(InputError, match="two are needed"):
        examine(records.where(step=0), COSINE)
    with pytest.raises(InputError, match="nothing to start from"):
        examine(traced(np.zeros((3, 20)), every=1, lags=()), COSINE)


def test_steps_one_apart_leave_nothing_hidden(traced):
    found = examine(traced(simulate(COSINE, 1.5, 30, dims=500), every=1, lags=()), COSINE, weight_decay=0.0)
    assert found.kappa["misaligned"].value == pytest.approx(1.5, rel=1e-6)
    assert not found.undecided
    assert "1 optimiser step apart" in found.findings[0]


def test_published_numbers_without_a_budget():
    steps = np.arange(0, 5_001, 500)
    norm = np.sqrt(1 + steps / 1_000)
    found = examine(published(steps, norm, norm[:-1] / norm[1:]), constant(1e-2), weight_decay=0.0)
    assert np.isnan(found.by_steps)
    assert np.isnan(found.displacement)
    assert found.alignment == pytest.approx(0, abs=1e-6)


# --- direction and uniformity --------------------------------------------------------------------


def test_misaligned_dynamics_of_the_paper_turn_on(traced):
    """η = 1/√t: the cosine of neighbours goes to 1, and the direction does not converge."""
    eta = inverse_sqrt(1.0)
    found = direction(traced(simulate(eta, 1.0, 640, dims=2_000), every=10, lags=(1, 2, 4, 8, 16, 32)))
    assert [lag.lag for lag in found.lags] == [1, 2, 4, 8, 16, 32]
    neighbours = found.lags[0]
    assert neighbours.cosine[-1] > 0.99 > neighbours.cosine[0]
    assert found.q == pytest.approx(1.0, abs=0.1)
    assert found.low < 1 < found.high + 0.05
    assert found.verdict != "converges"
    # ‖θ_t/2‖² = ‖θ_t‖²/2 and what came between is orthogonal, so the cosine stays √½ (or so).
    halves = found.doubled.earlier / found.doubled.steps
    np.testing.assert_allclose(halves, 0.5, rtol=0.1)
    np.testing.assert_allclose(found.doubled.cosine[1:], np.sqrt(halves[1:]), atol=0.03)
    assert found.total[-1] == pytest.approx(found.angle.sum())


def test_constant_relative_steps_turn_on_and_fast_decay_converges(traced):
    turning = direction(traced(simulate(constant(0.01), 1.0, 400, dims=2_000), every=10))
    assert turning.verdict == "turns on"
    fading = direction(traced(simulate(lambda t: 0.5 / (t + 1) ** 1.5, 1.0, 400, dims=2_000), every=10))
    assert fading.q == pytest.approx(3.0, abs=0.2)
    assert fading.verdict == "converges"
    assert fading.doubled.cosine[-1] > fading.doubled.cosine[0]


def test_too_little_to_say(traced):
    found = direction(traced(simulate(constant(0.01), 1.0, 40, dims=100), every=10, lags=()))
    assert np.isnan(found.q)
    assert found.verdict == "undecided"
    assert any("too few" in text for text in found.findings)
    assert any("Lags of 1, 2, 4" in text for text in found.findings)


def test_uniform_growth_and_its_opposite(traced):
    path = np.linspace(1, 3, 5)[:, None] * np.ones(100)
    even = uniformity(traced(path, every=1, lags=()))
    np.testing.assert_allclose(even.factor, 3)
    np.testing.assert_allclose(even.share, 0.5)
    assert (even.spread, even.moved) == (1.0, 0.0)
    path[:, 50:] = 1  # the second layer stays
    records = traced(path, every=1, lags=())
    uneven = uniformity(records)
    np.testing.assert_allclose(uneven.factor, [3, 1])
    np.testing.assert_allclose(uneven.share[-1], [0.9, 0.1])
    assert uneven.spread == pytest.approx(3)
    assert uneven.moved == pytest.approx(0.4)
    assert "×1 (layer.1) to ×3 (layer.0)" in uniformity_sentence(uneven, "layer")
    assert uniformity(records, scope="tensor").names == list(PARTS)
    with pytest.raises(InputError, match="no norms at scope block"):
        uniformity(records, scope="block")


def test_a_layer_that_began_at_zero_has_no_factor(traced):
    path = np.linspace(1, 3, 5)[:, None] * np.ones(100)
    path[0, 50:] = 0
    found = uniformity(traced(path, every=1, lags=()))
    assert found.factor[1] == np.inf
    assert found.spread == 1
    assert "too little" in uniformity_sentence(found, "layer")


# --- equilibrium beside a run --------------------------------------------------------------------


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
