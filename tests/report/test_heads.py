"""What the report says of heads, from records alone."""

import io
from dataclasses import replace

import numpy as np
import pytest
from report_records import HEAD_KINDS, known_heads, numbers
from rich.console import Console

from normgrowth.errors import InputError
from normgrowth.network.heads.result import Heads
from normgrowth.paper.published.figure3 import figure3
from normgrowth.records import Block, Records
from normgrowth.report.figures.heads import (
    COLORS,
    atlas,
    patterns,
    positions,
)
from normgrowth.report.figures.style import BLUE
from normgrowth.report.renderers import draw
from normgrowth.report.sentences.heads import model_sentences, tables
from normgrowth.report.terminal.heads import show
from normgrowth.stored_result import StoredResult


def both():
    parts = [known_heads("a"), known_heads("b", seed=1)]
    models = {run: model for part in parts for run, model in part.models.items()}
    return replace(parts[0], records=Records.joined([part.records for part in parts]), models=models)


def printed(result, width=200):
    out = io.StringIO()
    show(result, Console(file=out, width=width))
    return out.getvalue()


def test_the_table_counts_kinds_by_layer():
    text = printed(known_heads())
    assert numbers(text.splitlines()[0]) == ["15", "9", "120"]  # heads, sentences, tokens
    rows = [line.split() for line in text.splitlines() if line[:1].isdigit() or line.startswith("all")]
    assert [row[:6] for row in rows] == [[str(i), *"11111"] for i in range(3)] + [["all", *"33333"]]
    assert "attended in" in text
    assert "windows of 83" in text
    assert "∞" in text
    (heads,) = tables(known_heads())
    soft, saturated, attended, away, hard = model_sentences(heads, 0.01)
    assert numbers(away) == ["3.90", "5.50"]
    assert numbers(soft) == ["15", "3", "3", "3", "3", "3"]
    assert numbers(saturated) == ["15", "8", "7"]
    assert numbers(attended)[:3] == ["8", "15", "7"]
    assert numbers(hard)[-1] == "12.0"
    assert "Hidden columns" in printed(known_heads(), 60)


def test_soft_heads_alone_say_no_more():
    (heads,) = tables(known_heads(exact=False))
    assert heads.form == ""
    assert not any("aturated" in sentence for sentence in model_sentences(heads, 0.01))
    assert "- " in printed(known_heads(exact=False))


def test_a_tied_model_is_never_hard():
    (heads,) = tables(known_heads(layers=1, count=3))  # two of three have ties at once
    tied = {**heads.model, "hard_scale": np.inf}
    *rest, never = model_sentences(replace(heads, model=tied), 0.01)
    assert rest == model_sentences(heads, 0.01)[:-1]
    assert not numbers(never)


def test_learned_sinks_have_a_column():
    assert "learned" not in printed(known_heads())
    result = known_heads()
    share = Block("model", ["model"], [None], [None], [0], {"learned_sink_share": np.array([[0.375]])})
    more = Records.joined([result.records, Records.from_blocks("model", [share])])
    assert "37.5%" in printed(replace(result, records=more))


def test_figure_3_has_measured_and_published_bars():
    figure = positions(both(), published=figure3(83))
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["a", "", "b", ""]
    left, right = figure.axes[:2]
    blue = [bar for bar in left.patches if bar.get_facecolor()[:3] == pytest.approx(_rgb(BLUE))]
    heights = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in blue if bar.get_height()}
    assert heights == {1: pytest.approx(8 / 15), 42: pytest.approx(7 / 15)}
    theirs = [bar for bar in left.patches if bar not in blue]
    at_41 = sorted(bar.get_height() for bar in theirs if round(bar.get_x() + bar.get_width() / 2) == 41)
    assert at_41 == pytest.approx([61 / 144, 70 / 144])
    words = [text.get_text() for text in left.texts]
    assert words == ["all of the past and itself: 42.00", "all of the future: 41.01"]
    assert [text.get_text() for text in right.texts] == ["one position: 12.0%"]
    entries = [text.get_text() for text in figure.legends[0].get_texts()]
    assert entries == [
        "measured, exact limit",
        "published: penn, paper-pre-norm",
        "published: penn, post-norm",
    ]


def test_figure_3_without_a_window_counts_real_tokens():
    figure = positions(known_heads(window=None))
    assert "real tokens only" in figure.axes[0].get_xlabel()
    assert [text.get_text() for text in figure.axes[0].texts] == ["all visible: 11.00"]


def test_the_atlas_has_a_cell_for_each_head():
    figure = atlas(both())
    assert [ax.get_title(loc="left") for ax in figure.axes] == [
        "a, soft",
        "a, saturated",
        "b, soft",
        "b, saturated",
    ]
    soft, hard = figure.axes[:2]
    assert len(soft.patches) == len(hard.patches) == 15
    assert [patch.get_facecolor()[:3] for patch in soft.patches[:5]] == [
        pytest.approx(_rgb(COLORS[kind])) for kind in HEAD_KINDS
    ]
    assert [text.get_text() for text in soft.texts[:4]] == ["A", "P", "S", "M"]
    assert len(atlas(known_heads(exact=False)).axes) == 1


def test_patterns_side_by_side():
    figure = patterns(known_heads(shown=True))
    panels = [ax for ax in figure.axes if ax.images]
    assert len(panels) == 4
    assert np.asarray(panels[0].images[0].get_array())[3] == pytest.approx([0.25] * 4)
    assert np.asarray(panels[2].images[0].get_array()) == pytest.approx(np.eye(4))
    assert panels[0].get_title(loc="left") == "layer.0.head.0\nargmax-like"
    assert [tick.get_text() for tick in panels[0].get_yticklabels()] == [
        "<eos>",
        "the",
        "[red]cat[/red]",
        "$x_1$",
    ]


def test_files(tmp_path):
    paths = draw(known_heads(shown=True), tmp_path, formats=("png",))
    assert [path.name for path in paths] == ["heads_atlas.png", "heads_positions.png", "heads_patterns.png"]
    again = draw(known_heads(shown=True), tmp_path / "again", formats=("png",))
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]
    assert [path.name for path in draw(known_heads(exact=False), tmp_path, formats=("svg",))] == [
        "heads_atlas.svg"
    ]


def test_heads_worth_a_look():
    result = known_heads()
    (heads,) = tables(result)
    chosen, known = heads.clearest(), result.models["model"].kinds
    assert len(chosen) == 4
    kinds = [known[name] for name in chosen]
    assert sorted(kinds) == sorted(HEAD_KINDS[:4])
    values = dict(zip(known, heads.of("first_share"), strict=True))
    sink = chosen[kinds.index("sink")]
    assert values[sink] == max(values[name] for name, kind in known.items() if kind == "sink")


def test_other_records_are_refused(trace):
    with pytest.raises(InputError, match="no heads"):
        tables(Heads.from_stored(StoredResult(trace(layers=2, steps=2))))


def _rgb(color):
    from matplotlib.colors import to_rgb

    return to_rgb(color)
