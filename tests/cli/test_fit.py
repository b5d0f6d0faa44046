"""normgrowth fit: csv files in any shape, traces, the published series; tables, JSON, one line for bad input."""

import json
from io import StringIO

import command_line
import numpy as np
import pytest
from rich.console import Console
from synthetic_series import walk, write_series

from normgrowth.cli.main import main
from normgrowth.fit import fit
from normgrowth.report.sentences.fits import verdict
from normgrowth.report.terminal.fits import show
from normgrowth.results import load

STEPS = np.arange(0, 4000, 100)


def run(capsys, *arguments):
    return command_line.run(capsys, "fit", *arguments)


def csv(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def norms(tmp_path):
    noise = np.random.default_rng(0).normal(size=len(STEPS))
    rows = "".join(
        f"{t},{y:.4f}\n" for t, y in zip(STEPS, 5 * np.sqrt(STEPS) + 30 + 0.2 * noise, strict=True)
    )
    return csv(tmp_path / "norms.csv", "step,norm\n" + rows)


def test_the_published_norms(capsys):
    code, out, err = run(capsys, "published:t5_norm", "--wide")
    assert (code, err) == (0, "")
    fits = fit("published:t5_norm").only
    assert fits.best_law == "sqrt2"
    assert fits["sqrt"].r2 == pytest.approx(0.9986, abs=5e-5)
    assert fits["sqrt"].delta_effective == pytest.approx(4.2, abs=0.05)
    assert fits.effective_points == pytest.approx(1.361, abs=0.001)
    assert fits.weighed_points == 4.0
    assert fits.undecided == ("sqrt2", "power", "power2")
    assert fits["power"].params["p"] == pytest.approx(0.5587, abs=5e-5)
    assert fits["relax"].interval("tau")[1] == np.inf
    for value in ("0.9986", "4.2", "0.5587 [0.52", "∞"):
        assert value in out


def test_by_layer_there_is_a_row_for_each(capsys):
    code, out, _ = run(capsys, "published:t5_norm_by_layer", "--bootstrap", 0, "--laws", "sqrt,sqrt2,power")
    assert code == 0
    assert all(f"encoder.{number} " in out for number in range(12))
    code, out, _ = run(capsys, "published:t5_norm_by_layer", "--bootstrap", 0, "--full", "--laws", "sqrt,log")
    assert out.count("a·√t + b") >= 12


def test_a_csv(norms, capsys):
    code, out, err = run(capsys, norms, "--laws", "sqrt,linear,log")
    assert (code, err) == (0, "")
    assert fit(norms, laws=["sqrt", "linear", "log"], bootstrap=0).best.law == "sqrt"
    assert "power" not in out


def test_json_is_json_and_nothing_else(norms, capsys):
    code, out, _ = run(capsys, norms, "--json", "--seed", 3)
    assert code == 0
    content = json.loads(out)
    assert content["kind"] == "fits"
    facts = content["series"][""]
    assert facts["best_law"] == "sqrt"
    assert facts["steps"] == STEPS.tolist()
    laws = facts["laws"]
    direct = fit(*np.loadtxt(norms, delimiter=",", skiprows=1).T, seed=3)
    assert laws["power"]["params"] == direct["power"].params
    assert laws["power"]["intervals"]["p"] == list(direct["power"].interval("p"))
    assert laws["relax"]["intervals"]["tau"][1] is None  # open: JSON has no infinity
    again = json.loads(run(capsys, norms, "--json", "--seed", 3)[1])
    assert again["series"] == content["series"]
    assert again["records"] == content["records"]


def test_an_output_folder_has_the_result_and_its_figures(norms, tmp_path, capsys):
    out = tmp_path / "fits"
    code, printed, _ = run(capsys, norms, "--bootstrap", 0, "-o", out)
    assert code == 0
    assert str(out / "figures" / "fits_laws.png") in printed
    assert {path.name for path in (out / "figures").iterdir()} == {
        f"{name}.{form}" for name in ("fits_laws", "fits_residuals") for form in ("png", "svg", "pdf")
    }
    assert load(out).best.law == "sqrt"
    assert run(capsys, norms, "--bootstrap", 0, "-o", out)[0] == 0  # again


def test_part_of_a_series(norms, capsys):
    facts = json.loads(
        run(capsys, norms, "--json", "--from-step", 1000, "--to-step", 2000, "--laws", "sqrt")[1]
    )
    assert facts["series"][""]["steps"] == list(range(1000, 2001, 100))


def test_columns_in_any_order_and_dress(tmp_path, capsys):
    rows = [
        f"{y:.3f};{t};{layer};x" for layer in (1, 2) for t, y in zip(STEPS, layer + STEPS**0.5, strict=True)
    ]
    path = csv(tmp_path / "a.csv", "\ufeffNorm;Step; layer;other\n" + "\n".join(rows) + "\n\n;5;1;x\n")
    code, out, _ = run(capsys, path, "--json", "--bootstrap", 0)
    series = json.loads(out)["series"]
    assert code == 0
    assert list(series) == ["layer 1", "layer 2"]
    assert len(series["layer 1"]["notes"]) == 1
    assert len(series["layer 1"]["steps"]) == len(STEPS)


def test_lines_that_are_empty_or_broken_inside_a_cell(tmp_path, capsys):
    path = csv(tmp_path / "a.csv", '\n\nstep,norm,note\n0,1,"two\nlines"\n\n1,2,a\fb\n2,2.4,\n3,many,\n')
    assert all(part in run(capsys, path)[2] for part in ("line 9", "'many'"))
    csv(path, path.read_text().replace("many", "3"))
    code, out, _ = run(capsys, path, "--json", "--bootstrap", 0)
    assert code == 0
    assert len(json.loads(out)["series"][""]["steps"]) == 4


def test_a_trace_by_model_layer_and_role(tmp_path, capsys):
    source = write_series(tmp_path / "series", walk(8))
    assert main(["trace", str(source), "-o", str(tmp_path / "trace")]) == 0
    capsys.readouterr()
    for level, name in (("model", "model"), ("layer", "layer.1"), ("role", "norm"), ("tensor", "h.1")):
        code, out, _ = run(capsys, tmp_path / "trace", "--level", level, "--json", "--bootstrap", 0)
        assert code == 0
        assert any(name in key for key in json.loads(out)["series"])
    code, out, _ = run(capsys, tmp_path / "trace", "--level", "layer")
    assert code == 0
    assert "layer.0" in out
    assert run(capsys, tmp_path / "trace" / "records.parquet")[0] == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no column 'step'"),
        ("step,cosine\n1,2\n", "no column 'norm'"),
        ("step,norm\n", "no rows"),
        ("step,norm\n1,2\n2,many\n", "line 3: 'many' is not a number"),
        ("step,norm\n1,2\n2\n", "line 3 has 1 cells"),
        ("step,norm\n1,2\n", "no law can be fitted"),
        (f"step,norm\n1,{'2' * 200_000}\n", "line 2: field larger than field limit"),
        ("step,norm\n-1,2\n1,2\n3,3\n", "got -1"),
    ],
)
def test_a_bad_csv_gets_one_line(tmp_path, capsys, text, said):
    code, out, err = run(capsys, csv(tmp_path / "bad.csv", text))
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_other_bad_input_gets_one_line(norms, tmp_path, capsys):
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00step")
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, said in [
        ([tmp_path / "none.csv"], "no such file"),
        ([binary], "not a text file"),
        ([empty], "no normgrowth result here"),
        ([norms, "--level", "layer"], "level applies only to traces"),
        ([norms, "--laws", "cubic"], "'cubic'"),
        ([norms, "--seed", "-1"], "seed must be >= 0, got -1"),
        (["published:bert"], "unknown published table 'bert'"),
        (["published:t5_direction"], "has no norm by step"),
    ]:
        code, out, err = run(capsys, *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert said in err


def test_few_points_are_not_compared(tmp_path, capsys):
    code, out, _ = run(capsys, csv(tmp_path / "few.csv", "step,norm\n0,1\n1,2\n2,2.4\n"))
    assert code == 0
    few = fit([0, 1, 2], [1, 2, 2.4], bootstrap=0).only
    assert (few.best_law, few.points, few.points_needed) == (None, 3, 11)
    assert not few["power"].fitted
    assert out.count("not fitted") == sum(not law.fitted for law in few.values())


def test_a_narrow_terminal_says_what_it_left_out(capsys):
    fits = fit(STEPS, np.sqrt(100 + STEPS), bootstrap=0)
    buffer = StringIO()
    show(fits, Console(file=buffer, width=70))
    assert max(map(len, buffer.getvalue().splitlines())) <= 70
    assert "Hidden columns" in buffer.getvalue()


def test_verdicts_are_said_for_every_kind_of_series():
    noise = 0.1 * np.random.default_rng(0).normal(size=len(STEPS))
    for curve in (7 + 0 * STEPS, 9 - STEPS / 1000, np.exp(STEPS / 500), np.sqrt(STEPS)):
        for series in (curve, np.abs(curve + noise)):
            sentences = verdict(fit(STEPS, series, bootstrap=0).only)
            assert sentences
            assert all(text.endswith(".") and "nan" not in text for text in sentences)
    alone = verdict(fit(STEPS, np.sqrt(STEPS) + noise + 1, laws="sqrt", bootstrap=0).only)
    assert alone[0].startswith("The paper's law")
