"""A sweep in the terminal and in figures, from records alone."""

import io
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from report_records import DECAYS, RATES, numbers, sweep_records
from rich.console import Console

from normgrowth.lab.sweep_result import Sweep
from normgrowth.report.figures.sweep import FIGURES
from normgrowth.report.renderers import draw, show
from normgrowth.report.sentences.sweep import edges_in_words, sentences
from normgrowth.report.sweep_grid import SweepGrid


def small_sweep(*arguments, **options):
    return Sweep.from_stored(sweep_records(*arguments, **options))


def printed(found):
    out = io.StringIO()
    show(found, Console(file=out, width=120))
    return out.getvalue()


def test_cells_come_to_their_places():
    found = SweepGrid(small_sweep(missing=[(1, 2)]))
    assert found.cell("lr")[2, 0] == 0.1
    assert found.cell("weight_decay")[0, 3] == 1.0
    assert np.isnan(found.cell("factor")[1, 2])
    assert np.isfinite(found.cell("factor")).sum() == 11


def test_signs_have_the_largest_decay_on_top():
    lines = printed(small_sweep(diverged=[(2, 0)], missing=[(2, 3)])).splitlines()
    assert lines[2:6] == ["    1  − − ·", "  0.1  − + +", " 0.01  + + +", "0.001  + + x"]


def test_the_table_and_what_it_says():
    text = printed(small_sweep())
    assert "above all" in text
    assert "more than once" in text
    said = sentences(small_sweep())
    assert said[0] == "12 of 12 cells were trained; the norm grew in 9."
    assert numbers(said[1]) == ["0.0200", "0.200", "2", "3"]  # where growth ends, in so many columns
    assert (
        said[2] == "The edge is 0.500 times λ*, the edge for random gradients."
    )  # no range and no median of equals
    assert numbers(said[3]) == ["0.01"]  # the column that changes its sign more than once


def test_a_range_of_one_value_is_one_number():
    said = sentences(small_sweep((0.02, math.inf, math.inf)))
    assert said[1] == "Growth ends at weight_decay 0.0200, in 1 of 3 columns."
    assert "grew in 12, of which 1 diverged" in sentences(small_sweep((math.inf,) * 3, diverged=[(2, 0)]))[0]


def test_growth_that_never_began_does_not_fail_to_end():
    said = " ".join(sentences(small_sweep((0.0,) * 3, cell={"factor": [0.5] * 12})))
    assert "the norm grew in none." in said
    assert "does not end" not in said
    assert "Growth does not end within this range" in " ".join(sentences(small_sweep((math.inf,) * 3)))


def test_terms_at_the_edge_that_are_no_shares_are_absolute():
    """Growth of 2 at the row below and −2 at the row above: the edge is halfway, with the means of their terms."""
    at_rows = {"growth": [4, 2, -2, -4], "growth_alignment": [-1, -2, -4, -5], "growth_steps": [6] * 4}
    cell = {name: values * 3 for name, values in at_rows.items()}
    cell["growth_decay"] = [-1, -2, -4, -5] * 3
    shares = {"edge_alignment": [-1.0, 0.8, math.nan], "edge_steps": [2.0, 0.2, math.nan]}
    edges = {"edge_below": [0.01] * 3, "edge_above": [0.1, 0.1, math.inf]}
    found = small_sweep(cell=cell, column={**shares, **edges})
    grid = SweepGrid(found)
    for term, value in {"alignment": -3.0, "steps": 6.0, "decay": -3.0}.items():
        assert grid.at_edge(f"growth_{term}").tolist() == pytest.approx([value, value, math.nan], nan_ok=True)
    text = printed(found)
    assert re.search(r"^0.001 .* -3.000 +\+6.000 +-3.000 ", text, re.MULTILINE)
    assert "%" not in text
    assert "by alignment" in text
    assert re.search(r"^0.001 .* 90.0% +10.0% ", printed(small_sweep()), re.MULTILINE)


def test_edges_are_counted():
    found = small_sweep((0.02, 0.0, math.inf), column={"once": [1.0, 0.0, 1.0]})
    assert edges_in_words(SweepGrid(found)) == ["1", "several (falls first)", "none"]
    assert edges_in_words(SweepGrid(small_sweep((0.02, 0.2, math.nan)))) == ["1", "several", ""]


def test_a_norm_that_stays_is_no_norm_that_falls():
    found = small_sweep(cell={"factor": [1.0] * 4 + [2.0] * 4 + [0.5] * 4})
    lines = printed(found).splitlines()
    assert [line[-5:] for line in lines[2:6]] == ["= + −"] * 4
    assert "= stays" in lines[6]
    assert "= stays" not in printed(small_sweep())


def test_cells_over_their_time_are_said():
    found = small_sweep(cell={"timed_out": [1.0, 1.0] + [0.0] * 10}, time_limit=2.5)
    assert numbers(sentences(found)[1]) == ["2.5", "2"]


def test_decay_that_rounding_takes_away_is_said():
    cell = {"growth": [1.0] * 11 + [0.0], "growth_decay": [0.0, 0.0, *[-1.0] * 9, 0.0]}
    said = sentences(small_sweep(cell=cell))[1]
    assert numbers(said)[0] == "2"
    assert numbers(sentences(small_sweep())[1])[0] != "2"


def test_a_slope_is_compared_where_there_is_a_prediction():
    edge = (0.02, 0.2, 2.0)
    slopes = [
        next(s for s in sentences(found) if "η^" in s)
        for found in (small_sweep(edge), small_sweep(edge, column={"edge_predicted": [math.nan] * 3}))
    ]
    assert list(map(numbers, slopes)) == [["1.00", "1.00"], ["1.00"]]


def test_a_norm_that_falls_before_it_grows_does_not_change_its_sign_twice():
    found = small_sweep(edge=(0.02, 0.0, math.inf))
    assert "falls first" in printed(found)
    assert "more than once" not in printed(found)
    assert numbers(sentences(found)[-1]) == ["0.01"]


KINDS = ["paper_pre_norm", "usual_pre_norm", "post_norm", "x"]


def test_rows_that_are_no_numbers_have_no_edge():
    rows = {"kind": [float(j) for _ in RATES for j in range(4)]}
    found = sweep_records(cell=rows, y={"setting": "kind", "values": KINDS})
    found = Sweep.from_stored(replace(found, records=found.records.where(level="cell")))
    assert list(map(numbers, sentences(found))) == [["12", "12", "9"]]


def test_an_edge_nowhere_is_said():
    said = sentences(small_sweep(edge=(math.inf, 0.0, math.inf)))
    assert "weight_decay" in said[1]
    assert not numbers(said[1])


def test_figures_are_drawn_and_titled(tmp_path):
    found = small_sweep(diverged=[(2, 0)], missing=[(1, 1)])
    paths = draw(found, tmp_path, formats=("svg",))
    assert [path.name for path in paths] == ["sweep_phase.svg", "sweep_edge.svg"]
    phase = FIGURES["phase"](found).axes[0]
    assert phase.get_title(loc="left") == "adamw, post_norm, wikitext-2"
    labels = [text.get_text() for text in phase.get_legend().get_texts()]
    assert labels == ["growth ends", "λ* of random gradients", "PyTorch's default"]
    line = phase.get_lines()[0].get_ydata()
    np.testing.assert_allclose(line[:2], [0.02, 0.2])
    assert np.isnan(line[2])  # beyond the grid there is no place to draw it
    left = FIGURES["edge"](found).axes[0]
    np.testing.assert_allclose(left.get_lines()[1].get_ydata(), [0.04, 0.4, 4.0])


def test_a_list_that_holds_zero_has_everything_in_its_place():
    """Rows stand at 0, 1, 2, 3; half way between 0.01 and 0.1 is 0.055."""
    rows = [0.0, 0.01, 0.1, 1.0]
    decays = [rows[DECAYS.index(decay)] for _ in RATES for decay in DECAYS]
    column = {"edge": [0.055, 0.1, math.inf], "edge_predicted": [0.001, 0.55, 4.0]}
    found = small_sweep(
        cell={"weight_decay": decays}, column=column, y={"setting": "weight_decay", "values": rows}
    )
    edge, predicted, default = (line.get_ydata() for line in FIGURES["phase"](found).axes[0].get_lines())
    np.testing.assert_allclose(edge, [1.5, 2.0, np.nan])
    np.testing.assert_allclose(predicted, [0.1, 2.5, np.nan])
    np.testing.assert_allclose(default, [1.0])


def test_where_decay_is_lost_is_drawn_for_those_that_lose_it():
    rates = [1e-6, 1e-5, 1e-4]
    cell = {"lr": [rate for rate in rates for _ in DECAYS]}
    x = {"setting": "lr", "values": rates}
    texts = {}
    for optimizer in ("adamw", "sgd"):
        settings = {**sweep_records().fields["settings"], "optimizer": optimizer}
        ax = FIGURES["phase"](small_sweep(cell=cell, x=x, settings=settings)).axes[0]
        texts[optimizer] = [text.get_text() for text in ax.texts]
        if optimizer == "adamw":
            line = ax.get_lines()[2]
            np.testing.assert_allclose(line.get_xdata() * line.get_ydata(), 2.0**-25)
    assert texts == {"adamw": ["below the dotted line, float32 rounds decay away"], "sgd": []}


@pytest.mark.parametrize("edge", [0.0, 0.02, math.inf])
def test_edges_without_terms_are_drawn(tmp_path, edge):
    """Beyond the grid in every column, or beside a cell that diverged."""
    nothing = [math.nan] * 3
    found = small_sweep([edge] * 3, column={"edge_alignment": nothing, "edge_steps": nothing})
    assert len(draw(found, tmp_path, formats=("svg",))) == 2
    beyond = small_sweep([edge] * 3, column={"edge_predicted": [math.inf] * 3, "edge_alignment": nothing})
    assert len(draw(beyond, tmp_path, formats=("svg",))) == 1


def test_hostile_names_are_data(tmp_path):
    found = small_sweep(corpus={"name": "<script>\x1b[31m$\\frac{1}"})
    assert "\x1b[31m" not in printed(found)
    draw(found, tmp_path, formats=("svg",))
    assert "<script>" not in (tmp_path / "sweep_phase.svg").read_text()
