"""Scalars of a series against numpy on the whole tensors: shares, quantiles, levels; resumed to the bit."""

import numpy as np
import pytest
from safetensors.numpy import save_file

import normgrowth as ng
from normgrowth.cli.main import main
from normgrowth.errors import FolderMismatch, InputError, SeriesWarning
from normgrowth.moments import scalars
from normgrowth.moments.scalars import PER_UNIT, SPAN, count_scalars, stacked

NAMES = [f"layers.{layer}.{part}.weight" for layer in (0, 1) for part in ("q_proj", "mlp")]


def weights(seed, steps):
    """A random walk that starts away from 0, with some exact zeros."""
    rng = np.random.default_rng(seed)
    now = {name: rng.normal(0, 1, (40, 30)).astype(np.float32) for name in NAMES}
    for array in now.values():
        array[0, :3] = 0
    for _ in range(steps):
        yield dict(now)
        now = {
            name: array + rng.normal(0, 0.3, array.shape).astype(np.float32) for name, array in now.items()
        }


@pytest.fixture
def series(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    kept = list(weights(0, 4))
    for step, arrays in enumerate(kept):
        save_file(arrays, folder / f"step_{100 * step}.safetensors")
    return folder, kept


def by_hand(before, after):
    b, a = (np.concatenate([x.ravel() for x in arrays]).astype(np.float64) for arrays in (after, before))
    both = (a != 0) & (b != 0)
    ratio = np.log(np.abs(b[both]) / np.abs(a[both]))
    return (np.abs(b) > np.abs(a)).mean(), (a * b < 0).mean(), np.quantile(ratio, [0.05, 0.5, 0.95])


def check_level(records, level, name, before, after, step):
    grown, changed, quantiles = by_hand(before, after)
    rows = records.where(level=level, name=name, step=step)

    def value(quantity):
        return rows.series(quantity, level=level, reference="first")[1][0]

    assert value("share_grown") == pytest.approx(grown, abs=1e-12)
    assert value("share_sign_changed") == pytest.approx(changed, abs=1e-12)
    found = [value(f"log_ratio_q{q}") for q in ("05", "50", "95")]
    assert found == pytest.approx(quantiles, abs=1.5 / PER_UNIT)


def test_shares_and_quantiles_of_every_level(series):
    folder, kept = series
    records = ng.trace(folder, scalars=True).records
    for step in (1, 3):
        now, first = kept[step], kept[0]
        check_level(records, "tensor", NAMES[1], [first[NAMES[1]]], [now[NAMES[1]]], 100 * step)
        check_level(
            records,
            "layer",
            "layer.1",
            [first[n] for n in NAMES[2:]],
            [now[n] for n in NAMES[2:]],
            100 * step,
        )
        check_level(records, "model", "model", list(first.values()), list(now.values()), 100 * step)
    assert not len(records.where(quantity="share_grown", step=0))


def test_without_it_nothing_changes(series):
    folder, _ = series
    plain, more = ng.trace(folder).records, ng.trace(folder, scalars=True).records
    assert "share_grown" not in plain.distinct("quantity")
    assert len(more) > len(plain)
    assert str(more.to_rows()[: len(plain)]) == str(plain.to_rows())


def test_resumed_and_pruned_it_is_the_same(series, tmp_path):
    folder, _ = series
    whole = ng.trace(folder, scalars=True).records
    last = folder / "step_300.safetensors"
    hidden = tmp_path / "hidden.safetensors"
    last.rename(hidden)
    ng.trace(folder, tmp_path / "out", scalars=True)
    hidden.rename(last)
    again = ng.trace(folder, tmp_path / "out", scalars=True).records
    assert str(again.to_rows()) == str(whole.to_rows())
    wanted = str(whole.where(quantity="share_grown").to_rows())
    (folder / "step_100.safetensors").unlink()
    damaged = tmp_path / "out" / "scalars" / "step-000000200.npz"
    for content in (damaged.read_bytes(), damaged.read_bytes()[:-1]):
        damaged.write_bytes(content)
        with pytest.warns(SeriesWarning, match="their checkpoints no longer exist"):
            kept = ng.trace(folder, tmp_path / "out", scalars=True).records
        assert str(kept.where(quantity="share_grown").to_rows()) == wanted
    with pytest.raises(FolderMismatch):
        ng.trace(folder, tmp_path / "out")


def test_chunks_and_parts_add(monkeypatch):
    rng = np.random.default_rng(1)
    a, b = rng.normal(0, 1, (2, 1000))
    b[:5], a[5:7] = np.nan, np.inf
    whole = count_scalars(b, a)
    monkeypatch.setattr(scalars, "CHUNK", 7)
    in_chunks = count_scalars(b, a)
    parts = stacked([count_scalars(b[:300], a[:300]), count_scalars(b[300:], a[300:])]).grouped([0, 0], 1)
    for other in (in_chunks, parts):
        assert other.quantities() == whole.quantities()
    assert whole.compared.tolist() == [993]


def test_what_lies_beyond_the_bins_and_what_is_zero():
    found = count_scalars(np.array([1e30, 1e-30, 0.0, 5.0]), np.array([1.0, 1.0, 1.0, 0.0]))
    assert (found.grown[0], found.sign_changed[0], found.histogram.sum()) == (2, 0, 2)
    values = found.quantities()
    assert values["log_ratio_q05"][0] == pytest.approx(-SPAN, abs=1 / PER_UNIT)
    assert values["log_ratio_q95"][0] == pytest.approx(SPAN, abs=1 / PER_UNIT)
    nothing = count_scalars(np.zeros(3), np.zeros(3)).quantities()
    assert np.isnan(nothing["log_ratio_q50"][0])
    assert nothing["share_grown"][0] == 0


def test_the_command(series, capsys):
    folder, _ = series
    assert main(["trace", str(folder), "--scalars", "--json"]) == 0
    assert "share_grown" in capsys.readouterr().out


def test_what_is_shown_is_what_was_counted(series):
    """The sentence, the table, the figure and the page, from the values of the records."""
    folder, kept = series
    trace = ng.trace(folder, scalars=True)
    grown, changed, (low, median, high) = by_hand(list(kept[0].values()), list(kept[-1].values()))
    text = " ".join(str(trace).split())
    assert f"{100 * grown:.1f}% of the single weights are larger in magnitude than at step 0" in text
    assert f"and {100 * changed:.1f}% changed sign" in text
    rows = {
        line.split()[0]: line.split()
        for line in str(trace).partition("Single weights")[2].splitlines()
        if line
    }
    assert rows["model"][1:3] == [f"{100 * grown:.1f}%", f"{100 * changed:.1f}%"]
    assert [float(cell) for cell in rows["model"][3:6]] == pytest.approx(
        np.exp([low, median, high]), rel=0.06
    )
    assert {"layer.0", "layer.1"} <= rows.keys()
    figure = trace.plot.scalars()
    (line,) = [one for one in figure.axes[0].lines if one.get_label() == "median"]
    assert line.get_ydata()[-1] == pytest.approx(np.exp(median), rel=0.06)
    shares = {one.get_label(): one.get_ydata()[-1] for one in figure.axes[2].lines}
    assert shares == pytest.approx({"grew in magnitude": grown, "changed sign": changed})


def test_without_scalars_there_is_no_figure_of_them(series):
    folder, _ = series
    trace = ng.trace(folder)
    assert "scalars" not in trace.plot.names
    assert "single weights" not in str(trace)
    with pytest.raises(InputError, match="trace --scalars"):
        trace.plot.scalars()
