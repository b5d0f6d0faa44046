"""Fits as a result: what it takes, on disk and back, tables, figures, text."""

import numpy as np
import pytest

import normgrowth as ng
from normgrowth.errors import InputError
from normgrowth.fit.result import Fits
from normgrowth.records import Block, Records

STEPS = np.arange(0, 3000, 100)
LAYERS = np.stack([10 + np.sqrt(STEPS), np.sqrt(100 + 4 * STEPS)], axis=1)


@pytest.fixture
def records():
    wave = 1 + 1e-3 * np.cos(STEPS[:, None] / 70 + np.arange(2))
    blocks = [
        Block("layer", ["h.0", "h.1"], [0, 1], [None] * 2, STEPS, {"norm": LAYERS * wave}),
        Block(
            "model", ["model"], [None], [None], STEPS, {"norm": (LAYERS * wave)[:, :1], "rms": LAYERS[:, :1]}
        ),
    ]
    return Records.from_blocks("run", blocks)


def test_one_series_is_as_good_as_its_points(records, tmp_path):
    trace = ng.Trace(records=records, source="a folder")
    folder = trace.save(tmp_path / "trace")
    direct = ng.fit(*records.series("norm"), bootstrap=50, seed=2)
    for data, source in (
        (records, "run"),
        (trace, "a folder"),
        (folder, "a folder"),
        (str(folder), "a folder"),
    ):
        found = ng.fit(data, bootstrap=50, seed=2)
        assert found.only.laws == direct.only.laws
        assert (found.source, found.level, found.quantity, found.seed) == (source, "model", "norm", 2)
    assert ng.fit(records, quantity="rms", bootstrap=0)["sqrt"].params == pytest.approx({"a": 1, "b": 10})
    part = ng.fit(records, from_step=500, to_step=2000, bootstrap=0).only
    assert part.steps == tuple(range(500, 2001, 100))
    assert part.laws == ng.fit(*(a[5:21] for a in records.series("norm")), bootstrap=0).only.laws


def test_several_sources_keep_their_names(records, tmp_path):
    path = tmp_path / "norms.csv"
    path.write_text("step,norm\n" + "".join(f"{t},{y}\n" for t, y in zip(STEPS, LAYERS[:, 0], strict=True)))
    found = ng.fit([ng.Trace(records=records, source="a folder"), path], laws="sqrt", bootstrap=0)
    assert list(found.series) == ["a folder: model", str(path)]
    with pytest.raises(InputError, match="2 series"):
        _ = found.best
    with pytest.raises(InputError, match="got one argument of type ndarray"):
        ng.fit(STEPS)


def test_fits_come_back_from_disk(records, tmp_path):
    given = ng.fit(records, level="layer", bootstrap=50)
    given.save(tmp_path)
    found = ng.load(tmp_path)
    assert isinstance(found, Fits)
    assert repr(found.series) == repr(given.series)
    for name, series in given.series.items():
        np.testing.assert_equal(vars(found.series[name]), vars(series))
    assert str(found) == str(given)
    assert found.select("h.1").best.law == "sqrt2"
    with pytest.raises(InputError, match=r"'h.2'.*h.0, h.1"):
        given.select("h.2")


def test_the_table_has_each_number_of_each_law(records):
    fits = ng.fit(records, level="layer", laws=["sqrt", "power"], bootstrap=50)
    rows = {(r["name"], r["role"], r["quantity"]): r for r in fits.records.table.to_pylist()}
    for name, series in fits.series.items():
        for law in series.values():
            assert rows[name, law.law, "r2"]["value"] == law.r2
            for param, value in law.params.items():
                ends = (rows[name, law.law, f"{param}_{end}"]["value"] for end in ("low", "high"))
                assert (rows[name, law.law, param]["value"], *ends) == (value, *law.interval(param))
    one = rows["h.1", "power", "p"]
    assert (one["level"], one["layer"], one["step"], one["run"]) == ("layer", 1, None, "run")
    assert set(fits.to_pandas()["role"]) == {"sqrt", "power"}


def test_figures_and_text(records):
    one, several = ng.fit(records, bootstrap=0), ng.fit(records, level="layer", bootstrap=0)
    assert one.plot.names == ["laws", "residuals"]
    lines = one.plot().axes[0].lines
    np.testing.assert_allclose(lines[0].get_ydata(), one.only.measured)
    np.testing.assert_allclose(lines[1].get_ydata(), one.best.predict(lines[1].get_xdata()))
    residuals = one.plot.residuals().axes[0].lines[0].get_ydata()
    np.testing.assert_allclose(residuals, one.only.residuals())
    assert len(several.plot().axes[0].lines) == 4
    assert len(several.plot.residuals().axes[0].lines) == 3  # the last is the zero
    assert "a·√t + b" in str(one)
    assert "h.1" in str(several)
    few = ng.fit([0, 1, 2], [1, 2, 2.5], bootstrap=0)
    assert few.plot()
    assert "Too few points" in str(few)
