"""What `dynamics` says of runs whose dynamics are known."""

from dataclasses import fields

import numpy as np
import pytest
from vectors import PARTS, norms, simulate, write_path

from normgrowth import results
from normgrowth.dynamics import dynamics
from normgrowth.dynamics.growth_models import change_of_norm, verdict
from normgrowth.dynamics.observed.direction import direction
from normgrowth.dynamics.observed.uniformity import uniformity
from normgrowth.dynamics.result import ModelFit
from normgrowth.errors import InputError
from normgrowth.records import Block, Records
from normgrowth.report.sentences.dynamics import direction as direction_sentences
from normgrowth.report.sentences.dynamics import findings, undecided
from normgrowth.report.sentences.dynamics import uniformity as uniformity_sentence
from normgrowth.schedules import constant, cosine, inverse_sqrt
from normgrowth.trace import trace

COSINE = cosine(0.05, 400, warmup=40, end=0.005)
LAGS = (1, 2, 4, 8, 16)


@pytest.fixture
def traced(tmp_path):
    def traced(path, every=20, lags=LAGS):
        return trace(
            write_path(tmp_path / f"run{len(list(tmp_path.iterdir()))}", path, every), lags=lags
        ).records

    return traced


def published(steps, norm, cosine):
    """Records of a series of which only norms and cosines are known, as the paper's Figure 1."""
    n0, n1 = norm[:-1], norm[1:]
    delta = np.sqrt(n0**2 + n1**2 - 2 * n0 * n1 * cosine)
    values = {"step_size": delta, "alignment": (n1 * cosine - n0) / delta, "angle": np.arccos(cosine)}

    def block(at, values):
        columns = {k: v[:, None] for k, v in values.items()}
        return Block("model", ["model"], [None], [None], [int(t) for t in at], columns)

    return Records.from_blocks("run", [block(steps, {"norm": norm}), block(steps[1:], values)])


# --- which model ---------------------------------------------------------------------------------


def test_misaligned_steps_are_found_to_be_so(traced):
    path = simulate(COSINE, 1.5, 400, norm0=7.0)
    found = dynamics(traced(path), COSINE, weight_decay=0.0)
    assert found.verdict == "misaligned"
    assert found.misaligned.kappa == pytest.approx(1.5, rel=0.01)
    assert found.misaligned.growth_kappa == pytest.approx(1.5, rel=0.02)
    np.testing.assert_allclose(found.misaligned.predicted, norms(path)[::20], rtol=0.02)
    assert found.misaligned.error < 0.02 < found.aligned.error
    assert found.budget.by_steps == pytest.approx(1.0, abs=0.05)
    assert found.budget.by_steps + found.budget.by_alignment == pytest.approx(1.0)
    assert abs(found.alignment) < 0.01
    assert found.budget.displacement == pytest.approx(1.0, abs=0.05)
    assert found.checkpoint_gap == (20, 20)
    assert found.budget.by_decay == 0
    assert "single_steps" in found.open_questions
    assert len(undecided(found)) == len(found.open_questions)


def test_aligned_steps_are_found_to_be_so(traced):
    path = simulate(COSINE, 0.2, 400, model="aligned", dims=1_000)
    found = dynamics(traced(path), COSINE, weight_decay=0.0)
    assert found.verdict == "aligned"
    assert found.aligned.kappa == pytest.approx(0.2, rel=0.01)
    np.testing.assert_allclose(found.aligned.predicted, norms(path)[::20], rtol=0.01)
    assert found.alignment == pytest.approx(1.0)
    assert found.budget.displacement == pytest.approx(20, rel=0.3)
    assert "one_direction" in found.open_questions


def test_in_between_and_beneath(traced):
    between = dynamics(traced(simulate(COSINE, 1.5, 400, alignment=0.1)), COSINE, weight_decay=0.0)
    assert between.verdict == "between"
    beneath = dynamics(traced(simulate(COSINE, 1.0, 400, alignment=-0.1)), COSINE, weight_decay=0.0)
    assert beneath.verdict == "neither"
    assert beneath.budget.growth < 0
    assert np.isnan(beneath.misaligned.growth_kappa)
    assert beneath.norms[-1] < min(beneath.aligned.predicted[-1], beneath.misaligned.predicted[-1])


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
    found = dynamics(traced(path), lr, weight_decay=0.0)
    assert found.misaligned.kappa < 0.4
    known = dynamics(traced(path), lr, weight_decay=0.0, kappa=float(single.mean()))
    assert known.verdict == "neither"  # steps point inwards, which checkpoints cannot show
    assert not any("single steps" in text for text in undecided(known))


def test_decay_is_told_from_steps(traced):
    path = simulate(COSINE, 1.0, 400, weight_decay=0.1)
    found = dynamics(traced(path), COSINE, weight_decay=0.1)
    assert found.verdict == "misaligned"
    assert found.misaligned.kappa == pytest.approx(1.0, rel=0.02)
    turned = found.budget.by_alignment * found.budget.growth
    assert turned < 0
    assert found.budget.by_decay == pytest.approx(-turned, rel=0.1)
    unknown = dynamics(traced(path), COSINE)
    assert unknown.verdict == "neither"
    assert np.isnan(unknown.budget.by_decay)
    assert "weight_decay" in unknown.open_questions


def test_one_layer_and_few_checkpoints(traced):
    records = traced(simulate(COSINE, 1.5, 60), every=20)
    layer = records.where(level="layer").distinct("name")[0]
    found = dynamics(records, COSINE, level="layer", name=layer)
    assert found.norms[0] == pytest.approx(records.series("norm", level="layer", name=layer)[1][0])
    assert "kappa_interval" in found.open_questions
    with pytest.raises(InputError, match="name"):
        dynamics(records, COSINE, level="layer")
    with pytest.raises(InputError, match="at least 2 checkpoints"):
        dynamics(records.where(step=0), COSINE)
    with pytest.raises(InputError, match="first checkpoint"):
        dynamics(published(np.array([0, 9]), np.array([0.0, 1.0]), np.array([0.5])), COSINE)


def test_steps_one_apart_leave_nothing_hidden(traced):
    found = dynamics(traced(simulate(COSINE, 1.5, 30, dims=500), every=1, lags=()), COSINE, weight_decay=0.0)
    assert found.misaligned.kappa == pytest.approx(1.5, rel=1e-6)
    assert not undecided(found)
    assert found.checkpoint_gap == (1, 1)
    same_way = simulate(COSINE, 0.3, 30, model="aligned", dims=500)
    found = dynamics(traced(same_way, every=1, lags=()), COSINE, weight_decay=0.0)
    assert found.verdict == "aligned"
    assert not undecided(found)


faulty = pytest.mark.filterwarnings("ignore::normgrowth.errors.SeriesWarning")


@faulty
@pytest.mark.parametrize("lam", [0.0, 0.1])
def test_models_that_say_the_same_are_not_told_apart(traced, lam):
    path = simulate(COSINE, 0.0, 400, weight_decay=lam, dims=100)  # nothing moves but the decay
    found = dynamics(traced(path, lags=()), COSINE, weight_decay=lam)
    assert found.verdict == "both"
    assert any("Which model" in text for text in undecided(found))


@pytest.mark.parametrize(("later", "said"), [((13.06, 13.31), "undecided"), ((18.0, 26.78), "misaligned")])
def test_a_norm_that_hardly_changes_decides_nothing(later, said):
    """A prediction that ends at the right norm must also be closer to it than a constant on the way there."""
    measured = np.array([13.39, *later])

    def fitted(model, *predicted):
        error = float(np.sqrt(np.mean(np.log(np.array(predicted) / measured[1:]) ** 2)))
        return ModelFit(model, 1.0, np.nan, np.nan, np.nan, (), np.nan, (13.39, *predicted), error)

    models = {
        "aligned": fitted("aligned", 60.0, 200.0),
        "misaligned": fitted("misaligned", 1.02 * measured[1], measured[2]),
    }
    assert models["misaligned"].error == pytest.approx(np.log(1.02) / np.sqrt(2))
    assert change_of_norm(measured) == pytest.approx(np.sqrt(np.mean(np.log(measured[1:] / 13.39) ** 2)))
    assert verdict(models, measured, uncertain=False) == said


def test_an_uncertain_kappa_excuses_a_miss_on_its_own_side_only(traced):
    """On a sphere nothing grows. That κ may be larger than fitted does not make misaligned growth fit."""
    rng = np.random.default_rng(0)
    path = rng.standard_normal(1_000) + np.cumsum(0.02 * rng.standard_normal((401, 1_000)), axis=0)
    found = dynamics(traced(path / norms(path)[:, None]), COSINE)
    assert found.misaligned.kappa_high > 1.5 * found.misaligned.kappa
    assert found.verdict == "neither"


@faulty
def test_sums_end_before_what_is_not_finite(traced):
    path = simulate(COSINE, 1.5, 400, weight_decay=0.1, dims=2_000)
    whole = dynamics(traced(path[:181]), COSINE, weight_decay=0.1)
    path[200] = np.nan
    found = dynamics(traced(path), COSINE, weight_decay=0.1)
    assert found.budget.until == 180
    for name in ("growth", "by_steps", "by_decay", "displacement"):
        assert getattr(found.budget, name) == pytest.approx(getattr(whole.budget, name))
    said = " ".join(findings(found))
    assert "step 180" in said
    assert f"{found.norms[-1]:.5g}" in said
    path[200], path[400] = path[180], np.nan
    assert "step 380" in " ".join(findings(dynamics(traced(path), COSINE)))
    path[400] = 0
    assert dynamics(traced(path), COSINE).verdict == "neither"


def test_weights_that_move_without_a_learning_rate(traced):
    records = traced(simulate(COSINE, 1.5, 400, dims=2_000))
    (said,) = [text for text in findings(dynamics(records, cosine(0.05, 100))) if "η = 0" in text]
    assert all(part in said for part in ("15 of 20", "step 120"))
    assert "η = 0" not in " ".join(findings(dynamics(records, COSINE)))
    shrinking = traced(simulate(cosine(0.05, 100), 1.0, 400, weight_decay=0.001, decay="eq3", dims=2_000))
    found = dynamics(shrinking, cosine(0.05, 100), weight_decay=0.001, decay="eq3")
    assert "η = 0" not in " ".join(findings(found))


def test_each_interval_hides_as_many_steps_as_it_has():
    """Four steps of length 1 that were seen, then one of length 1 that may have been a hundred of 1/100."""
    count = np.arange(1.0, 6.0)
    values = {"step_size": np.ones(5), "alignment": np.zeros(5), "angle": np.ones(5), "total_growth": count}
    values |= {"total_growth_alignment": np.zeros(5), "total_growth_steps": count}
    steps = [0, 1, 2, 3, 4, 104]

    def block(at, columns):
        return Block("model", ["model"], [None], [None], at, {k: v[:, None] for k, v in columns.items()})

    norm = {"norm": np.sqrt(np.arange(1.0, 7.0))}
    records = Records.from_blocks("run", [block(steps, norm), block(steps[1:], values)])
    assert "80.2%" in undecided(dynamics(records, constant(0.1)))[0]  # 4.01 of 5


def test_published_numbers_without_a_budget():
    steps = np.arange(0, 5_001, 500)
    norm = np.sqrt(1 + steps / 1_000)
    found = dynamics(published(steps, norm, norm[:-1] / norm[1:]), constant(1e-2), weight_decay=0.0)
    assert np.isnan(found.budget.by_steps)
    assert np.isnan(found.budget.displacement)
    assert found.alignment == pytest.approx(0, abs=1e-6)


def test_a_model_that_leaves_the_range_of_floats_does_not_win():
    steps = np.arange(2_001)
    records = published(steps, 1.25 ** (steps / 2), np.full(2_000, 1.25**-0.5))  # κ = ½ across θ
    found = dynamics(records, constant(1.0), weight_decay=0.0)
    assert found.aligned.predicted[-1] == np.inf
    assert found.verdict == "misaligned"


# --- direction and uniformity --------------------------------------------------------------------


def test_misaligned_dynamics_of_the_paper_turn_on(traced):
    """η = 1/√t: the cosine of neighbors goes to 1, and the direction does not converge."""
    eta = inverse_sqrt(1.0)
    found = direction(traced(simulate(eta, 1.0, 640, dims=2_000), every=10, lags=(1, 2, 4, 8, 16, 32)))
    assert [lag.lag for lag in found.lags] == [1, 2, 4, 8, 16, 32]
    neighbors = found.lags[0]
    assert neighbors.cosine[-1] > 0.99 > neighbors.cosine[0]
    assert found.q == pytest.approx(1.0, abs=0.1)
    assert found.low < 1 < found.high + 0.05
    assert found.verdict != "converges"
    # ‖θ_t/2‖² = ‖θ_t‖²/2 and what came between is orthogonal, so the cosine stays √½ (or so).
    halves = np.array(found.doubled.earlier) / found.doubled.steps
    np.testing.assert_allclose(halves, 0.5, rtol=0.1)
    np.testing.assert_allclose(found.doubled.cosine[1:], np.sqrt(halves[1:]), atol=0.03)
    assert found.total[-1] == pytest.approx(sum(found.angle))


def test_constant_relative_steps_turn_on_and_fast_decay_converges(traced):
    turning = direction(traced(simulate(constant(0.01), 1.0, 400, dims=2_000), every=10))
    assert turning.verdict == "turns on"
    fading = direction(traced(simulate(lambda t: 0.5 / (t + 1) ** 1.5, 1.0, 400, dims=2_000), every=10))
    assert fading.q == pytest.approx(3.0, abs=0.2)
    assert fading.verdict == "converges"
    assert fading.doubled.cosine[-1] > fading.doubled.cosine[0]


def test_a_direction_that_only_rounding_turns(traced):
    found = direction(traced(simulate(COSINE, 0.3, 30, model="aligned", dims=500), every=1, lags=()))
    assert found.verdict == "undecided"
    assert np.isnan(found.q)


def test_too_little_to_say(traced):
    found = direction(traced(simulate(constant(0.01), 1.0, 40, dims=100), every=10, lags=()))
    assert np.isnan(found.q)
    assert found.verdict == "undecided"
    assert len(direction_sentences(found)) == 3
    assert len(found.doubled.steps) == 1, "a trend needs more than one pair"


def test_uniform_growth_and_its_opposite(traced):
    path = np.linspace(1, 3, 5)[:, None] * np.ones(100)
    even = uniformity(traced(path, every=1, lags=()))
    np.testing.assert_allclose(even.factor, 3)
    np.testing.assert_allclose([even.first_share, even.last_share], 0.5)
    assert (even.spread, even.moved) == (1.0, 0.0)
    path[:, 50:] = 1  # the second layer stays
    records = traced(path, every=1, lags=())
    uneven = uniformity(records)
    np.testing.assert_allclose(uneven.factor, [3, 1])
    np.testing.assert_allclose(uneven.last_share, [0.9, 0.1])
    assert uneven.spread == pytest.approx(3)
    assert uneven.moved == pytest.approx(0.4)
    halves, steps = np.split(path[:-1], 2, axis=1), np.split(np.diff(path, axis=0), 2, axis=1)
    along = [2 * (a * d).sum() for a, d in zip(halves, steps, strict=True)]
    np.testing.assert_allclose(uneven.by_alignment, along, atol=1e-9)
    np.testing.assert_allclose(uneven.by_steps, [(d**2).sum() for d in steps], atol=1e-9)
    assert uniformity(records, level="tensor").by_steps == ()
    assert all(part in uniformity_sentence(uneven) for part in ("×1.0000 (layer.1)", "×3.0000 (layer.0)"))
    assert uniformity_sentence(uneven).startswith("Layers grew by ×1.0000")
    assert "Layers shrank by ×0.3333" in uniformity_sentence(
        uniformity(traced(2 * path[::-1], every=1, lags=()))
    )
    mixed = np.linspace(2, 6, 5)[:, None] * np.ones(100)
    mixed[:, 50:] = np.linspace(6, 2, 5)[:, None]
    assert "Layers changed by ×0.3333" in uniformity_sentence(uniformity(traced(mixed, every=1, lags=())))
    assert uniformity(records, level="tensor").names == tuple(PARTS)
    with pytest.raises(InputError, match="no norms at level block"):
        uniformity(records, level="block")


def test_several_runs_are_never_mixed():
    """One run grows, the other stands still: shares of both together would be those of neither."""
    steps = [0, 10]
    grows, stands = (
        Records.from_blocks(
            run, [Block("layer", ["layer.0", "layer.1"], [0, 1], [None] * 2, steps, {"norm": norm})]
        )
        for run, norm in {
            "grows": np.array([[1.0, 1.0], [3.0, 1.0]]),
            "stands": np.array([[1.0, 1.0], [1.0, 1.0]]),
        }.items()
    )
    both = Records.joined([grows, stands])
    assert uniformity(grows).spread == pytest.approx(3)
    assert uniformity(both.where(run="stands")).spread == pytest.approx(1)
    for mixed in (
        lambda: uniformity(both),
        lambda: direction(both, level="layer", name="layer.0"),
        lambda: dynamics(both, COSINE, level="layer", name="layer.0"),
        lambda: both.series("norm", level="layer", name="layer.0"),
    ):
        with pytest.raises(InputError, match=r"2 runs \('grows', 'stands'\)"):
            mixed()


def test_a_layer_that_began_at_zero_has_no_factor(traced):
    path = np.linspace(1, 3, 5)[:, None] * np.ones(100)
    path[0, 50:] = 0
    found = uniformity(traced(path, every=1, lags=()))
    assert found.factor[1] == np.inf
    assert found.spread == 1
    assert "too few" in uniformity_sentence(found)


# --- step sizes of a tracker, and of a series with gaps ---------------------------------------------


def tracked(steps, norm, cosine):
    """Records as a tracker makes them: every measured step has a size, an angle and an alignment of its own."""
    whole = published(np.r_[steps[0] - 1, steps], np.r_[norm[0], norm], np.r_[0.5, cosine])
    columns = {
        quantity: whole.series(quantity)[1][-len(steps) :, None]
        for quantity in ("norm", "step_size", "alignment", "angle")
    }
    return Records.from_blocks("run", [Block("model", ["model"], [None], [None], list(steps), columns)])


def test_every_step_of_a_tracker_is_as_good_as_checkpoints():
    steps, norm = np.arange(1, 41), np.sqrt(100.0 + np.arange(1, 41))
    between = np.sqrt(np.diff(norm**2))  # of misaligned steps
    cosine = (norm[:-1] ** 2 + norm[1:] ** 2 - between**2) / (2 * norm[:-1] * norm[1:])
    series, tracker = published(steps, norm, cosine), tracked(steps, norm, cosine)
    whole, found = dynamics(series, constant(0.1)), dynamics(tracker, constant(0.1))
    for field in fields(whole):
        if field.name not in ("records", "provenance"):
            np.testing.assert_equal(
                results.to_plain(found)[field.name], results.to_plain(whole)[field.name], field.name
            )
    for key in ("steps", "angle", "total", "q", "low", "high"):
        np.testing.assert_array_equal(getattr(direction(tracker), key), getattr(direction(series), key), key)


def test_single_steps_with_others_between_them_are_refused():
    records = tracked(np.arange(5, 65, 5), np.full(12, 3.0), np.full(11, 0.9))
    with pytest.raises(InputError, match="every=1"):
        dynamics(records, constant(0.1))
    with pytest.raises(InputError, match="every=1"):
        direction(records)


def test_a_series_with_a_gap_says_where():
    steps, norm = [0, 10, 20, 30], np.array([1.0, 1.1, 1.2, 1.3])
    blocks = [
        Block("model", ["model"], [None], [None], steps, {"norm": norm[:, None]}),
        Block("model", ["model"], [None], [None], [10, 30], {"step_size": np.ones((2, 1))}),
    ]
    with pytest.raises(InputError, match="step 20"):
        dynamics(Records.from_blocks("run", blocks), constant(0.1))
