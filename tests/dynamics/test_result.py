"""Dynamics as a result: what it takes, on disk and back, figures, with a schedule and without."""

import numpy as np
import pytest
from safetensors.numpy import save_file
from vectors import norms, simulate, write_path

import normgrowth as ng
from normgrowth import results
from normgrowth.dynamics.result import Dynamics
from normgrowth.errors import InputError
from normgrowth.report.page.content import PageEntry, content_of
from normgrowth.report.page.sections.dynamics import sections
from normgrowth.report.sentences.dynamics import growth, shown_layers, verdict
from normgrowth.schedules import cosine, parse

SPEC = "cosine:lr=0.05,steps=400,warmup=40,end=0.005"
SCHEDULE = cosine(0.05, 400, warmup=40, end=0.005)


@pytest.fixture(scope="module")
def path():
    return simulate(SCHEDULE, 1.5, 400, norm0=7.0, dims=2_000)


@pytest.fixture(scope="module")
def folder(path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("dynamics")
    ng.trace(write_path(folder / "series", path, 20), folder / "trace", lags=(2, 4, 8))
    return folder / "trace"


def fields(found):
    return {
        key: value for key, value in results.to_plain(found).items() if key not in ("provenance", "source")
    }


def test_a_schedule_and_its_text_are_the_same(folder):
    one, other = ng.dynamics(folder, SPEC), ng.dynamics(ng.load(folder), SCHEDULE)
    np.testing.assert_equal(fields(one), fields(other))
    assert one.schedule == parse(SPEC)
    assert one.verdict == "misaligned"


def test_without_a_schedule_there_is_the_budget_and_no_model(folder, path):
    found, fitted = ng.dynamics(folder), ng.dynamics(folder, SPEC)
    assert (found.schedule, found.aligned, found.misaligned, found.verdict) == (None,) * 4
    np.testing.assert_equal(vars(found.budget), vars(fitted.budget))
    assert found.budget.growth == pytest.approx(norms(path)[-1] ** 2 - norms(path)[0] ** 2)
    assert found.budget.by_steps + found.budget.by_alignment == pytest.approx(1)
    np.testing.assert_equal(fields(found)["direction"], fields(fitted)["direction"])
    assert set(found.uniformity) == {"layer", "role", "tensor"}
    assert found.plot.names == ["alignment", "budget", "plane"]
    assert fitted.plot.names == ["prediction", "alignment", "budget", "plane"]
    with pytest.raises(InputError, match="prediction"):
        found.plot.prediction()
    assert found.plot().axes[0].get_ylabel() == found.plot.alignment().axes[0].get_ylabel()  # the next one
    assert "schedule" in str(found)
    for option in ({"kappa": 1.0}, {"weight_decay": 0.1}):
        with pytest.raises(InputError, match=f"{next(iter(option))} needs a schedule"):
            ng.dynamics(folder, **option)


def test_dynamics_come_back_from_disk(folder, tmp_path):
    given = ng.dynamics(folder, SPEC, weight_decay=0.1, level="layer", name="layer.1")
    given.save(tmp_path)
    found = ng.load(tmp_path)
    assert isinstance(found, Dynamics)
    np.testing.assert_equal(fields(found), fields(given))
    assert (found.schedule, found.optimizer, found.equilibria) == (
        given.schedule,
        given.optimizer,
        given.equilibria,
    )
    assert str(found) == str(given)
    assert found.records.table.equals(given.records.table)


def test_records_have_predictions_and_shares(folder):
    found = ng.dynamics(folder, SPEC)
    assert found.misaligned is not None
    np.testing.assert_allclose(found.records.series("norm_if_misaligned")[1], found.misaligned.predicted)
    shares = found.matrix("share", by="layer")
    np.testing.assert_allclose(shares.values.sum(axis=1), 1)
    np.testing.assert_allclose(shares.values[-1], found.uniformity["layer"].last_share)


def test_figures_show_the_numbers(folder):
    found = ng.dynamics(folder, SPEC)
    assert found.misaligned is not None
    measured, misaligned, _ = found.plot().axes[0].lines
    np.testing.assert_allclose(measured.get_ydata(), found.norms)
    np.testing.assert_allclose(misaligned.get_ydata(), found.misaligned.predicted)
    np.testing.assert_allclose(found.plot.alignment().axes[0].lines[0].get_ydata(), found.alignments)
    assert found.plot.budget().axes[0].get_ylabel().startswith("growth of ‖θ‖²")
    points = np.array(found.plot.plane().axes[0].collections[0].get_offsets())
    np.testing.assert_allclose(points[:, 0], found.step_sizes)
    grown = np.diff(np.square(found.norms))  # ‖θ + δ‖² − ‖θ‖² = 2⟨θ,δ⟩ + ‖δ‖²
    np.testing.assert_allclose(2 * points[:, 1] + points[:, 0] ** 2, grown)


def test_the_published_trace_has_its_schedule():
    found = ng.dynamics("published:t5")
    assert str(found.schedule) == "inverse_sqrt:lr=0.01,hold=10000"
    assert found.verdict == "between"
    with pytest.raises(InputError, match="published:t6 is not a trace"):
        ng.dynamics("published:t6")


@pytest.fixture(scope="module")
def hidden(tmp_path_factory):
    """A trace of matrices that grow next to gains of 1, which make most of the norm."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("hidden")
    now = {"layers.0.mlp.weight": 0.1 * rng.normal(size=(20, 30)), "layers.0.norm.weight": np.ones(100)}
    for step in range(6):
        save_file(
            {name: value.astype(np.float32) for name, value in now.items()},
            folder / f"step_{step}.safetensors",
        )
        now = {
            name: value + 0.03 * rng.normal(size=value.shape) * (value.ndim > 1)
            for name, value in now.items()
        }
    return ng.trace(folder)


def test_matrices_come_first_where_vectors_hide_them(hidden, tmp_path):
    found, alone = ng.dynamics(hidden, "0.01"), ng.dynamics(hidden, "0.01", level="part", name="matrices")
    first = found.leading
    assert (first.level, first.name) == ("part", "matrices")
    names = ("norms", "step_sizes", "budget", "aligned", "misaligned", "verdict", "direction")
    of_first, of_alone = fields(first), fields(alone)
    for name in names:
        np.testing.assert_equal(of_first[name], of_alone[name])
    own = found.uniformity["layer_matrices"]  # of the only layer
    np.testing.assert_allclose(own.factor, alone.norms[-1] / alone.norms[0])
    shares = alone.budget.by_steps, alone.budget.by_alignment
    np.testing.assert_allclose([*own.by_steps, *own.by_alignment], np.multiply(shares, alone.budget.growth))
    assert shown_layers(first) == [own]
    assert found.matrices.vector_share == pytest.approx(100 / found.norms[0] ** 2)
    assert found.norms == tuple(hidden.records.series("norm")[1])  # the fields of the model stay
    np.testing.assert_equal(fields(ng.load(found.save(tmp_path / "out"))), fields(found))
    for text in (str(found), " ".join(sections(content_of([PageEntry("run", found)]))[0].sentences)):
        assert f"up to {100 * found.matrices.vector_share:.1f}% of ‖θ‖²" in text
        assert "The norm of the matrices at step 5" in " ".join(text.split())
    (curve, *_) = [line for line in found.plot().axes[0].lines if line.get_label() == "checkpoints"]
    np.testing.assert_allclose(curve.get_ydata(), alone.norms)


def test_the_verdict_is_the_first_sentence(hidden, folder):
    for source in (hidden, folder):
        first = ng.dynamics(source, SPEC).leading
        found = growth(ng.dynamics(source, SPEC), "table")
        assert found[0] == verdict(first, first.aligned, first.misaligned)
        assert found[0][:40] in " ".join(str(ng.dynamics(source, SPEC)).split())


def test_without_dominating_vectors_the_model_leads(folder):
    found = ng.dynamics(folder, SPEC)
    assert found.matrices is None
    assert found.leading is found
    assert found.rounding is None  # its numbers were measured
