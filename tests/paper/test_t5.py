"""The published series as records: Figure 1 as published, Figure 5 and the budget as they follow from it."""

import numpy as np
import pytest

from normgrowth.cli.main import main
from normgrowth.paper.published.figure1 import t5_trace
from normgrowth.trace.result import Trace


def test_the_published_series_reads_like_a_trace():
    records = t5_trace().records
    steps, norms = records.series("norm")
    assert len(steps) == 104
    assert norms[0] == 470.61
    assert norms[-1] == 4166.21
    assert records.series("cosine")[1][-1] == 0.997562
    assert records.where(level="layer").distinct("name") == [f"encoder.{i}" for i in range(12)]
    assert records.series("norm", level="layer", name="encoder.11")[1][0] == pytest.approx(87.8, abs=0.2)


def test_what_is_derived_has_the_published_features():
    """The numbers that the reference's own README works out by hand."""
    records = t5_trace().records
    alignment = records.series("alignment")[1]
    assert alignment[0] == pytest.approx(-0.05, abs=0.005)
    assert alignment.max() == pytest.approx(0.18, abs=0.005)
    assert np.argmax(alignment) == 2
    assert alignment[-2] == pytest.approx(0.03, abs=0.005)
    size = records.series("step_size")[1]
    assert size[:2] == pytest.approx([342, 391], abs=1)
    assert size[:-1].min() == pytest.approx(292, abs=1)
    assert np.argmin(size[:-1]) == 12
    assert size.max() == pytest.approx(391, abs=1)
    assert size[-2] == pytest.approx(320, abs=1)
    assert size[-1] == pytest.approx(291, abs=1)
    assert records.series("total_share_steps")[1][-1] == pytest.approx(0.56, abs=0.005)


def test_t5_base_has_220_million_parameters():
    """Without weights: on the meta device. The embedding is shared by both stacks."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.T5Config(d_model=768, num_layers=12, num_heads=12, d_ff=3072)
    with torch.device("meta"):
        model = transformers.T5Model(config)
    counts = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert round(sum(counts.values()), -6) == 223_000_000
    blocks = sum(count for name, count in counts.items() if ".block." in name)
    assert round(blocks, -6) == 198_000_000


def test_it_can_be_drawn_with_a_law_and_laid_over(tmp_path, capsys):
    assert main(["plot", "published:t5", "--fit", "sqrt", "-o", str(tmp_path), "--formats", "svg"]) == 0
    names = {line.rsplit("/", 1)[1] for line in capsys.readouterr().out.split()}
    assert {f"trace_{name}.svg" for name in ("norm_direction", "alignment_step", "angle", "budget")} <= names
    assert main(["plot", "published:t5", "--fit", "nonsense", "-o", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_published_lines_are_grey_and_measured_ones_are_not():
    from normgrowth.report.figures.style import BLUE, GRAY
    from normgrowth.report.figures.trace import figure_alignment_step, figure_norm_direction

    published = t5_trace()
    measured = Trace(records=published.records, source="measured here")
    for make in (figure_norm_direction, figure_alignment_step):
        whole, layers = make(published, overlay=[measured]).axes[:2]
        assert [line.get_color() for line in whole.lines if len(line.get_xdata()) > 2] == [BLUE, GRAY]
        shades = [line.get_color()[:3] for line in layers.lines if len(line.get_xdata()) > 2]
        assert len(shades) == 12
        assert all(max(shade) - min(shade) < 0.02 for shade in shades)  # no hue
