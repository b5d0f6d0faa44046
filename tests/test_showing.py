"""What notebooks show: the numbers of the records, in tables, and no name that becomes more than text."""

import io
import re
import unicodedata
from collections import OrderedDict
from dataclasses import replace
from html import unescape
from math import nan

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from strict_html import StrictParser
from synthetic_series import walk, write_series

import normgrowth
from normgrowth.checkpoints.series import CheckpointSeries, Entry
from normgrowth.fit.result import LawFit, SeriesFit
from normgrowth.lint.result import Findings
from normgrowth.records import Block, Records
from normgrowth.report.numbers import number
from normgrowth.report.renderers import show
from normgrowth.report.sentences.dynamics import findings, undecided
from normgrowth.text import MOST, WIDEST, html_table
from normgrowth.trace.sampling.finding import Finding

HOSTILE = [
    "<script>alert(1)</script>",
    "</td></table><img src=x onerror=alert(1)>",
    "\"' onmouseover='alert(1)",
    "&lt;b&gt;",
    "new\nline\r\ttab",
    "\u202eevil\u2066\u200b",
    "a\x1b]0;owned\x07\x00",
    "<!-- <![CDATA[ -->",
]
ANY = st.text(st.characters(codec=None) | st.sampled_from("<>&\"'\n\u202e\ud800"), max_size=30)


def acting(text):
    """Controls, other directions, line breaks, and what is no character: all that does more than show."""
    return any(unicodedata.category(c)[0] == "C" or unicodedata.category(c) in ("Zl", "Zp") for c in text)


class Tables(StrictParser):
    """Cells of each table by row; refuses everything that is not a plain table."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.tables, self.inside = [], False
        self.feed(html)
        self.close()
        assert not acting(html)

    def handle_starttag(self, tag, attrs):
        assert tag in ("table", "thead", "tbody", "tr", "th", "td")
        assert attrs == ([("style", "text-align: left")] if tag in ("th", "td") else [])
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            self.tables[-1][-1].append("")
            self.inside = True

    def handle_endtag(self, tag):
        assert tag in ("table", "thead", "tbody", "tr", "th", "td")
        self.inside = False

    def handle_data(self, data):
        assert self.inside, data
        self.tables[-1][-1][-1] += data


def tables(thing):
    return Tables(thing._repr_html_()).tables


def wide(result, **options):
    """The lines that a terminal shows which is wide enough for everything."""
    file = io.StringIO()
    show(result, Console(file=file, width=3000, force_jupyter=False), **options)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def columns(line):
    return re.split(r"\s{2,}", line.strip())


def spelled(name):
    return "".join(c.encode("unicode_escape").decode() if acting(c) else c for c in name)


def made(run="run", steps=(0, 10, 20), level="model", name="model", values=None, **more):
    values = values or more or {"norm": [3.0, 4.25, 5.123456]}
    columns = {quantity: np.array(value, float)[:, None] for quantity, value in values.items()}
    return Records.from_blocks(run, [Block(level, [name], [None], [None], steps, columns)])


# --- Records


def test_records_say_what_is_in_them_with_their_own_numbers(tmp_path):
    records = normgrowth.trace(write_series(tmp_path / "walk", walk(4))).records
    about, ends = tables(records)
    assert about[0] == ["records", f"{len(records):,} rows"]
    facts = dict(about[1:])
    assert facts["runs"] == "walk"
    assert facts["steps"] == "4, from 0 to 300"
    tensors = len(records.where(level="tensor").distinct("name"))
    assert f"tensor ({tensors})" in facts["levels"]
    assert "layer (2)" in facts["levels"]
    assert "model (1)" in facts["levels"]
    assert facts["quantities"].split(", ") == records.distinct("quantity")
    assert [row[1] for row in ends[1:]] == ["norm", "step_size", "cosine", "alignment"]
    for _, quantity, first, value, last, final in ends[1:]:
        steps, values = records.series(quantity)
        assert [int(first), int(last)] == [steps[0], steps[-1]]
        assert [float(value), float(final)] == pytest.approx([values[0], values[-1]], rel=1e-5)
    assert repr(records) == f"Records({len(records):,} rows; runs: walk; steps: 4, from 0 to 300)"


def test_each_of_three_runs_has_its_own_first_and_last_step():
    parts = [made(f"run {i}", (i, 100 * i), norm=[i + 0.5, i + 0.25]) for i in (1, 2, 3)]
    about, ends = tables(Records.joined(parts))
    assert dict(about[1:])["runs"] == "run 1, run 2, run 3"
    assert dict(about[1:])["steps"] == "6, from 1 to 300"
    assert ends[1:] == [[f"run {i}", "norm", str(i), f"{i}.5", f"{100 * i}", f"{i}.25"] for i in (1, 2, 3)]


def test_steps_in_any_order_end_at_the_first_and_the_last():
    _, ends = tables(made(steps=(20, 0, 10), norm=[3.0, 1.0, 2.0]))
    assert ends[1] == ["run", "norm", "0", "1", "20", "3"]


def test_what_is_undefined_is_said():
    _, ends = tables(made(norm=[nan, 1.0, np.inf], cosine=[0.5, 0.5, nan]))
    assert ends[1:] == [["run", "norm", "0", "nan", "20", "inf"], ["run", "cosine", "0", "0.5", "20", "nan"]]


def test_one_step():
    about, ends = tables(made(steps=(7,), norm=[2.5]))
    assert dict(about[1:])["steps"] == "1, from 7 to 7"
    assert ends[1] == ["run", "norm", "7", "2.5", "7", "2.5"]


def test_nothing():
    empty = made().where(level="nowhere")
    (about,) = tables(empty)
    assert about == [
        ["records", "0 rows"],
        ["runs", ""],
        ["steps", "none"],
        ["levels", ""],
        ["quantities", ""],
    ]
    assert repr(empty) == "Records(0 rows; runs: ; steps: none)"


def test_records_without_a_model_have_no_second_table():
    assert len(tables(made(level="layer", name="layer.0"))) == 1


def test_chunks_with_words_of_their_own_and_plain_strings():
    parts = [made("a", norm=[1.0, 2.0, 3.0]).table, made("b", cosine=[0.5, 0.5, 0.25]).table]
    apart = Records(pa.concat_tables(parts))
    plain = Records(pa.Table.from_pylist(apart.table.to_pylist()))
    assert tables(apart) == tables(plain)
    assert tables(apart)[1][1:] == [
        ["a", "norm", "0", "1", "20", "3"],
        ["b", "cosine", "0", "0.5", "20", "0.25"],
    ]


# --- Names from anywhere


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text(name):
    about, ends = tables(made(name))
    assert dict(about[1:])["runs"] == ends[1][0] == spelled(name)
    facts = dict(tables(made(level=name, name=name, values={name: [1.0, 2.0, 3.0]}))[0][1:])
    assert facts["levels"] == f"{spelled(name)} (1)"
    assert facts["quantities"] == spelled(name)
    assert not acting(repr(made(name)))


@given(st.lists(ANY, min_size=1, max_size=4), st.lists(st.lists(ANY, max_size=4), max_size=4))
def test_any_text_stays_in_its_cell(titles, rows):
    (found,) = Tables(html_table(titles, rows)).tables
    assert found == [[spelled(cell) for cell in row] for row in [titles, *rows]]


@given(ANY, ANY, ANY)
def test_any_name_of_a_run_or_quantity_is_text(run, level, quantity):
    records = made(run, level=level, name=run, values={quantity: [1.0, 2.0, 3.0]})
    assert len(tables(records)[0]) == 5
    assert not acting(repr(records))


def test_neither_long_names_nor_many_rows_flood_the_screen():
    (found,) = Tables(html_table(["a", "b"], [["<" * 10**6, 1000 * i] for i in range(1000)])).tables
    assert found[1] == ["<" * WIDEST + "…", "0"]
    assert len(found) == 1 + MOST + 1
    assert found[-1] == [f"and {1000 - MOST} more"]
    many = Records.joined([made(f"run-{i}") for i in range(MOST + 5)])
    assert dict(tables(many)[0][1:])["runs"].endswith(f"run-{MOST - 1} and 5 more")


# --- Results


def test_fits_show_the_best_law_in_a_line_and_a_law_its_intervals():
    steps = np.arange(0, 1000, 50)
    fits = normgrowth.fit(steps, 3 * np.sqrt(steps) + 10 + 0.01 * np.cos(steps), bootstrap=40)
    said = f"(9 laws on 20 points; best: {fits.best.law}, {fits.best.formula})"
    assert (repr(fits), repr(fits.only)) == (f"Fits{said}", f"SeriesFit{said}")
    rows = [columns(line) for line in wide(fits)]
    assert rows[0] == ["20 points"]
    for law in fits.only.values():
        (row,) = [row for row in rows if row[:2] == [law.law, law.formula]]
        assert float(row[2]) == pytest.approx(law.r2, abs=5e-5)
        assert float(row[7]) == pytest.approx(law.weight, abs=5e-4)
        assert row[8].startswith(f"{next(iter(law.params))} ")
    (one,) = tables(fits["sqrt"])
    assert one[0][:2] == ["sqrt", fits["sqrt"].formula]
    low, high = fits["sqrt"].interval("a")
    assert list(map(float, one[1][1:])) == pytest.approx([fits["sqrt"].params["a"], low, high], rel=1e-5)


def test_traces_and_comparisons_say_what_they_hold_in_a_line(tmp_path):
    folder = write_series(tmp_path / "walk", walk(4))
    trace = normgrowth.trace(folder)
    first, *_, last = trace.records.series("norm")[1]
    assert repr(trace) == (f"Trace({folder}, 4 checkpoints, steps 0 to 300; norm {first:.6g} to {last:.6g})")
    other = normgrowth.trace(write_series(tmp_path / "other", walk(4, seed=1)))
    same, parted = normgrowth.compare(trace, trace), normgrowth.compare(trace, other)
    assert repr(same) == f"Comparison(a: {folder}, b: {folder}; no difference)"
    assert repr(parted).endswith(f"diverge at step 0: {parted.diagnoses[0].cause})")
    assert "\n" not in repr(replace(trace, source="a\nb"))


def test_a_law_that_was_not_fitted_says_why():
    law = LawFit("sqrt", "a·√t + b", {}, reason="<too few> points")
    assert tables(law)[0][1:] == [["not fitted", "<too few> points"]]
    series = SeriesFit(name="", laws={"sqrt": law}, steps=(1.0,), measured=(2.0,))
    assert repr(series) == "SeriesFit(1 laws on 1 points; no best law)"


def test_dynamics_show_the_verdict_in_a_line_and_all_sentences_if_wide(tmp_path):
    records = normgrowth.trace(write_series(tmp_path / "walk", walk(6)))
    found = normgrowth.dynamics(records, "0.01")
    assert repr(found) == f"Dynamics(model, 6 checkpoints; verdict: {found.verdict})"
    shown = " ".join(str(found).split())
    notebook = " ".join(unescape(re.sub(r"<[^>]*>", "", found._repr_html_())).split())
    all_sentences = "\n".join(wide(found))
    for sentence in [*findings(found), *undecided(found)]:
        assert sentence in all_sentences
    for sentence in findings(found)[:2]:
        assert sentence in shown
        assert sentence in notebook
    for fit in (found.aligned, found.misaligned):
        assert fit is not None
        assert all(number(value) in shown for value in fit.predicted)


@pytest.mark.parametrize("name", HOSTILE)
def test_findings_and_series_show_hostile_files_as_text(name):
    found = (Finding(None, name, "new", name, name), Finding(3, "w", "run", "", ""))
    report = Findings(source=name, steps=(0, 3), findings=found)
    lines = wide(report)
    assert lines[0] == f"{spelled(name)}: 2 checkpoints, steps 0 to 3"
    assert columns(lines[-3]) == ["?", "new", spelled(name), spelled(name)]
    assert columns(lines[-2]) == ["3", "run", "w"]
    assert lines[-1] == "2 faults, no remarks."
    series = CheckpointSeries(name, (Entry(1000, name, "", lambda: pytest.fail("opened")),), notes=(name,))
    about, found = tables(series)
    assert about[-1] == ["note", spelled(name)]
    assert found[1] == ["1,000", "name", spelled(name)]


def test_nothing_found_is_three_lines():
    report = Findings(source="series", steps=(0, 1, 2), tensors=2, of_tensors=2)
    said = ["series: 3 checkpoints, steps 0 to 2", "checked: all 2 parameters", "Nothing found."]
    assert str(report).splitlines() == said


@pytest.mark.usefixtures("own_random_numbers")
def test_degrees_and_limits_show_every_module():
    import torch
    from torch import nn

    bad = "<script>alert(1)</script>"
    model = nn.Sequential(OrderedDict([("first", nn.Linear(3, 4)), (bad, nn.Linear(4, 2))]))
    inputs = torch.ones(1, 3)
    limit = normgrowth.saturated(model)
    assert repr(limit) == "Limit(Sequential; not called yet)"
    assert tables(limit) == [[["limit of", "Sequential"], ["degrees", "known after a call"]]]
    limit(inputs)
    about, modules = tables(limit)
    assert about[0] == ["limit of", "Sequential"]
    assert modules[1:] == [["first", "Linear", "1"], [bad, "Linear", "2"], ["(the model)", "Sequential", "2"]]
    assert repr(limit) == "Limit(Sequential; 3 modules)"
    found = normgrowth.degrees(model, inputs)
    rows = [columns(line) for line in wide(found)]
    assert [(row.module, row.class_name, str(row.degree)) for row in found.modules] == [
        ("first", "Linear", "1"),
        (bad, "Linear", "2"),
        ("", "Sequential", "2"),
    ]
    for row in found.modules:
        shown = [row.module or "(the model)", row.class_name, str(row.inputs[0]), str(row.degree)]
        assert shown in [one[:4] for one in rows]
    notebook = unescape(re.sub(r"<[^>]*>", "", found._repr_html_()))
    assert "first" in notebook
    assert bad in notebook
    for sentence in found.explanation:
        assert sentence in "\n".join(wide(found, explain=True))
    assert "\n" not in repr(found)
    assert len(repr(found)) < 100
