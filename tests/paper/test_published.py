"""The published numbers load, and what is derived from them is what Figure 5 shows."""

import numpy as np
import pytest

from normgrowth.errors import InputError
from normgrowth.paper.published.tables import TABLES, published


@pytest.mark.parametrize("name", [name for name in TABLES if name.startswith("t5")])
def test_every_table_loads_and_says_what_it_is(name):
    table = published(name)
    assert table.kind == ("derived" if "steps" in name else "published")
    assert "measured" not in table.source
    assert table.source.startswith(table.kind)
    lengths = {len(column) for column in table.values()}
    assert lengths == {(12 if "layer" in name else 1) * (104 if "norm" in name else 103)}
    assert all(np.isfinite(column).all() for column in table.values())


def test_norms_are_those_of_figure_1():
    table = published("t5_norm")
    assert table["step"].dtype == np.int64
    assert table["step"][[0, 1, -2, -1]].tolist() == [0, 5100, 520200, 524288]
    assert table["norm"][0] == 470.61
    layers = published("t5_norm_by_layer")
    assert layers.layer(12)["norm"][0] == pytest.approx(87.8, abs=0.1)
    with pytest.raises(InputError, match="no layer 13"):
        layers.layer(13)


def test_steps_and_alignment_are_those_of_figure_5():
    steps = published("t5_steps")
    norm, cosine = published("t5_norm")["norm"], published("t5_direction")["cosine_to_previous"]
    before, after = norm[:-1], norm[1:]
    size = np.sqrt(before**2 + after**2 - 2 * before * after * cosine)
    assert steps["step_size"] == pytest.approx(size, rel=1e-12)
    assert steps["alignment"] == pytest.approx((after * cosine - before) / size, abs=1e-10)
    assert steps["alignment"][0] == pytest.approx(-0.05, abs=0.005)
    assert steps["alignment"].argmax() == 2
    assert steps["alignment"].max() == pytest.approx(0.18, abs=0.005)
    assert steps["step_size"].max() == pytest.approx(391, abs=1)
    assert steps["step_size"][-1] == pytest.approx(291, abs=1)
    assert steps["interval"].tolist() == [5100] * 102 + [4088]
    assert steps["total_share_steps"][-1] == pytest.approx(0.56, abs=0.005)


def test_layers_are_derived_each_on_its_own():
    table = published("t5_steps_by_layer")
    norm, cosine = (published(f"t5_{name}_by_layer").layer(7) for name in ("norm", "direction"))
    before, after = norm["norm"][:-1], norm["norm"][1:]
    square = before**2 + after**2 - 2 * before * after * cosine["cosine_to_previous"]
    assert table.layer(7)["growth_steps"] == pytest.approx(square)


def test_scaling_curves_are_those_of_figure_4():
    table = published("scaling_curves")
    assert table.source.startswith("published: ")
    assert table.source.endswith("Figure 4")
    lines = set(zip(table["norm_position"].tolist(), table["bias"].tolist(), strict=True))
    assert lines == {(norm, bias) for norm in ("pre-norm", "post-norm") for bias in ("bias", "no-bias")}
    for norm, bias in lines:
        rows = (table["norm_position"] == norm) & (table["bias"] == bias)
        assert table["c"][rows] == pytest.approx(np.linspace(1, 10, 20), abs=1e-4)
        assert table["cosine_to_saturated"][rows][-1] > 0.96


def test_unknown_names_are_said():
    with pytest.raises(InputError, match="unknown published table 'bert'; known: t5_norm"):
        published("bert")


def test_published_results_have_the_types_of_measured_ones():
    from normgrowth.network.heads.result import Heads
    from normgrowth.network.saturation.result import Saturation
    from normgrowth.network.scaling.result import Scaling
    from normgrowth.paper.published import RESULTS, load_published
    from normgrowth.trace.result import Trace

    types = {name: type(load_published(name)) for name in RESULTS}
    assert types == {
        "t5": Trace,
        "t5-encoder": Trace,
        "t5-decoder": Trace,
        "saturation": Saturation,
        "heads": Heads,
        "scaling": Scaling,
    }
    trace = load_published("t5")
    assert trace.matrix("norm").values.shape == (104, 12)
    assert trace.plot().axes
    with pytest.raises(InputError, match="known: t5, t5-encoder, t5-decoder, saturation, heads, scaling"):
        load_published("bert")
