"""Claim `prediction`: the first third of a run predicts the rest, by misaligned dynamics and by a power law."""

import numpy as np
import pytest

from normgrowth import schedules
from normgrowth.paper.claim import judge
from normgrowth.paper.claims import CLAIMS
from normgrowth.paper.claims.predicted_growth import predicted
from normgrowth.paper.evidence import Evidence
from normgrowth.paper.published.figure1 import SCHEDULE
from normgrowth.paper.published.t5_stacks import t5_sums
from normgrowth.paper.published.tables import published


def walk(rate, kappa, steps, norm0=3.0):
    """Norms and step sizes of misaligned dynamics, one optimizer step after the other."""
    square, squares = norm0**2, [norm0**2]
    for step in range(steps[-1]):
        square *= 1 + (kappa * float(rate(step))) ** 2
        squares.append(square)
    norms = np.sqrt(np.array(squares))[steps]
    return norms, np.sqrt(np.diff(norms**2))  # orthogonal steps: squares add


def test_a_run_of_misaligned_dynamics_is_explained():
    rate = schedules.inverse_sqrt(0.1, hold=400)
    steps = np.arange(0, 3001, 100)
    norms, sizes = walk(rate, 0.8, steps)
    found = predicted(steps, norms, sizes, rate)
    assert found.errors["misaligned"] < 5e-3
    assert found.errors["aligned"] > 1
    assert found.errors["constant"] == pytest.approx(1 - norms[10] / norms[-1])
    assert found.explained


def test_a_run_of_aligned_dynamics_is_not():
    """θ grows along itself, so lengths add: ‖δ‖ is the growth of ‖θ‖."""
    rate = schedules.constant(1e-3)
    steps = np.arange(0, 3001, 100)
    norms = 2 * (1 + 1e-3) ** steps.astype(float)
    found = predicted(steps, norms, np.diff(norms), rate)
    assert found.errors["aligned"] < 1e-2
    assert found.errors["misaligned"] > 0.1
    assert not found.explained


def test_a_norm_that_stays_is_best_predicted_by_itself():
    """Steps that cancel: they have a size, but the norm does not grow."""
    steps = np.arange(0, 3001, 100)
    found = predicted(steps, np.ones(31), np.full(30, 0.02), schedules.constant(1e-3))
    assert found.errors["constant"] == 0
    assert not found.explained


def test_t5_by_hand():
    """κ² = Σ‖δ‖² / Σ(‖θ‖²·Ση²) over 35 checkpoints, then ‖θ‖² grows by exp(κ²∫η²) with η = 1/√max(t, 10⁴)."""
    norm = published("t5_norm")
    steps, norms = norm["step"].astype(float), norm["norm"]
    sizes = published("t5_steps")["step_size"]
    known = int((steps <= steps[-1] / 3).sum())
    assert known == 35
    exposure = np.where(steps <= 1e4, steps / 1e4, 1 + np.log(np.maximum(steps, 1e4) / 1e4))  # ∫η²
    squares = norms**2
    middle = np.diff(squares) / np.diff(np.log(squares))
    kappa2 = (sizes[: known - 1] ** 2).sum() / (middle * np.diff(exposure))[: known - 1].sum()
    expected = norms[known - 1] * np.exp(kappa2 / 2 * (exposure[known:] - exposure[known - 1]))
    error = np.abs(expected / norms[known:] - 1).max()
    found = predicted(norm["step"], norms, sizes, schedules.parse(SCHEDULE))
    assert found.errors["misaligned"] == pytest.approx(error, rel=0.02)
    assert found.errors["misaligned"] == pytest.approx(0.247, abs=0.003)
    assert found.errors["eq. (2)"] == pytest.approx(0.017, abs=1e-3)
    encoder = t5_sums("encoder")
    own = predicted(
        norm["step"], encoder.norms()["norm"], encoder.steps()["step_size"], schedules.parse(SCHEDULE)
    )
    assert own.errors["misaligned"] == pytest.approx(0.184, abs=0.003)


def test_the_stage_is_needed():
    assert judge(CLAIMS["prediction"], Evidence()).verdict == "not measured here"
