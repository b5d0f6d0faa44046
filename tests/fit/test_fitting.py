"""Intervals and evidence under correlated noise; the fits of a trace."""

from io import StringIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import normgrowth as ng
from normgrowth.errors import InputError
from normgrowth.fit import bootstrap as correlated
from normgrowth.fit import fit
from normgrowth.fit.laws import LAWS
from normgrowth.records import Block, Records
from normgrowth.report.terminal.fits import show

T = 524_288


def ar1(n, rho, rng):
    """Noise of variance 1 in which neighbors have the correlation ρ."""
    noise = rng.normal(size=n)
    for i in range(1, n):
        noise[i] = rho * noise[i - 1] + np.sqrt(1 - rho**2) * noise[i]
    return noise


def coverage(law, truth, rho, n, repetitions, seed=1):
    steps, rng = np.linspace(0, T, n), np.random.default_rng(seed)
    curve = LAWS[law].predict(steps, truth)
    hits = dict.fromkeys(truth, 0)
    for _ in range(repetitions):
        found = fit(steps, curve + 20 * ar1(n, rho, rng), laws=law, bootstrap=80)[law]
        for name, value in truth.items():
            low, high = found.interval(name)
            hits[name] += low <= value <= high
    return {name: count / repetitions for name, count in hits.items()}


# --- Intervals


@pytest.mark.parametrize(
    ("law", "truth"),
    [
        ("sqrt", dict(a=5.0, b=200.0)),
        ("sqrt2", dict(a=5.0, b=400.0)),
        ("power", dict(a=3.0, b=300.0, p=0.55)),
        ("power2", dict(a=30.0, b=500.0, p=1.0)),
        ("relax", dict(n0=400.0, n_inf=3000.0, tau=2e5)),
    ],
)
def test_intervals_hold_the_truth_about_as_often_as_they_say(law, truth):
    assert np.mean(list(coverage(law, truth, 0.0, 40, 40).values())) >= 0.9
    assert np.mean(list(coverage(law, truth, 0.7, 60, 40).values())) >= 0.85


@pytest.mark.slow
def test_the_share_of_slow_noise_that_a_fit_takes_is_given_back():
    assert min(coverage("sqrt", dict(a=5.0, b=200.0), 0.9, 100, 300, seed=11).values()) > 0.88


def test_intervals_for_independent_noise_would_be_far_too_narrow(monkeypatch):
    truth = dict(a=5.0, b=200.0)
    ours = coverage("sqrt", truth, 0.9, 104, 150)
    monkeypatch.setattr(correlated, "correlation", lambda *_: 0.0)
    naive = coverage("sqrt", truth, 0.9, 104, 150)
    assert max(naive.values()) < 0.6
    assert min(ours.values()) > 0.82


def test_intervals_are_those_of_the_seed_and_of_the_law_alone():
    steps = np.linspace(0, T, 40)
    norms = 5 * np.sqrt(steps) + 200 + 20 * ar1(40, 0.5, np.random.default_rng(0))
    one, again, other = (fit(steps, norms, bootstrap=100, seed=seed) for seed in (3, 3, 4))
    assert one.only.laws == again.only.laws
    assert one["power"].interval("p") != other["power"].interval("p")
    assert fit(steps, norms, bootstrap=100, seed=3, laws="power")["power"].intervals == one["power"].intervals
    wide = fit(steps, norms, bootstrap=400, confidence=0.99)["sqrt"].interval("a")
    narrow = fit(steps, norms, bootstrap=400, confidence=0.5)["sqrt"].interval("a")
    assert wide[0] < narrow[0] < one["sqrt"].params["a"] < narrow[1] < wide[1]
    assert np.isnan(fit(steps, norms, bootstrap=0)["sqrt"].interval("a")).all()
    with pytest.raises(InputError, match="no parameter 'p'; it has a, b"):
        one["sqrt"].interval("p")


def test_long_series_give_the_intervals_of_least_squares():
    """5,000 points, averaged over neighbors: against the textbook's interval for a straight line."""
    rng, n = np.random.default_rng(0), 5000
    steps = np.linspace(0, T, n)
    norms = 0.005 * steps + 300 + 20 * rng.normal(size=n)
    low, high = fit(steps, norms, laws="linear")["linear"].interval("a")
    error = 20 / np.sqrt(((steps - steps.mean()) ** 2).sum())
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.2)


@pytest.mark.parametrize("law", ["sqrt", "log"])
def test_intervals_of_long_series_lie_on_both_sides(law):
    """Where a law bends, its mean over neighbors is not its value at their mean step."""
    steps, rng = np.arange(20_000), np.random.default_rng(0)
    norms = LAWS[law].predict(steps, dict(a=5.0, b=30.0)) + 0.05 * rng.normal(size=len(steps))
    found = fit(steps, norms, laws=law)[law]
    for name, value in found.params.items():
        low, high = found.interval(name)
        assert value - low == pytest.approx(high - value, rel=0.5)


def test_what_cannot_be_identified_has_an_open_interval():
    steps, rng = np.linspace(0, T, 60), np.random.default_rng(0)
    flat = fit(steps, 300 + rng.normal(size=60))  # no growth: any exponent will do
    for name in ("power", "power2"):
        low, high = flat[name].interval("p")
        assert low < 0.1
        assert high == np.inf
        assert any(note.endswith(" p") for note in flat[name].notes)
    straight = fit(steps, np.sqrt(300**2 + 20 * steps) + rng.normal(size=60))  # no end in sight
    low, high = straight["relax"].interval("tau")
    assert low > T / 2
    assert high == straight["relax"].interval("n_inf")[1] == np.inf
    assert any("tau" in note for note in straight["relax"].notes)
    assert flat.best.law == "constant"


# --- What correlated residuals are worth


def test_the_correlation_of_noise_is_found():
    rng = np.random.default_rng(0)
    for rho in (0.0, 0.5, 0.8):
        found = [correlated.correlation(ar1(300, rho, rng), 1) for _ in range(40)]
        assert np.mean(found) == pytest.approx(rho, abs=0.06)


def test_one_checkpoint_far_off_does_not_make_the_rest_independent():
    noise = ar1(100, 0.95, np.random.default_rng(0))
    assert correlated.correlation(np.append(100.0, noise), 2) > 0.85


@given(st.integers(2, 300), st.floats(0, 0.99))
def test_points_are_worth_between_one_and_all(n, rho):
    worth = correlated.effective_points(n, rho)
    assert 1 - 1e-9 <= worth <= n + 1e-9
    # The variance of a mean, summed the obvious way.
    apart = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    assert worth == pytest.approx(n**2 / (rho**apart).sum())
    assert 1 <= correlated.block_length(n, rho) <= max(1, n // 3)


@pytest.mark.parametrize("n", [9, 16, 61, 200])
def test_the_effective_sample_size_is_measured_and_the_weights_say_what_they_use(n):
    """The smallest value that the weights use, one more than the parameters of the closest law, is no measurement."""
    steps = np.arange(n)
    norms = 3 + 2 * np.sqrt(steps) + 0.05 * np.cumsum(np.random.default_rng(n).normal(size=n))
    one, alone = (fit(steps, norms, laws=laws, bootstrap=0).only for laws in (None, ["sqrt2"]))
    apart = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    assert one.effective_points == pytest.approx(n**2 / (one.autocorrelation**apart).sum())
    assert alone.effective_points == one.effective_points
    assert alone.weighed_points == one.weighed_points
    spread = {law.law: law.rmse**2 / (n - len(law.params)) for law in one.values()}
    closest = one[min(spread, key=spread.__getitem__)]
    assert one.autocorrelation == closest.autocorrelation
    assert one.weighed_points == max(one.effective_points, len(closest.params) + 1)


def test_correlated_noise_is_not_taken_for_evidence():
    """Data from `sqrt`; how often is `power` preferred, which contains it?"""
    steps, rng = np.linspace(0, T, 104), np.random.default_rng(3)
    curve = 5 * np.sqrt(steps) + 200
    rate = {}
    for rho in (0.0, 0.97):
        series = [curve + 20 * ar1(104, rho, rng) for _ in range(100)]
        fits = [fit(steps, norms, laws=("sqrt", "power"), bootstrap=0) for norms in series]
        rate[rho, "textbook"] = np.mean([f["power"].aicc < f["sqrt"].aicc for f in fits])
        rate[rho, "ours"] = np.mean([f.best.law == "power" for f in fits])
    assert rate[0.0, "textbook"] < 0.25
    assert rate[0.0, "ours"] < 0.25
    assert rate[0.97, "textbook"] > 0.7
    assert rate[0.97, "ours"] < 0.35


def test_evidence_is_not_thrown_away():
    steps, rng = np.linspace(0, T, 104), np.random.default_rng(3)
    curve = 3621 * (steps / T) ** 0.6 + 200
    series = [curve + 20 * ar1(104, 0.9, rng) for _ in range(30)]
    assert all(fit(steps, y, laws=("sqrt", "power"), bootstrap=0).best.law == "power" for y in series)


# --- Fits, and those of traces


def test_fits_read_like_a_mapping():
    fits = fit(np.arange(30), 3 + np.sqrt(np.arange(30)), laws=["log", "sqrt"], bootstrap=0)
    assert list(fits.only) == ["sqrt", "log"]
    assert len(fits.only) == 2
    assert "power" not in fits.only
    with pytest.raises(InputError, match=r"'power'.*sqrt, log"):
        _ = fits["power"]
    with pytest.raises(InputError, match="got -1"):
        fits["sqrt"].predict(-1)
    assert fits.only.best_law == "sqrt"


def test_each_series_of_a_trace_is_fitted():
    steps = np.arange(30) * 100
    layers = np.stack([10 + np.sqrt(steps), np.sqrt(100 + 4 * steps), np.full(30, np.nan)], axis=1)
    blocks = [
        Block("layer", ["layer.0", "layer.1", "layer.2"], [0, 1, 2], [None] * 3, steps, {"norm": layers}),
        Block("model", ["model"], [None], [None], steps, {"norm": layers[:, :1] * 2}),
    ]
    records = Records.from_blocks("run", blocks)
    found = fit(records, level="layer", bootstrap=0)
    fits = found.series
    assert list(fits) == ["layer.0", "layer.1", "layer.2"]
    assert [fits["layer.0"].best.law, fits["layer.1"].best.law] == ["sqrt", "sqrt2"]
    assert not fits["layer.2"]["sqrt"].fitted
    assert fit(records, bootstrap=0)["sqrt"].params == pytest.approx({"a": 2, "b": 20})
    with pytest.raises(InputError, match=r"level role.*layer, model"):
        fit(records, level="role")


@pytest.mark.parametrize(("share", "notes"), [(0.9, 1), (0.2, 0)])
def test_a_fit_of_the_model_leads_with_the_matrices_that_vectors_hide(share, notes, tmp_path):
    steps = np.arange(12)
    squares = np.linspace(1, 2, 12)
    parts = np.sqrt(np.stack([(1 - share) * squares, share * squares], axis=1))
    blocks = [
        Block("part", ["matrices", "vectors"], [None] * 2, [None] * 2, steps, {"norm": parts}),
        Block("model", ["model"], [None], [None], steps, {"norm": np.sqrt(squares)[:, None]}),
    ]
    records = Records.from_blocks("run", blocks)
    found = fit(records, bootstrap=0)
    assert len(found.notes) == notes
    assert all(f"{100 * share:.1f}%" in note for note in found.notes)
    both = fit(records, level="part", bootstrap=0)
    assert not both.notes
    assert found["linear"].params == pytest.approx(fit(steps, np.sqrt(squares), bootstrap=0)["linear"].params)
    if not notes:
        assert found.matrices is None
        assert found.leading is found
        return
    assert found.matrices.laws == both.series["matrices"].laws
    assert found.leading.only is found.matrices
    assert found.records.where(level="part").distinct("name") == ["matrices"]
    assert "matrices: 12 points" in str(found)
    wide = Console(file=StringIO(), width=1000)
    show(found, wide)
    assert "Norm of the model: " in wide.file.getvalue()
    line, *_ = found.plot().axes[0].lines
    np.testing.assert_allclose(line.get_ydata(), parts[:, 0])
    loaded = ng.load(found.save(tmp_path / "fits"))
    assert loaded.matrices["linear"].params == found.matrices["linear"].params


def test_a_fit_of_layers_says_if_vectors_hide_their_matrices():
    steps, layer = np.arange(12), (["layer.0"], [0], [None])
    matrices, whole = np.linspace(1, 2, 12)[:, None], np.full((12, 1), 3.0)
    blocks = [
        Block("layer", *layer, steps, {"norm": whole}),
        Block("layer_matrices", *layer, steps, {"norm": matrices}),
        Block("part", ["matrices", "vectors"], [None] * 2, [None] * 2, steps, {"norm": matrices * [1, 3]}),
        Block("model", ["model"], [None], [None], steps, {"norm": matrices * np.sqrt(10)}),
    ]
    records = Records.from_blocks("run", blocks)
    (note,) = fit(records, level="layer", bootstrap=0).notes
    assert "--level layer_matrices" in note
    found = fit(records, level="layer_matrices", bootstrap=0)
    assert (list(found.series), found.notes) == (["layer.0"], ())
    assert found["linear"].params == pytest.approx({"a": 1 / 11, "b": 1})
