"""`normgrowth lint` as a person meets it: a table, JSON, exit codes, one line for bad input."""

import io
import json

import command_line
import pytest
import torch
from hub_server import HubServer
from rich.console import Console
from synthetic_series import save_file, walk, write_series

from normgrowth.lint.result import Findings
from normgrowth.report.terminal.findings import show
from normgrowth.trace.sampling.finding import KINDS, Finding

MATRIX = "transformer.h.0.attn.c_proj.weight"


def run(capsys, *arguments):
    return command_line.run(capsys, "lint", *arguments)


@pytest.fixture
def honest(tmp_path):
    return write_series(tmp_path / "honest", walk(6))


@pytest.fixture
def lying(tmp_path):
    """A stale tensor, a partial file, and final weights in an earlier step."""
    states = walk(8)
    states[5][MATRIX] = states[4][MATRIX]
    states[2] = states[7]
    folder = write_series(tmp_path / "lying", states)
    path = folder / "step_300.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    return folder


def test_nothing_found(honest, capsys):
    code, out, err = run(capsys, honest, "--strict", "--json")
    assert code == 0
    assert err == ""
    assert json.loads(out)["findings"] == []


def test_a_table_names_step_tensor_and_reason(lying, capsys, monkeypatch):
    monkeypatch.chdir(lying.parent)  # a long path would be folded
    code, out, err = run(capsys, lying.name, "--wide")
    assert code == 0
    assert err == ""
    lines = [line.split() for line in out.splitlines()[:-1]]
    starts = [line[:2] for line in lines if line and line[0].isdigit() and line[1] in KINDS]
    assert starts == [["200", "identical"], ["300", "partial"], ["500", "stale"]]
    assert MATRIX in out
    assert "step_300.safetensors" in out
    assert "step 700" in out
    assert "3 faults" in out


def test_strict_is_an_exit_code(lying, capsys):
    assert run(capsys, lying, "--strict")[0] == 1
    assert run(capsys, lying, "--strict", "--json")[0] == 1


def test_remarks_are_not_faults(tmp_path, capsys):
    states = walk(5)
    for state in states:
        state[MATRIX] = states[0][MATRIX]
    code, out, _ = run(capsys, write_series(tmp_path / "frozen", states), "--strict")
    assert code == 0
    assert "remark" in out
    assert "1 remark" in out


def test_json_is_json_and_nothing_else(lying, capsys):
    code, out, _ = run(capsys, lying, "--json")
    assert code == 0
    content = json.loads(out)
    assert content["source"] == str(lying)
    assert content["steps"] == [0, 100, 200, 400, 500, 600, 700]
    stale = content["findings"][-1]
    assert set(stale) == {"step", "name", "kind", "why", "label", "severity"}
    assert (stale["step"], stale["name"], stale["kind"]) == (500, MATRIX, "stale")
    assert stale["label"].endswith("step_500.safetensors")


def test_every_parameter_is_looked_at_unless_said_otherwise(tmp_path, capsys):
    states = walk(6)
    states[3]["lm_head.weight"] = states[2]["lm_head.weight"]
    folder = write_series(tmp_path / "head", states)
    assert "lm_head.weight" in run(capsys, folder)[1]
    assert "Nothing found." in run(capsys, folder, "--include", "blocks")[1]
    assert "Nothing found." in run(capsys, folder, "--exclude", "head")[1]


@pytest.mark.parametrize("arguments", [["nowhere"], ["--include", "some", "."], []])
def test_what_cannot_be_used_has_exit_code_2(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err


def test_nothing_readable_is_one_line(tmp_path, capsys):
    (tmp_path / "step_1.safetensors").write_bytes(b"{}")
    code, _, err = run(capsys, tmp_path)
    assert code == 2
    assert err.count("\n") == 1
    assert "step_1.safetensors" in err


def test_nothing_that_counts_says_which_option_makes_some_count(tmp_path, capsys):
    for step in (0, 10):
        save_file({"embed.weight": torch.ones(4, 4)}, tmp_path / f"step_{step}.safetensors")
    code, _, err = run(capsys, tmp_path, "--include", "blocks")
    assert code == 2
    assert err.count("\n") == 1
    assert "--include all" in err
    code, _, err = run(capsys, tmp_path, "--select", "nothing")
    assert "no --select (" not in err  # the blocks, which would be none
    assert "select nothing" in err


def test_revisions_of_a_hub_that_hold_the_final_weights(tmp_path, capsys):
    states = walk(6)
    folders = {}
    for i, state in enumerate([states[5], states[1], states[2], states[5], states[4], states[5]]):
        folders[f"step{i}"] = tmp_path / str(i)
        folders[f"step{i}"].mkdir()
        save_file(state, tmp_path / str(i) / "model.safetensors")
    with HubServer({"org/tiny": folders}) as server:
        code, out, _ = run(capsys, "hf://org/tiny@step*", "--endpoint", server.endpoint, "--json", "--strict")
    assert code == 1
    assert [(f["step"], f["kind"]) for f in json.loads(out)["findings"]] == [
        (0, "identical"),
        (3, "identical"),
    ]


def shown(findings, width=120):
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    show(Findings(source="series", steps=(0, 100), findings=tuple(findings)), console)
    return console.file.getvalue()


def finding(**fields):
    usual = dict(step=100, name="", kind="stale", why="stood still", label="file", severity="fault")
    return Finding(**{**usual, **fields})


def test_what_is_alike_is_one_row():
    text = shown([finding(step=step, kind="identical", why="a copy") for step in range(100, 2000, 100)])
    assert "100, 200, 300 and 16 more" in text
    assert text.count("a copy") == 1
    text = shown([finding(name=f"h.{i}.weight") for i in range(12)])
    assert text.count("stood still") == 1
    assert "and 9 more" in text


def test_names_cannot_act_on_the_terminal():
    text = shown([finding(name="[red]x[/red]\x1b]0;title\x07", why="\x1b[2J")])
    assert "\x1b" not in text
    assert "[red]x[/red]" in text


def test_a_step_that_is_not_known():
    assert "?" in shown([finding(step=None, kind="partial", label="checkpoint-x")])
