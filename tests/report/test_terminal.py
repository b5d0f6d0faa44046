"""Tables and sentences say what the records hold, and no name reaches the terminal as a command."""

import io
import math
import re
import sys
import unicodedata
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_records import known_trace, of_kind, replaced
from rich.console import Console

from normgrowth.checkpoints.parameters.parameter_list import Parameter, Parameters
from normgrowth.checkpoints.parameters.selection import Selection
from normgrowth.compare import compare
from normgrowth.compare.result import Comparison
from normgrowth.errors import InputError
from normgrowth.fit import fit
from normgrowth.paper.reproduction import Judgment, Reproduction
from normgrowth.records import Block, Records
from normgrowth.report.numbers import cosine, number, percent, small, times
from normgrowth.report.renderers import show as show_result
from normgrowth.report.sentences.trace import sentences as trace_sentences
from normgrowth.report.table_columns import Column, words
from normgrowth.report.terminal import comparison, parameters, reproduction
from normgrowth.report.terminal.console import Progress, say_most_important, show_table
from normgrowth.report.terminal.trace import show
from normgrowth.results import load
from normgrowth.stored_result import StoredResult
from normgrowth.text import visible
from normgrowth.trace.result import Trace

HOSTILE = [
    "[red]x[/red]",
    "a\x1b]0;owned\x07b",
    "new\nline",
    "\u202eevil",
    "c\x9b31m",
    ":smile:",
    "[/]",
    "日本",
]


def shown(what, *arguments, width=200):
    console = Console(record=True, width=width, file=io.StringIO())
    what(*arguments, console)
    return console.export_text()


def shown_columns(columns, width):
    return shown(lambda console: show_table(console, columns), width=width)


def print_compare(a, b, console):
    comparison.show(compare(a, b), console)


def print_parameters(listed, console):
    parameters.show(Parameters(source="series", parameters=tuple(listed)), console)


def print_trace(records, console, **fields):
    show(Trace.from_stored(StoredResult(records, fields or {"source": "somewhere"})), console)


def rows(text):
    """Each line by its first word."""
    return {line.split()[0]: " ".join(line.split()[1:]) for line in text.splitlines() if line.strip()}


# --- sentences: golden files have their words --------------------------------------------------------


def numbers(sentences):
    """The numbers that sentences state, without the steps and counts."""
    return re.findall(r"[+-]?\d[\d,]*\.\d+", " ".join(sentences))


def test_sentences_state_the_numbers_of_the_records():
    growth, layers, budget, direction, alignment = trace_sentences(known_trace())
    assert numbers([growth]) == ["5.0000", "10.800", "2.1600"]
    assert numbers([layers]) == ["3.0000", "1.5000"]
    assert layers.index("layer.0") < layers.index("layer.1")  # the one that grew most comes first
    assert numbers([budget]) == ["92.000", "65.0", "35.0"]
    assert numbers([direction]) == ["0.99712", "0.85000"]
    assert numbers([alignment]) == ["0.1000", "0.2000"]


def test_a_walk_is_summed_up_with_its_own_numbers(trace):
    records = trace(layers=12, steps=60)
    norm = {f"layer.{i}": records.series("norm", level="layer", name=f"layer.{i}")[1] for i in range(12)}
    factor = {name: values[-1] / values[0] for name, values in norm.items()}
    share = records.series("total_share_steps")[1][-1]
    _, layers, budget, _, alignment = trace_sentences(records)
    assert numbers([layers]) == [times(max(factor.values())), times(min(factor.values()))]
    assert numbers([budget])[-2:] == [f"{100 * share:.1f}", f"{100 - 100 * share:.1f}"]
    assert numbers([alignment])[-1] == small(records.series("alignment")[1].mean())


def test_training_tokens_are_stated():
    block = Block("model", ["model"], [None], [None], [0, 9], {"norm": np.ones((2, 1))})
    records = Records.from_blocks("run", [block]).with_tokens(3.3e10 / 9)
    assert "33 billion" in trace_sentences(records)[0]


def test_tokens_of_an_evaluation_text_are_not_those_of_training():
    """Records of earlier versions have a quantity tokens: those of the text that a model was measured with."""
    values = {"norm": np.ones((2, 1)), "tokens": np.full((2, 1), 231.0)}
    block = Block("model", ["model"], [None], [None], [0, 9], values)
    assert "231" not in trace_sentences(Records.from_blocks("run", [block]))[0]


@pytest.mark.parametrize(
    ("total", "alignment", "steps", "stated"),
    [
        (-9, -12, 3, ["-9.000", "+3.000", "-12.00"]),  # fell: terms with signs, no shares
        (9, -3, 12, ["+9.000", "+12.00", "-3.000"]),  # grew against the alignment: no shares either
        (9, 3, 6, ["9.0000", "66.7", "33.3"]),  # both add: shares
        (0, 0, 0, ["+0", "+0", "+0"]),
    ],
)
def test_shares_are_stated_only_where_both_terms_add(total, alignment, steps, stated):
    terms = {"total_growth": total, "total_growth_alignment": alignment, "total_growth_steps": steps}
    records = known_trace(**{name: [[1], [value]] for name, value in terms.items()})
    budget = trace_sentences(records)[2]
    assert re.findall(r"[+-]\d[\d.]*|\d+\.\d+", budget) == stated
    assert ("%" in budget) is (min(total, alignment, steps) >= 0 and total > 0)


def test_shrinking_layers_are_ranked():
    norms = np.array([[4.0, 8.0], [2.0, 2.0]])
    blocks = [
        Block("layer", ["layer.0", "layer.1"], [0, 1], [None] * 2, [0, 1], {"norm": norms}),
        Block("model", ["model"], [None], [None], [0, 1], {"norm": np.array([[9.0], [3.0]])}),
    ]
    model, layers = trace_sentences(Records.from_blocks("run", blocks))
    assert numbers([model]) == ["9.0000", "3.0000", "0.3333"]
    assert "grew" not in model + layers
    assert numbers([layers]) == ["0.5000", "0.2500"]


def test_one_checkpoint_has_no_growth():
    model, layers = trace_sentences(known_trace(steps=(7,)))
    assert "grew" not in model + layers
    assert numbers([model, layers]) == ["5.0000", "4.0000", "3.0000"]


def test_undefined_norms_are_counted():
    text = trace_sentences(replaced(known_trace(), "norm", None))[0]
    assert numbers([text])[:2] == ["5.0000", "8.4000"]
    assert "0 to 100" in text
    assert "1 of 3" in text


def test_values_that_are_not_finite_come_first():
    records = replaced(known_trace(), "nonfinite", 1200)
    names = ["w.0", "w.1", "w.2\x1b", "w.3", "w.4"]
    values = np.zeros((3, 5))
    values[1:] = [0, 1, 2, 3, 4]
    block = Block("tensor", names, [0] * 5, [None] * 5, [0, 100, 200], {"nonfinite": values})
    tensors = Records.from_blocks("run", [block])
    both = Records(pa.concat_tables([records.table, tensors.table]).unify_dictionaries())
    first = trace_sentences(records)[0]
    assert all(part in first for part in ("1 of 3", "200", "1,200"))
    assert "w.1, w.2\\x1b, w.3 and 1 more" in trace_sentences(both)[0]
    assert len(trace_sentences(both)) == 5


def test_records_without_norms_give_no_sentence(trace):
    assert trace_sentences(trace(layers=1, steps=2).where(level="role")) == []


# --- tables -----------------------------------------------------------------------------------------


def test_the_table_shows_first_and_last_and_what_lies_between():
    text = shown(print_trace, known_trace())
    table = rows(text)
    columns = "3.0000 9.0000 3.0000 0.1000 3.250 0.5000 0.99000 0.80000 0.1250"
    assert table["layer.0"] == f"{columns} +72.00 +43.20 +28.80"
    columns = "4.0000 6.0000 1.5000 0.2000 1.500 0.2500 1 − 1.3e-05 0.75000 -0.0625"
    assert table["layer.1"] == f"{columns} +20.00 +24.00 -4.000"
    columns = "5.0000 10.800 2.1600 0.1500 3.600 0.4000 0.99712 0.85000 0.1000"
    assert table["model"] == f"{columns} +92.00 +59.80 +32.20"


def test_shares_take_the_place_of_terms_where_both_add(trace):
    records = trace(layers=2, steps=4, drift=0.5)
    share = records.series("total_share_steps")[1][-1]
    assert 0 < share < 1
    assert rows(shown(print_trace, records))["model"].endswith(f" {100 * share:.1f}%")


def test_the_model_is_bold():
    console = Console(record=True, width=120, file=io.StringIO())
    print_trace(known_trace(), console)
    bold = [line for line in console.export_text(styles=True).splitlines() if "\x1b[1m" in line]
    assert any("model" in line and "10.800" in line for line in bold)


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_lines_keep_to_the_width_of_the_terminal(trace, width):
    text = shown(print_trace, trace(layers=48, steps=3, stacks=("encoder", "decoder")), width=width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert sum(line.startswith(("encoder.", "decoder.")) for line in text.splitlines()) == 96
    assert ("Hidden columns" in text) == (width < 110)
    if width >= 80:
        assert "…" not in text


def test_layers_come_in_the_order_of_their_numbers(trace):
    table = shown(print_trace, trace(layers=12, steps=2, stacks=("encoder", "decoder")))
    names = [line.split()[0] for line in table.splitlines() if line.startswith(("encoder.", "decoder."))]
    assert names == [f"{stack}.{i}" for stack in ("encoder", "decoder") for i in range(12)]


def test_a_single_step_and_a_single_layer(trace):
    assert rows(shown(print_trace, known_trace(steps=(7,))))["model"] == "5.0000 0.1500 2.000"
    assert "layer.0" in rows(shown(print_trace, trace(layers=1, steps=3)))


def test_undefined_values_are_a_dash():
    assert rows(shown(print_trace, replaced(known_trace(), "alignment", None)))["model"].split()[8] == "-"
    assert rows(shown(print_trace, replaced(known_trace(), "norm", None)))["model"].startswith(
        "5.0000 - - 0.1500"
    )


def test_notes_and_problems_are_printed():
    said = {"notes": ["[b]one[/b]", "two"], "problems": ["bad \x1b[2J step"]}
    text = shown(partial(print_trace, **said), known_trace())
    assert "note: [b]one[/b]\nnote: two\nproblem: bad \\x1b[2J step" in text


def test_records_of_something_else_are_refused(trace):
    with pytest.raises(InputError, match="lack the norm of the model"):
        print_trace(trace(layers=1, steps=2).where(level="role"), Console(file=io.StringIO()))


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("width", [80, 200])
def test_hostile_names_print_as_spelled(name, width):
    records = known_trace(names=(f"{name}.0", f"{name}.1"))
    parameter = Parameter(name, (2,), name, name, 0, name, "parameter", False, name)
    for what, arguments in (
        (partial(print_trace, source=name), (records,)),
        (print_compare, (records, records)),
        (print_parameters, ([parameter],)),
    ):
        out = io.StringIO()
        what(*arguments, Console(file=out, width=width, force_terminal=False))
        assert width == 80 or visible(name) in out.getvalue()  # a narrow column folds it
        assert not {c for c in out.getvalue() if unicodedata.category(c) in ("Cc", "Cf")} - {"\n"}


def test_a_terminal_that_lacks_letters_gets_them_spelled_out():
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding="ascii", write_through=True), width=80)
    print_trace(known_trace(), console, source="日本")
    print_parameters([Parameter("é", (2, 3), "f", "layer", 0, "r", "parameter", True, "")], console)
    assert rb"\u65e5\u672c: steps" in raw.getvalue()


def parameter(name, shape, counted=True, reason="", layer=0, role="attention.query"):
    return Parameter(name, shape, "float32", "encoder", layer, role, "parameter", counted, reason)


def test_names_are_ticked_and_totalled():
    listed = [
        parameter("a.weight", (10, 20)),
        parameter("scale", (), False, "a scalar", layer=None, role=""),
        parameter("embed", (50, 2), False, "an embedding", layer=None, role="embedding"),
    ]
    text = shown(print_parameters, listed)
    lines = [line.split() for line in text.splitlines()]
    assert ["✓", "a.weight", "10×20", "float32", "encoder.0", "attention.query"] in lines
    assert ["scale", "scalar", "float32", "excluded:", "a", "scalar"] in lines
    assert ["embed", "50×2", "float32", "embedding,", "excluded:", "an", "embedding"] in lines
    assert all(part in text for part in ("1 of 3", "200 of 301"))


def test_long_names_fold_and_stay_whole():
    name = "model.decoder.layers.11.self_attention.query_key_value.lora_A.default.weight"
    text = shown(print_parameters, [parameter(name, (4096, 4096), False, "left out by --exclude")], width=80)
    assert max(map(len, text.splitlines())) <= 80
    lines = text.splitlines()
    (titles,) = (row for row, line in enumerate(lines) if "tensor" in line and "role" in line)
    at = lines[titles].index("tensor")
    column = [line[at : at + 40].split()[0] for line in lines[titles + 2 :] if line[at : at + 1].strip()]
    assert name.startswith(column[0])
    assert "".join(column).startswith(name)
    assert "dtype" in text.split("Hidden columns")[1]


def test_parameters_say_what_was_read():
    listed = [parameter("a", (2,)), parameter("b", (2,), False, "embedding", layer=None, role="embedding")]
    facts = {
        "source": "runs/x",
        "checkpoint": "runs/x/step_5.pt",
        "step": 5,
        "selection": Selection("encoder"),
    }
    text = str(Parameters(parameters=tuple(listed), **facts))
    assert text.startswith("runs/x: step_5.pt, step 5\nparameters: encoder\ncounted ")
    assert "embedding, excluded: outside the blocks" in " ".join(text.split())
    assert str(Parameters(parameters=(), source="a.pt", checkpoint="a.pt", step=5)).startswith(
        "a.pt: step 5\n"
    )


def test_no_tensor_at_all():
    assert "0 of 0" in shown(print_parameters, [])


# --- two traces -------------------------------------------------------------------------------------


def test_compare_takes_the_last_common_step():
    a, b = known_trace(), known_trace(steps=(0, 100), scale=2.0)
    found = compare(a, b)
    assert [row.name for row in found.rows] == ["layer.0", "layer.1", "model"]
    assert (found.a.step, found.b.step, found.matched) == (100, 100, True)
    model = found.rows[-1]
    assert (model.a.norm, model.b.norm, model.norm_ratio) == (8.4, 16.8, 2.0)
    assert model.a.factor == pytest.approx(8.4 / 5)
    assert model.factor_ratio == pytest.approx(1.0)
    assert (model.a.cosine_first, model.b.alignment, model.a.total_share_steps) == (0.95, 0.3, 0.7)
    text = shown(print_compare, a, b)
    values = "8.4000 16.800 2.0000 1.6800 1.6800 1.0000 0.95000 0.95000 0.3000 0.3000 70.0% 70.0%"
    assert rows(text)["model"] == values


def test_compare_shows_terms_where_shares_are_outside_0_to_1():
    terms = {
        "total_growth": [[1], [-9]],
        "total_growth_alignment": [[-2], [-12]],
        "total_growth_steps": [[3], [3]],
    }
    falling = known_trace(total_share_steps=[[3], [-1 / 3]], **terms)
    a = compare(falling, falling).rows[-1].a
    assert (a.total_growth, a.total_growth_steps, a.total_growth_alignment) == (-9, 3, -12)
    text = shown(print_compare, falling, falling)
    assert "%" not in text
    assert rows(text)["model"].endswith("-9.000 -9.000 +3.000 +3.000 -12.00 -12.00")


def saturation_table(width):
    console = Console(file=io.StringIO(), width=width)
    show_result(load(Path(__file__).parents[2] / "docs" / "records" / "minilm"), console)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [40, 100])
def test_the_cosine_to_other_tokens_is_never_hidden(width):
    hidden = " ".join(
        re.search(r"Hidden columns[^:]*:\s+([^.]*)\.", saturation_table(width))[1].split()
    ).split("; ")
    assert "minilm c = 1000" in hidden
    assert "minilm to other tokens" not in hidden
    assert len(set(hidden)) == len(hidden)
    assert all(title.startswith("minilm") for title in hidden)


def test_text_is_folded_only_if_the_table_does_not_fit():
    long, number_ = "transformer.h.10.mlp.c_fc.weight." * 2, "12.3"
    columns = [
        words("name", [long], widest=0.3),
        words("why", ["because"]),
        Column("x", [number_]),
    ]
    assert long in shown_columns(columns, 100)
    assert long not in shown_columns(columns, 70)
    lines = shown_columns(columns, 70).splitlines()
    assert max(map(len, lines)) == 70  # the folded column uses the width


def test_a_trace_explains_its_columns_above_the_table():
    lines = shown(print_trace, known_trace()).splitlines()
    (said,) = (row for row, line in enumerate(lines) if line.startswith("Columns with “last” or “previous”"))
    assert said < next(row for row, line in enumerate(lines) if "alignment" in line)


@pytest.mark.parametrize(("count", "more"), [(5, None), (7, "2 more sentences"), (6, "1 more sentence ")])
def test_at_most_five_sentences(count, more):
    texts = [f"Sentence {i}." for i in range(count)]
    text = shown(lambda console: say_most_important(console, texts), width=100)
    assert text.count("Sentence") == 5
    assert (more in text) if more else ("with --wide" not in text)
    assert shown(lambda console: say_most_important(console, texts), width=1000).count("Sentence") == count
    pairs = ["One. Two.", "Three of 1.5 kinds. Four.", "note: Five. Six.", "Seven."]
    text = shown(lambda console: say_most_important(console, pairs), width=100)
    assert "Four." in text
    assert "Five." not in text
    assert "3 more sentences with --wide." in text


def test_a_trace_and_a_fit_have_at_most_five_sentences():
    many = shown(print_trace, replaced(known_trace(), "nonfinite", 1200), width=100)
    assert "1 more sentence with --wide." in many
    assert "The alignment cos" in shown(print_trace, replaced(known_trace(), "nonfinite", 1200), width=1000)
    fits = fit("published:t5_norm", bootstrap=0)
    assert "note: " not in str(fits)
    assert "more sentences with --wide." in str(fits)
    assert "note: relax" in shown(lambda console: show_result(fits, console), width=1000)


def test_notes_of_a_fit_write_numbers_as_its_table():
    steps = np.arange(1, 21) * 100.0
    wide = fit(steps, 3 + 2 * steps, laws=["relax"], bootstrap=0)
    assert "tau is at its bound, 200,000" in wide["relax"].notes  # not 2e+05
    assert "tau 200,000" in shown(lambda console: show_result(wide, console), width=1000)


def test_compare_without_a_common_step_takes_each_ones_last():
    a, b = (
        known_trace(),
        known_trace(steps=(0, 150, 300)),
    )  # the beginning in common says nothing about growth
    found = compare(a, b)
    assert (found.a.step, found.b.step, found.matched) == (200, 300, False)
    one = known_trace(steps=(5,))
    found = compare(one, one)
    assert (found.a.step, found.matched) == (5, True)


def test_compare_of_unlike_models_has_a_row_for_every_layer():
    a, b = known_trace(), known_trace(names=("layer.1", "layer.2"))
    table = {row.name: row for row in compare(a, b).rows}
    assert list(table) == ["layer.0", "layer.1", "layer.2", "model"]
    assert table["layer.0"].b.norm is None
    assert table["layer.2"].a.norm is None
    assert table["layer.1"].norm_ratio == 9 / 6
    assert rows(shown(print_compare, a, b))["layer.0"].startswith("9.0000 - - 3.0000 - -")


def test_compare_is_plain_json():
    import json

    text = json.dumps(
        compare(known_trace(), replaced(known_trace(), "norm", None)).to_json(), allow_nan=False
    )
    assert json.loads(text)["rows"][-1]["b"]["norm"] is None


def test_compare_of_what_has_no_norms_is_refused(trace):
    with pytest.raises(InputError, match="no norm of a model"):
        compare(known_trace(), trace(layers=1, steps=2).where(level="role"))


def test_a_comparison_is_saved_and_loaded(tmp_path):
    for name, records in (("a", known_trace()), ("b", known_trace(scale=2.0))):
        StoredResult(records, of_kind("trace", source="somewhere")).write(tmp_path / name)
    found = compare(tmp_path / "a", str(tmp_path / "b"))
    again = load(found.save(tmp_path / "compared"))
    assert isinstance(again, Comparison)
    assert (again.a, again.b, again.rows) == (found.a, found.b, found.rows)
    assert str(again) == str(found)
    norms = found.records.where(quantity="norm", level="model").table["value"].to_pylist()
    assert norms == [found.rows[-1].a.norm, found.rows[-1].b.norm]


def test_compare_at_80_columns():
    text = shown(print_compare, known_trace(), known_trace(), width=80)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "factor b/a" in text.split("Hidden columns")[1]


# --- words and numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (number, 470.734, "470.73"),
        (number, 4166.21, "4,166.2"),
        (number, 123456.7, "123,457"),
        (number, 0.0, "0"),
        (number, -0.00123456, "-0.0012346"),
        (number, 1.5e-9, "1.500e-09"),
        (number, 3e12, "3.000e+12"),
        (number, math.nan, "-"),
        (number, math.inf, "-"),
        (cosine, 0.99712, "0.99712"),
        (cosine, 0.99994, "0.99994"),
        (cosine, 1 - 3.2e-7, "1\u00a0−\u00a03.2e-07"),
        (cosine, 1.0, "1"),
        (cosine, -0.5, "-0.50000"),
        (cosine, math.nan, "-"),
        (small, 0.0312, "0.0312"),
        (small, 4e-6, "4.0e-06"),
        (small, math.nan, "-"),
        (times, 5.91638, "5.9164"),
        (times, 15.4012, "15.401"),
        (times, 1.0000321, "1.000032"),
        (times, 1.0, "1.0000"),
        (times, math.nan, "-"),
        (percent, 0.56, "56.0%"),
        (percent, math.nan, "-"),
    ],
)
def test_numbers_have_the_digits_that_matter(write, value, text):
    assert write(value) == text


@given(st.text())
def test_visible_text_cannot_act(text):
    seen = visible(text)
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in seen)
    assert seen == text or "\\" in seen
    assert visible(seen) == seen


@given(st.floats())
def test_every_number_can_be_written(x):
    for write in (number, cosine, small, times, percent):
        assert write(x)


# --- progress ---------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_silent_where_nobody_watches(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Progress() as progress:
        progress(1, 2, "label")
    assert out.getvalue() == ""
    for missing in (None, io.StringIO()):
        if missing is not None:
            missing.close()
        monkeypatch.setattr(sys, "stderr", missing)
        with Progress() as progress:
            progress(1, 2, "label")


def test_progress_shows_bytes_and_label(monkeypatch):
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with Progress() as progress:
        progress(0, 0, "nothing yet")
        progress(2_000_000, 8_000_000, "[red]step\x1b[2J 5[/red]")
        progress._bar.refresh()
        assert "2.0/8.0 MB" in out.getvalue()
        assert "[red]step\\x1b[2J 5[/red]" in out.getvalue()
    progress(1, 2, "after the end: nothing happens")
    assert "after the end" not in out.getvalue()


def test_progress_gives_the_terminal_back_after_an_error(monkeypatch):
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setenv("TERM", "xterm")

    def work():
        with Progress() as progress:
            progress(1, 2, "x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()
    hidden, shown_again = (out.getvalue().rfind(f"\x1b[?25{letter}") for letter in "lh")
    assert shown_again > hidden >= 0  # the cursor


def test_the_short_form_of_a_reproduction_has_the_most_notable_claims():
    def claim(name, verdict):
        facts = {"where": "§3", "statement": "", "published": "", "rule": ""}
        return Judgment(id=name, verdict=verdict, reason="", **facts)

    verdicts = ["holds", "holds in part", "does not hold", "holds", "not shown"]
    claims = tuple(claim(f"claim-{i}", verdict) for i, verdict in enumerate(verdicts))
    result = Reproduction.of(claims=claims)
    file = io.StringIO()
    reproduction.show(result, Console(file=file, width=100), verbose=False)
    named = re.findall(r"claim-\d", file.getvalue())
    assert named == ["claim-2", "claim-4", "claim-1"]
    assert "5 claims. does not hold: 1, not shown: 1, holds in part: 1, holds: 2." in file.getvalue()
    assert len(file.getvalue().splitlines()) < 12
