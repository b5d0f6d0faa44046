"""Figures hold the numbers of the records, the same bytes each time, and survive what records may hold."""

import io
import threading
import xml.etree.ElementTree as ET

import matplotlib
import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from report_records import write_trace

import normgrowth
from normgrowth.errors import InputError
from normgrowth.records import Block, Records
from normgrowth.report.figures import trace as figures
from normgrowth.report.figures.budget import figure_budget
from normgrowth.report.figures.style import label
from normgrowth.report.figures.trace import (
    FIGURES,
    figure_alignment_step,
    figure_angle,
    figure_norm_direction,
    figure_roles,
)
from normgrowth.report.numbers import number
from normgrowth.report.renderers import draw
from normgrowth.trace.result import Trace

of = Trace.from_records
HOSTILE = [
    "$\\frac{",
    "[red]x[/red]",
    "a\x1b]0;hi\x07b",
    "日本\n語",
    "_under^{",
    "x" * 300,
    "\u202eabc",
    "é.ü",
]


def with_values(records, change):
    """The same rows with other values."""
    values = records.table["value"].to_numpy().copy()
    return Records(in_place(records.table, "value", change(values)))


def in_place(table, column, values):
    return table.set_column(table.column_names.index(column), column, pa.array(values))


def lines(ax):
    return {line.get_label(): line for line in ax.get_lines()}


def texts(figure):
    found = figure.findobj(matplotlib.text.Text)
    return [text.get_text() for text in found if text.get_text() and text.get_visible()]


def assert_holds(line, records, quantity, name, level="layer"):
    steps, values = records.series(quantity, level=level, name=name)
    np.testing.assert_array_equal(line.get_xdata(), steps)
    np.testing.assert_array_equal(line.get_ydata(), values)


def test_norm_direction_holds_the_records_numbers(trace):
    records = trace(layers=3, steps=20)
    figure = figure_norm_direction(of(records))
    assert len(figure.axes) == 4
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["2", "1", "0"]
    for row, quantity in enumerate(("norm", "cosine")):
        model, layers = figure.axes[2 * row : 2 * row + 2]
        assert_holds(lines(model)["model"], records, quantity, "model", "model")
        assert set(lines(layers)) == {"layer.0", "layer.1", "layer.2"}
        for name, line in lines(layers).items():
            assert_holds(line, records, quantity, name)


def test_alignment_step_holds_the_records_numbers(trace):
    records = trace(layers=2, steps=20)
    figure = figure_alignment_step(of(records))
    for row, quantity in enumerate(("alignment", "step_size")):
        model, layers = figure.axes[2 * row : 2 * row + 2]
        assert_holds(lines(model)["model"], records, quantity, "model", "model")
        assert_holds(lines(layers)["layer.1"], records, quantity, "layer.1")
    assert figure.axes[2].get_ylim()[0] == 0  # whether steps are constant shows only against zero
    assert (
        figure.axes[0].get_xlim()[0] <= 0
    )  # alignment begins with the second checkpoint, the axis with the first


def test_each_stack_has_its_panel_and_shades_mean_depth_in_both(trace):
    figure = figure_norm_direction(of(trace(layers=48, steps=5, stacks=("encoder", "decoder"))))
    model, encoder, decoder = figure.axes[:3]
    assert [ax.get_title(loc="left") for ax in (encoder, decoder)] == [
        "encoder, by layer",
        "decoder, by layer",
    ]
    assert len(lines(encoder)) == len(lines(decoder)) == 48
    assert lines(encoder)["encoder.47"].get_color() == lines(decoder)["decoder.47"].get_color()
    assert lines(encoder)["encoder.0"].get_color() != lines(encoder)["encoder.47"].get_color()
    assert encoder.get_ylim() == decoder.get_ylim() != model.get_ylim()
    # The bar counts the layers, with few ticks.
    assert [text.get_text() for text in figure.axes[-1].get_yticklabels()] == [
        str(i) for i in range(0, 48, 4)
    ]


def test_no_panel_is_cut_to_fit_another(trace):
    norm = np.array([[1.0, 5.0, 2.0], [3.0, 90.0, 4.0]])  # the tallest line stands in the middle
    names, layers = ["a.0", "b.0", "c.0"], [0, 0, 0]
    block = Block(
        "layer", names, layers, [None] * 3, [0, 1], {"norm": norm, "step_size": norm, "alignment": norm / 100}
    )
    records = Records.from_blocks("run", [block])
    for figure in (figure_norm_direction(of(records)), figure_alignment_step(of(records))):
        for ax in figure.axes:
            for line in ax.get_lines():
                assert ax.get_ylim()[0] <= np.min(line.get_ydata())
                assert np.max(line.get_ydata()) <= ax.get_ylim()[1]


def test_later_layers_are_darker(trace):
    by_layer = figure_norm_direction(of(trace(layers=12, steps=3))).axes[1]
    brightness = [sum(lines(by_layer)[f"layer.{i}"].get_color()[:3]) for i in range(12)]
    assert brightness == sorted(brightness, reverse=True)


def test_many_stacks_share_one_panel(trace):
    records = trace(layers=6, steps=4, names=[f"stage{i}.0" for i in range(6)])
    figure = figure_norm_direction(of(records))
    assert len(figure.axes) == 4
    assert len({line.get_color() for line in figure.axes[1].get_lines()}) == 6


def test_angles_where_cosines_all_read_one(trace):
    records = trace(layers=2, steps=20, pace=1e-4, drift=0)
    figure = figure_norm_direction(of(records))
    assert figure.axes[2].get_ylabel() == figures.LABELS["angle"]
    assert_holds(lines(figure.axes[2])["model"], records, "angle", "model", "model")


def test_cosine_axis_fits_the_data(trace):
    records = trace(layers=2, steps=30)
    low, high = figure_norm_direction(of(records)).axes[2].get_ylim()
    cosines = np.concatenate(
        [records.series("cosine", level=s, name=n)[1] for s, n in (("model", "model"), ("layer", "layer.0"))]
    )
    assert -1 < low < cosines.min()
    assert cosines.max() < high < 1.05


def budget_records(aligned, stepped):
    aligned, stepped = np.array(aligned, float), np.array(stepped, float)
    terms = {"_alignment": aligned, "_steps": stepped, "": aligned + stepped}
    later = {f"total_growth{key}": value[:, None] for key, value in terms.items()}
    steps = [0, 10, 20]
    blocks = []
    for level, name, layer in (("layer", "layer.0", 0), ("model", "model", None)):
        blocks.append(Block(level, [name], [layer], [None], steps, {"norm": np.full((3, 1), 2.0)}))
        blocks.append(Block(level, [name], [layer], [None], steps[1:], later))
    return Records.from_blocks("run", blocks)


def test_budget_stacks_parts_that_are_positive():
    ax, layers = figure_budget(of(budget_records([1, 2], [3, 6]))).axes
    assert len(ax.collections) == 2
    np.testing.assert_array_equal(lines(ax)["growth"].get_ydata(), [0, 4, 8])
    np.testing.assert_array_equal(lines(ax)["growth"].get_xdata(), [0, 10, 20])
    upper = ax.collections[1].get_paths()[0].vertices[:, 1]
    assert upper.max() == 8
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert "75.0%" in legend[1]
    assert "25.0%" in legend[2]
    assert [bar.get_height() for bar in layers.patches] == [2, 6]
    assert [bar.get_y() for bar in layers.patches] == [0, 2]


def test_the_legend_of_a_budget_covers_no_curve():
    figure = figure_budget(of(budget_records([1, 5.9], [3, 6])))  # fast growth at first, as in most runs
    figure.canvas.draw()
    ax = figure.axes[0]
    legend = ax.get_legend().get_window_extent()
    (total,) = (curve for curve in ax.get_lines() if curve.get_label() == "growth")
    points = ax.transData.transform(total.get_xydata())
    assert not any(legend.contains(x, y) for x, y in points)
    assert legend.y0 > points[:, 1].max()


def test_budget_draws_lines_where_a_part_is_negative():
    ax, layers = figure_budget(of(budget_records([-1, -5], [3, 6]))).axes
    assert not ax.collections
    np.testing.assert_array_equal(lines(ax)["alignment"].get_ydata(), [0, -1, -5])
    np.testing.assert_array_equal(lines(ax)["size"].get_ydata(), [0, 3, 6])
    np.testing.assert_array_equal(lines(ax)["growth"].get_ydata(), [0, 2, 1])
    assert not any("%" in text.get_text() for text in ax.get_legend().get_texts())
    assert [(bar.get_y(), bar.get_height()) for bar in layers.patches] == [(0, -5), (0, 6)]
    assert list(lines(layers)["growth"].get_ydata()) == [1]


def test_roles_are_relative_to_the_first_step(trace):
    records = trace(layers=2, steps=15)
    figure = figure_roles(of(records))
    drawn = lines(figure.axes[0])
    for role in ("attention.query", "norm"):
        _, norm = records.series("norm", level="role", name=role)
        shown = {"norm": "norm layers"}.get(role, role)
        np.testing.assert_allclose(drawn[shown].get_ydata(), norm / norm[0], rtol=1e-15)
    assert drawn["attention.query"].get_color() == drawn["attention.value"].get_color()
    assert {"attention.query", "attention.value", "feedforward.in", "norm layers", "model"} <= set(
        texts(figure)
    )


def test_growth_with_and_without_embeddings(trace):
    """The embedding has norm 12 at both ends; the blocks grow from 5 to 9, so all together from 13 to 15."""
    names = ["embedding", "feedforward"]
    values = {"norm": np.array([[12.0, 5.0], [12.0, 9.0]])}
    block = Block("role", names, [None] * 2, names, [0, 10], values)
    left, right = figures.figure_embeddings(of(Records.from_blocks("run", [block]))).axes
    np.testing.assert_allclose(left.get_lines()[0].get_ydata(), [13, 15])
    np.testing.assert_allclose(right.get_lines()[0].get_ydata(), [5, 9])
    assert right.get_title("left") == "without embeddings (×1.8000)"
    assert figures.figure_embeddings(of(trace(layers=2, steps=3))) is None  # only blocks


def test_matrices_are_drawn_where_gains_hide_them():
    """‖θ‖² is 1 + 3 at first: vectors have more than a quarter. With 1 + 0.3 they have less."""
    for vectors, drawn in ((3.0, True), (0.3, False)):
        parts = np.array([[1.0, vectors**0.5], [2.0, vectors**0.5]])
        none = [None]
        blocks = [
            Block("part", ["matrices", "vectors"], none * 2, none * 2, [0, 10], {"norm": parts}),
            Block("model", ["model"], none, none, [0, 10], {"norm": np.sqrt((parts**2).sum(1))[:, None]}),
            Block("layer", ["layer.0"], [0], none, [0, 10], {"norm": np.array([[5.0], [6.0]])}),
            Block("layer_matrices", ["layer.0"], [0], none, [0, 10], {"norm": parts[:, :1]}),
        ]
        figure = figure_norm_direction(of(Records.from_blocks("run", blocks)))
        np.testing.assert_array_equal(
            lines(figure.axes[1])["layer.0"].get_ydata(), [1, 2] if drawn else [5, 6]
        )
        assert ("matrices" in figure.axes[1].get_title("left")) == drawn
        assert ("matrices" in lines(figure.axes[0])) == drawn
        if drawn:
            np.testing.assert_array_equal(lines(figure.axes[0])["matrices"].get_ydata(), [1, 2])


def test_a_role_that_starts_at_zero_is_named_not_drawn(trace):
    blocks = [
        Block(
            "role",
            ["bias", "norm"],
            [None] * 2,
            ["bias", "norm"],
            [0, 1],
            {"norm": np.array([[0, 1.0], [1, 2]])},
        )
    ]
    figure = figure_roles(of(Records.from_blocks("run", blocks)))
    assert set(lines(figure.axes[0])) >= {"norm layers"}
    assert "bias" not in lines(figure.axes[0])
    assert any("not drawn" in text and "bias" in text for text in texts(figure))


def test_files_are_valid_and_the_same_each_time(trace, tmp_path):
    records = trace(layers=3, steps=6)
    before = dict(matplotlib.rcParams)
    paths = draw(of(records), tmp_path / "new" / "a")
    again = draw(of(records), tmp_path / "b")
    assert dict(matplotlib.rcParams) == before
    assert [path.name for path in paths] == [
        f"trace_{name}.{form}"
        for name in FIGURES
        if name not in ("embeddings", "scalars")  # the trace has neither
        for form in ("png", "svg", "pdf")
    ]
    for path, other in zip(paths, again, strict=True):
        assert path.read_bytes() == other.read_bytes()
        if path.suffix == ".png":
            with Image.open(path) as image:
                image.verify()
                assert image.width > 800
        elif path.suffix == ".svg":
            root = ET.fromstring(path.read_text(encoding="utf-8"))
            assert root.tag == "{http://www.w3.org/2000/svg}svg"
            tags = {element.tag.rpartition("}")[2] for element in root.iter()}
            assert not tags & {"script", "foreignObject", "image", "a"}
            assert "date" not in tags
        else:
            data = path.read_bytes()
            assert data.startswith(b"%PDF")
            assert b"CreationDate" not in data
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == sorted(path.name for path in again)


def test_the_users_style_does_not_show(trace, tmp_path):
    records = trace(layers=2, steps=4).where(level="role")
    (plain,) = draw(of(records), tmp_path / "a", formats=["svg"])[:1]
    with matplotlib.rc_context({"font.size": 30, "axes.grid": True, "svg.hashsalt": "other"}):
        (styled,) = draw(of(records), tmp_path / "b", formats=["svg"])[:1]
    assert plain.read_bytes() == styled.read_bytes()


def test_threads_leave_the_style_as_it_was(trace, tmp_path):
    records = trace(layers=2, steps=4).where(level="model")
    before = dict(matplotlib.rcParams)
    threads = [
        threading.Thread(target=draw, args=(of(records), tmp_path / str(i)), kwargs={"formats": ["svg"]})
        for i in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert dict(matplotlib.rcParams) == before
    assert len({(tmp_path / str(i) / "trace_budget.svg").read_bytes() for i in range(3)}) == 1


def test_pyplot_is_not_needed(trace, tmp_path):
    import subprocess
    import sys

    write_trace(trace(layers=2, steps=4), tmp_path)
    code = (
        "import sys; from normgrowth.records import Records; from normgrowth.trace.result import Trace;"
        "from normgrowth.report import terminal;"
        "from normgrowth.report.renderers import draw;"
        "assert not {'matplotlib', 'rich'} & set(sys.modules);"
        f"draw(Trace.from_records(Records.read({str(tmp_path)!r})), {str(tmp_path)!r}, formats=['png']);"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


@pytest.mark.parametrize("stacks", [HOSTILE[:3], HOSTILE[3:6], HOSTILE[6:]])
def test_hostile_names_are_drawn_as_spelled(trace, stacks):
    records = trace(layers=2, steps=3, stacks=stacks)
    for make in (figure_norm_direction, figure_budget):
        figure, file = make(of(records)), io.BytesIO()
        figure.savefig(file, format="svg")
        ET.fromstring(file.getvalue())
        assert all(any(label(stack) in text for text in texts(figure)) for stack in stacks)


def test_hostile_roles_are_drawn_as_spelled(tmp_path):
    norm = np.arange(1.0, 1 + 3 * len(HOSTILE)).reshape(3, -1)
    records = Records.from_blocks(
        "run", [Block("role", HOSTILE, [None] * len(HOSTILE), HOSTILE, [0, 1, 2], {"norm": norm})]
    )
    drawn = texts(figure_roles(of(records)))
    assert "$\\frac{" in drawn
    assert "\\u65e5\\u672c\\n\\u8a9e" in drawn
    assert len(draw(of(records), tmp_path)) == 3


def test_labels_have_only_what_the_font_shows():
    assert label("attention.query") == "attention.query"
    assert label("a\x1b[31m") == "a\\x1b[31m"
    assert len(label("x" * 1000)) == 32


def test_undefined_values_are_gaps(trace, tmp_path):
    records = trace(layers=3, steps=40)
    rng = np.random.default_rng(1)
    holed = with_values(
        records, lambda v: np.where(rng.random(len(v)) < 0.3, rng.choice([np.nan, np.inf], len(v)), v)
    )
    line = lines(figure_norm_direction(of(holed)).axes[0])["model"]
    _, norm = holed.series("norm", name="model")
    np.testing.assert_array_equal(np.isnan(line.get_ydata()), ~np.isfinite(norm))
    assert len(draw(of(holed), tmp_path, formats=["png"])) == 5


def test_a_value_between_gaps_gets_a_dot():
    norm = np.ones((30, 1))
    norm[[3, 5]] = np.nan
    records = Records.from_blocks(
        "run", [Block("model", ["model"], [None], [None], range(30), {"norm": norm})]
    )
    assert lines(figure_norm_direction(of(records)).axes[0])["model"].get_markevery() == [4]


@pytest.mark.parametrize("value", [np.nan, 0.0, -1.0, 1e-300, 1e300, 7.0])
def test_constant_and_extreme_values_draw(trace, tmp_path, value):
    records = trace(layers=2, steps=4)
    paths = draw(of(with_values(records, lambda v: np.full_like(v, value))), tmp_path, formats=["png"])
    assert bool(paths) == bool(np.isfinite(value))


def test_values_whose_range_overflows_are_gaps(trace, tmp_path):
    records = with_values(
        trace(layers=2, steps=4), lambda v: np.where(np.arange(len(v)) % 5 == 0, 1.7e308, v)
    )
    records = with_values(records, lambda v: np.where(np.arange(len(v)) % 7 == 0, -1.7e308, v))
    assert draw(of(records), tmp_path, formats=["png"])


def test_layers_of_several_stacks_without_numbers_draw(trace, tmp_path):
    records = trace(layers=1, steps=5, stacks=("encoder", "decoder"))
    table = in_place(records.table, "layer", pa.nulls(len(records), pa.int32()))
    assert len(draw(of(Records(table)), tmp_path, formats=["png"])) == 5


def test_one_step_shows_the_norm_by_layer(trace, tmp_path):
    records = trace(layers=5, steps=1)
    figure = figure_norm_direction(of(records))
    (ax,) = figure.axes
    expected = [records.series("norm", level="layer", name=f"layer.{i}")[1][0] for i in range(5)]
    np.testing.assert_array_equal(ax.get_lines()[0].get_ydata(), expected)
    assert ax.get_title(loc="left").endswith(number(records.series("norm")[1][0]))
    assert [path.name for path in draw(of(records), tmp_path)] == [
        f"trace_norm_direction.{form}" for form in ("png", "svg", "pdf")
    ]


@pytest.mark.parametrize(
    ("layers", "steps", "stacks"), [(1, 2, ("layer",)), (1, 30, ("layer",)), (2, 2, ("a", "b", "c"))]
)
def test_small_series_draw(trace, tmp_path, layers, steps, stacks):
    drawn = draw(of(trace(layers=layers, steps=steps, stacks=stacks)), tmp_path, formats=["png"])
    assert len(drawn) == (5 if steps > 3 else 4), "the angle needs three intervals"


def test_layers_are_not_needed(trace, tmp_path):
    records = trace(layers=2, steps=5).where(level="model")
    assert [path.stem for path in draw(of(records), tmp_path, formats=["png"])] == [
        f"trace_{name}" for name in ("norm_direction", "alignment_step", "angle", "budget")
    ]


def test_another_run_and_a_fitted_law_are_laid_over(trace):
    records, other = trace(layers=2, steps=30), trace(layers=3, steps=20, seed=1)
    other = Records(other.table.set_column(0, "run", pa.array(["other"] * len(other)).dictionary_encode()))
    steps, norms = records.series("norm")
    law = figures.FittedLaw("a·√t + b", steps, norms + 1)
    figure = figure_norm_direction(of(records), overlay=[of(other)], fitted=law)
    drawn = {line.get_label(): line for line in figure.axes[0].lines}
    run = records.distinct("run")[0]
    np.testing.assert_array_equal(drawn["a·√t + b"].get_ydata(), norms + 1)
    np.testing.assert_array_equal(drawn[run].get_ydata(), norms)
    gray = figure.axes[0].lines[0]
    np.testing.assert_array_equal(gray.get_ydata(), other.series("norm")[1])
    assert {text.get_text() for text in figure.axes[0].get_legend().get_texts()} >= {"a·√t + b"}


def test_runs_of_unlike_length_and_size_are_each_measured_by_themselves(trace):
    records, other = trace(layers=2, steps=30), trace(layers=3, steps=20, seed=1)
    step, value = other.table["step"].to_numpy() * 100, other.table["value"].to_numpy().copy()
    lengths = np.isin(other.table["quantity"].to_pylist(), ["norm", "step_size"])
    value[lengths] *= 50
    large = Records(in_place(in_place(other.table, "step", step), "value", value))
    figure = figure_norm_direction(of(records), overlay=[of(large)])
    gray, ink = figure.axes[0].lines[:2]
    for line, run in ((gray, large), (ink, records)):
        steps, norms = run.series("norm")
        np.testing.assert_allclose(line.get_xdata(), steps / steps[-1])
        np.testing.assert_allclose(line.get_ydata(), norms / norms[0])
    assert figure.axes[0].get_ylabel() == "norm ‖θ‖ / ‖θ₀‖"
    assert "share of the run" in {ax.get_xlabel() for ax in figure.axes}


def test_the_angle_figure_shows_the_angles_and_the_slope_to_beat(trace):
    records = trace(layers=2, steps=30)
    figure = figure_angle(of(records))
    angles = records.series("angle")[1]
    by_label = {line.get_label(): line for line in figure.axes[0].lines}
    np.testing.assert_array_equal(by_label["model"].get_ydata(), angles)
    (slope,) = [line for name, line in by_label.items() if name.startswith("1/step")]
    product = np.asarray(slope.get_xdata()) * np.asarray(slope.get_ydata())
    np.testing.assert_allclose(product, product[0])
    assert figure_angle(of(trace(layers=2, steps=3))) is None


def test_a_quantity_alone_is_drawn(trace):
    records = trace(layers=2, steps=5)
    assert figure_alignment_step(of(records.where(quantity="alignment"))) is not None
    assert figure_norm_direction(of(records.where(quantity="cosine", level="layer"))) is not None
    assert figure_budget(of(records.where(quantity="total_growth"))) is None


def test_nothing_to_draw(trace, tmp_path):
    folder = tmp_path / "figures"
    assert draw(of(trace(layers=2, steps=5).where(level="tensor")), folder) == []
    assert not folder.exists()


def test_unknown_formats_and_several_runs_are_refused(trace, tmp_path):
    records = trace(layers=1, steps=2)
    with pytest.raises(InputError, match="'gif'"):
        draw(of(records), tmp_path, formats=["png", "gif"])
    other = records.table.set_column(0, "run", pa.array(["other"] * len(records)))
    both = Records(pa.concat_tables([records.table.cast(other.schema), other]))
    with pytest.raises(InputError, match="2 runs"):
        draw(of(both), tmp_path)


def test_degrees_are_a_chart_of_modules():
    """Every module with its degree; equal blocks share a row."""
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    result = normgrowth.degrees(model, torch.ones(1, 3, 8))
    (ax,) = result.plot().axes
    names = [text.get_text() for text in ax.get_yticklabels()]
    known = {row.module: float(row.degree) for row in result.modules}
    drawn = next(line for line in ax.lines if line.get_label() == "degree")
    shown = dict(zip(names, drawn.get_xdata(), strict=True))
    assert len(names) < len(result.modules)
    assert shown["(the model)"] == known[""]
    (linear,) = [name for name in names if name.endswith("linear2")]
    assert shown[linear] == known["layers.0.linear2"] == known["layers.2.linear2"]
