"""Tables and sentences say what the records hold, and no name reaches the terminal as a command."""

import io
import math
import sys
import unicodedata
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from normgrowth.checkpoints.parameter_list import Parameter, Parameters
from normgrowth.compare import compare
from normgrowth.compare.result import Comparison
from normgrowth.errors import InputError
from normgrowth.records import Block, Records
from normgrowth.report.terminal import comparison, parameters
from normgrowth.report.terminal.console import Progress
from normgrowth.report.terminal.trace import show
from normgrowth.report.wording import cosine, number, percent, small, summary, times, visible
from normgrowth.results import load
from normgrowth.stored_result import StoredResult
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


def print_compare(a, b, console):
    comparison.show(compare(a, b), console)


def print_parameters(listed, console):
    parameters.show(Parameters(source="series", parameters=tuple(listed)), console)


def print_trace(records, console, **fields):
    show(Trace.from_stored(StoredResult(records, fields or {"source": "somewhere"})), console)


def rows(text):
    """Each line by its first word."""
    return {line.split()[0]: " ".join(line.split()[1:]) for line in text.splitlines() if line.strip()}


def known(steps=(0, 100, 200), run="run", scale=1.0, names=("layer.0", "layer.1"), **model):
    """Two layers and a model whose numbers can be checked by eye."""
    early = {
        "norm": [[3, 4], [6, 6], [9, 6]],
        "rms": [[0.1, 0.2]] * 3,
        "largest": [[1, 2]] * 3,
        "nonfinite": [[0, 0]] * 3,
    }
    whole = {"norm": [[5], [8.4], [10.8]], "rms": [[0.15]] * 3, "largest": [[2]] * 3, "nonfinite": [[0]] * 3}
    later = {
        "cosine": [[0.9, 0.91], [0.99, 0.999987]],
        "cosine_first": [[0.9, 0.91], [0.8, 0.75]],
        "alignment": [[0.5, 0.25], [0.125, -0.0625]],
        "step_size": [[3.5, 2.25], [3.25, 1.5]],
        "relative_step": [[1.1, 0.5], [0.5, 0.25]],
        "total_share_steps": [[0.75, 0.5], [0.6, 1.2]],
        "total_growth": [[27, 20], [72, 20]],
        "total_growth_alignment": [[6.75, 10], [28.8, -4]],
        "total_growth_steps": [[20.25, 10], [43.2, 24]],
    }
    whole_later = {
        "cosine": [[0.95], [0.99712]],
        "cosine_first": [[0.95], [0.85]],
        "alignment": [[0.3], [0.1]],
        "step_size": [[4.2], [3.6]],
        "relative_step": [[0.8], [0.4]],
        "total_share_steps": [[0.7], [0.65]],
        "total_growth": [[45], [92]],
        "total_growth_alignment": [[13.5], [32.2]],
        "total_growth_steps": [[31.5], [59.8]],
    } | model
    n = len(steps)

    def block(level, names, layers, values, at):
        arrays = {q: np.array(v, float)[: len(at)] * (scale if q == "norm" else 1) for q, v in values.items()}
        return Block(level, names, layers, [None] * len(names), at, arrays)

    blocks = [block("layer", names, range(2), early, steps), block("model", ["model"], [None], whole, steps)]
    to_first = [values.pop("cosine_first") for values in (later, whole_later)]
    if n > 1:
        own = [("layer", names, range(2)), ("model", ["model"], [None])]
        for thing, values in zip(own, to_first, strict=True):
            blocks.append(replace(block(*thing, {"cosine": values}, steps[1:]), reference="first"))
    if n > 1:
        blocks.append(block("layer", names, range(2), later, steps[1:]))
        blocks.append(block("model", ["model"], [None], whole_later, steps[1:]))
    return Records.from_blocks(run, blocks)


def replaced(records, quantity, value, **where):
    """The same records with one value of the model changed at the last step."""
    table = records.to_rows()
    last = max(row["step"] for row in table)
    for row in table:
        if row["quantity"] == quantity and row["level"] == "model" and row["step"] == where.get("step", last):
            row["value"] = value
        row["value"] = math.nan if row["value"] is None else row["value"]
    return Records(pa.Table.from_pylist(table, schema=records.table.schema))


# --- sentences --------------------------------------------------------------------------------------


def test_the_sentences_say_what_happened():
    assert summary(known()) == [
        "The norm of the model grew from 5.0000 to 10.800 (×2.1600) over steps 0 to 200 (3 checkpoints).",
        "Of 2 layers, layer.0 grew most (×3.0000) and layer.1 least (×1.5000).",
        "The cosine between the weights at steps 100 and 200 is 0.99712; "
        "between steps 0 and 200 it is 0.85000.",
        "The last step has a cosine of 0.1000 with the weights it starts from (alignment); "
        "the mean of 2 steps is 0.2000.",
        "Of the growth of the squared norm, 65.0% comes from the size of the steps between checkpoints "
        "(‖δ‖²), 35.0% from their alignment with the weights (2⟨θ,δ⟩).",
    ]


def test_a_walk_is_summed_up_with_its_own_numbers(trace):
    records = trace(layers=12, steps=60)
    norm = {f"layer.{i}": records.series("norm", level="layer", name=f"layer.{i}")[1] for i in range(12)}
    factor = {name: values[-1] / values[0] for name, values in norm.items()}
    most, least = max(factor, key=factor.get), min(factor, key=factor.get)
    share = records.series("total_share_steps")[1][-1]
    text = " ".join(summary(records))
    assert f"{most} grew most (×{factor[most]:.3f}) and {least} least (×{factor[least]:.4f})" in text
    assert f"{100 * share:.1f}% comes from the size" in text
    assert f"the mean of 59 steps is {records.series('alignment')[1].mean():.4f}" in text


def test_tokens_are_told():
    block = Block("model", ["model"], [None], [None], [0, 9], {"norm": np.ones((2, 1))})
    records = Records.from_blocks("run", [block]).with_tokens(3.3e10 / 9)
    assert "(2 checkpoints, 33 billion training tokens)" in summary(records)[0]


def test_tokens_of_an_evaluation_text_are_not_those_of_training():
    """Records of earlier versions have a quantity tokens: those of the text that a model was measured with."""
    values = {"norm": np.ones((2, 1)), "tokens": np.full((2, 1), 231.0)}
    block = Block("model", ["model"], [None], [None], [0, 9], values)
    assert "231" not in summary(Records.from_blocks("run", [block]))[0]


def test_shrinking_is_not_called_growth():
    shrunk = known(
        total_growth=[[1], [-9]], total_growth_alignment=[[-2], [-12]], total_growth_steps=[[3], [3]]
    )
    assert "The squared norm fell by 9.0000: " in summary(shrunk)[-1]
    assert "took away 12.000" in summary(shrunk)[-1]
    mixed = known(
        total_growth=[[1], [9]], total_growth_alignment=[[-2], [-3]], total_growth_steps=[[3], [12]]
    )
    assert (
        "grew by 9.0000: the size of the steps between checkpoints (‖δ‖²) added 12.000" in summary(mixed)[-1]
    )
    norms = np.array([[4.0, 8.0], [2.0, 2.0]])
    blocks = [
        Block("layer", ["layer.0", "layer.1"], [0, 1], [None] * 2, [0, 1], {"norm": norms}),
        Block("model", ["model"], [None], [None], [0, 1], {"norm": np.array([[9.0], [3.0]])}),
    ]
    model, layers = summary(Records.from_blocks("run", blocks))
    assert model.startswith("The norm of the model fell from 9.0000 to 3.0000 (×0.3333)")
    assert layers == "Of 2 layers, layer.0 shrank least (×0.5000) and layer.1 most (×0.2500)."


def test_one_checkpoint_has_no_growth():
    assert summary(known(steps=(7,))) == [
        "The norm of the model is 5.0000 at step 7, its one checkpoint.",
        "Of 2 layers, layer.1 has the largest norm (4.0000) and layer.0 the smallest (3.0000).",
    ]


def test_undefined_norms_are_told():
    text = summary(replaced(known(), "norm", None))[0]
    assert text.startswith("The norm of the model grew from 5.0000 to 8.4000")
    assert "over steps 0 to 100" in text
    assert text.endswith("It is not finite at 1 of 3.")


def test_values_that_are_not_finite_are_told():
    records = replaced(known(), "nonfinite", 1200)
    names = ["w.0", "w.1", "w\x1b.2", "w.3", "w.4"]
    values = np.zeros((3, 5))
    values[1:] = [0, 1, 2, 3, 4]
    block = Block("tensor", names, [0] * 5, [None] * 5, [0, 100, 200], {"nonfinite": values})
    tensors = Records.from_blocks("run", [block])
    both = Records(pa.concat_tables([records.table, tensors.table]).unify_dictionaries())
    assert summary(records)[-1] == (
        "Values are not finite at 1 of 3 checkpoints, first at step 200; at most 1,200 of them at once."
    )
    assert ", in w.1, w\\x1b.2, w.3 and 1 more; at most" in summary(both)[-1]


def test_records_without_norms_give_no_sentence(trace):
    assert summary(trace(layers=1, steps=2).where(level="role")) == []


# --- tables -----------------------------------------------------------------------------------------


def test_the_table_shows_first_and_last_and_what_lies_between():
    text = shown(print_trace, known())
    table = rows(text)
    assert text.startswith("somewhere: steps 0 to 200, 3 checkpoints")
    assert table["layer.0"] == "3.0000 9.0000 3.0000 0.1000 3.250 0.5000 0.99000 0.80000 0.1250 60.0%"
    assert table["layer.1"] == "4.0000 6.0000 1.5000 0.2000 1.500 0.2500 1-1.3e-05 0.75000 -0.0625 120.0%"
    assert table["model"] == "5.0000 10.800 2.1600 0.1500 3.600 0.4000 0.99712 0.85000 0.1000 65.0%"
    assert "The norm of the model grew" in text


def test_the_model_is_bold():
    console = Console(record=True, width=120, file=io.StringIO())
    print_trace(known(), console)
    bold = [line for line in console.export_text(styles=True).splitlines() if "\x1b[1m" in line]
    assert any("model" in line and "10.800" in line for line in bold)


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_lines_keep_to_the_width_of_the_terminal(trace, width):
    text = shown(print_trace, trace(layers=48, steps=3, stacks=("encoder", "decoder")), width=width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert sum(line.startswith(("encoder.", "decoder.")) for line in text.splitlines()) == 96
    assert ("Too narrow for: rms" in text) == (width < 110)
    if width >= 80:
        assert "…" not in text
        assert "alignment" in text.splitlines()[2]


def test_layers_come_in_the_order_of_their_numbers(trace):
    table = shown(print_trace, trace(layers=12, steps=2, stacks=("encoder", "decoder")))
    names = [line.split()[0] for line in table.splitlines() if line.startswith(("encoder.", "decoder."))]
    assert names == [f"{stack}.{i}" for stack in ("encoder", "decoder") for i in range(12)]


def test_a_single_step_and_a_single_layer(trace):
    assert rows(shown(print_trace, known(steps=(7,))))["model"] == "5.0000 0.1500 2.000"
    assert "layer.0" in rows(shown(print_trace, trace(layers=1, steps=3)))


def test_undefined_values_are_a_dash():
    assert rows(shown(print_trace, replaced(known(), "alignment", None)))["model"].split()[8] == "-"
    assert rows(shown(print_trace, replaced(known(), "norm", None)))["model"].startswith("5.0000 - - 0.1500")


def test_notes_and_problems_are_printed():
    said = {"notes": ["[b]one[/b]", "two"], "problems": ["bad \x1b[2J step"]}
    text = shown(partial(print_trace, **said), known())
    assert "note: [b]one[/b]\nnote: two\nproblem: bad \\x1b[2J step" in text
    assert text.startswith("trace: steps 0 to 200")


def test_records_of_something_else_are_refused(trace):
    with pytest.raises(InputError, match="no norm of a model"):
        print_trace(trace(layers=1, steps=2).where(level="role"), Console(file=io.StringIO()))


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("width", [80, 200])
def test_hostile_names_print_as_spelt(name, width):
    records = known(names=(f"{name}.0", f"{name}.1"))
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


def test_a_terminal_that_lacks_letters_gets_them_spelt_out():
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding="ascii", write_through=True), width=80)
    print_trace(known(), console, source="日本")
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
    assert ["scale", "scalar", "float32", "left", "out:", "a", "scalar"] in lines
    assert ["embed", "50×2", "float32", "embedding,", "left", "out:", "an", "embedding"] in lines
    assert text.rstrip().endswith("1 of 3 tensors are counted, with 200 of 301 parameters.")


def test_long_names_fold_and_stay_whole():
    name = "model.decoder.layers.11.self_attention.query_key_value.lora_A.default.weight"
    text = shown(print_parameters, [parameter(name, (4096, 4096), False, "left out by --exclude")], width=80)
    assert max(map(len, text.splitlines())) <= 80
    column = [line[3:43].split()[0] for line in text.splitlines()[2:] if line[3:4].strip()]
    assert name.startswith(column[0])
    assert "".join(column).startswith(name)
    assert "Too narrow for: dtype" in text


def test_no_tensor_at_all():
    assert "0 of 0 tensors are counted, with 0 of 0 parameters." in shown(print_parameters, [])


# --- two traces -------------------------------------------------------------------------------------


def test_compare_takes_the_last_common_step():
    a, b = known(), known(steps=(0, 100), scale=2.0)
    found = compare(a, b)
    assert [row.name for row in found.rows] == ["layer.0", "layer.1", "model"]
    assert (found.a.step, found.b.step, found.matched) == (100, 100, True)
    model = found.rows[-1]
    assert (model.a.norm, model.b.norm, model.norm_ratio) == (8.4, 16.8, 2.0)
    assert model.a.factor == pytest.approx(8.4 / 5)
    assert model.factor_ratio == pytest.approx(1.0)
    assert (model.a.cosine_first, model.b.alignment, model.a.total_share_steps) == (0.95, 0.3, 0.7)
    text = shown(print_compare, a, b)
    assert "Both at step 100, the last that they share." in text
    assert (
        rows(text)["model"]
        == "8.4000 16.800 2.0000 1.6800 1.6800 1.0000 0.95000 0.95000 0.3000 0.3000 70.0% 70.0%"
    )


def test_compare_without_a_common_step_takes_each_ones_last():
    a, b = known(), known(steps=(0, 150, 300))  # the beginning in common says nothing about growth
    found = compare(a, b)
    assert (found.a.step, found.b.step, found.matched) == (200, 300, False)
    assert "a at its last, 200; b at its last, 300" in shown(print_compare, a, b)
    one = known(steps=(5,))
    found = compare(one, one)
    assert (found.a.step, found.matched) == (5, True)


def test_compare_of_unlike_models_has_a_row_for_every_layer():
    a, b = known(), known(names=("layer.1", "layer.2"))
    table = {row.name: row for row in compare(a, b).rows}
    assert list(table) == ["layer.0", "layer.1", "layer.2", "model"]
    assert table["layer.0"].b.norm is None
    assert table["layer.2"].a.norm is None
    assert table["layer.1"].norm_ratio == 9 / 6
    assert rows(shown(print_compare, a, b))["layer.0"].startswith("9.0000 - - 3.0000 - -")


def test_compare_is_plain_json():
    import json

    text = json.dumps(compare(known(), replaced(known(), "norm", None)).to_json(), allow_nan=False)
    assert json.loads(text)["rows"][-1]["b"]["norm"] is None


def test_compare_of_what_has_no_norms_is_refused(trace):
    with pytest.raises(InputError, match="no norm of a model"):
        compare(known(), trace(layers=1, steps=2).where(level="role"))


def test_a_comparison_is_saved_and_loaded(tmp_path):
    for name, records in (("a", known()), ("b", known(scale=2.0))):
        StoredResult(records, {"source": "somewhere"}).write(tmp_path / name)
    found = compare(tmp_path / "a", str(tmp_path / "b"))
    again = load(found.save(tmp_path / "compared"))
    assert isinstance(again, Comparison)
    assert (again.a, again.b, again.rows) == (found.a, found.b, found.rows)
    assert str(again) == str(found)
    norms = found.records.where(quantity="norm", level="model").table["value"].to_pylist()
    assert norms == [found.rows[-1].a.norm, found.rows[-1].b.norm]


def test_compare_at_80_columns():
    text = shown(print_compare, known(), known(), width=80)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "Too narrow for: factor b/a" in text


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
        (cosine, 1 - 3.2e-7, "1-3.2e-07"),
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
