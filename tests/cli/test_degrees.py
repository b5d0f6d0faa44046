"""normgrowth degrees as a person meets it."""

import io
import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from command_line import run
from rich.console import Console
from tiny_configs import tiny_config
from torch import nn

import normgrowth
from normgrowth.cli.main import main
from normgrowth.errors import FolderMismatch, InputError
from normgrowth.report.terminal.degrees import show
from normgrowth.results import load

pytest.importorskip("transformers")


@pytest.fixture
def folder(tmp_path):
    def make(name):
        tiny_config(name).save_pretrained(tmp_path / name)
        return tmp_path / name

    return make


def test_a_table_with_blocks_that_are_alike_as_one(folder, capsys):
    code, out, err = run(capsys, "degrees", folder("bert"))
    assert (code, err) == (0, "")
    assert "random, seed 0" in out
    assert "got noise" in out
    assert "words numbered in order of appearance" in " ".join(out.split())
    (row,) = [
        line for line in out.splitlines() if line.startswith("encoder.layer.0-2.attention.output.dense ")
    ]
    assert row.split()[1:] == ["Linear", "2", "3"]
    assert "19 of 55" in out
    code, out, _ = run(
        capsys, "degrees", folder("bert"), "--all", "--select", r"layer\.1\.output", "--depth", 4
    )
    rows = [line.split()[0] for line in out.splitlines() if line.startswith("encoder")]
    assert (code, rows) == (0, ["encoder.layer.1.output"])


def test_a_shared_layer_has_the_degree_of_each_run(tmp_path, capsys):
    """ALBERT runs one layer again and again: table, sentence and JSON say which run they mean, and agree."""
    from transformers import AlbertConfig

    small = dict(
        hidden_size=32, embedding_size=16, num_attention_heads=4, intermediate_size=64, vocab_size=99
    )
    AlbertConfig(**small, num_hidden_layers=4).save_pretrained(tmp_path)
    _, out, _ = run(capsys, "degrees", tmp_path, "--json")
    facts = json.loads(out)
    module = "encoder.albert_layer_groups.0.albert_layers.0.attention"
    dense = next(row for row in facts["modules"] if row["module"] == f"{module}.dense")
    assert (dense["degree"], dense["by_run"]) == ("3", ["4", "3", "3", "3"])
    met = [
        row for row in facts["dropped_terms"] if row["module"] == module and row["kind"] in ("stream", "same")
    ]
    assert [(row["kept"], row["runs"]) for row in met] == [("4", [0]), ("3", [1, 2, 3])]
    _, out, _ = run(capsys, "degrees", tmp_path, "--explain")
    said = " ".join(out.split())
    assert "3 (first run 4)" in said
    assert said.count(f"{module} (") == 2  # the first run, and the three others


def test_an_error_of_ours_is_no_error_of_the_user(folder, capsys, monkeypatch):
    """What runs by itself and fails in the limit is not called bad input."""
    from normgrowth.limit import degree_pass

    def broken(*_, **__):
        raise TypeError("a fault in normgrowth")

    monkeypatch.setattr(degree_pass, "measure_degrees", broken)
    with pytest.raises(TypeError, match="a fault in normgrowth"):
        main(["degrees", str(folder("bert"))])


def test_explain_says_why(folder, capsys):
    code, out, _ = run(capsys, "degrees", folder("llama"), "--explain", "--select", "mlp$")
    assert code == 0
    said = " ".join(out.split())
    assert "layers.1-2: self_attn (degree 3) vanishes compared with the residual stream (degree 5)" in said
    assert "all of layers.1-2.self_attn" in said
    code, out, _ = run(capsys, "degrees", folder("bert"), "--explain", "--as-initialized", "--attn", "eager")
    said = " ".join(out.split())
    assert code == 0
    assert "Exactly zero, so without a degree (26 of 55 parameters)" in said
    assert "got noise" not in said


def test_json_is_json_and_nothing_else(folder, capsys):
    code, out, err = run(capsys, "degrees", folder("gpt2"), "--json", "--orders", 1, "--seed", 4)
    content = json.loads(out)
    assert (code, err) == (0, "")
    assert content["outputs"] == {"last_hidden_state": "1"}
    assert {row["module"]: row["degree"] for row in content["modules"]}["h.1"] == "3"
    assert any(met["kind"] == "stream" and met["kept_from"] == "h.0.attn" for met in content["dropped_terms"])
    assert content["vanished"]["h.2.mlp.c_proj.bias"] == "dropped"
    assert content["orders"] == 1
    assert content["explanation"]
    assert any("seed 4" in note for note in content["notes"])


def test_a_folder_and_a_name(folder, tmp_path, capsys):
    code, out, _ = run(capsys, "degrees", folder("bert"), "-o", tmp_path / "out")
    result = load(tmp_path / "out")
    assert (code, result.kind) == (0, "degrees")
    assert str(result).splitlines()[0] == out.splitlines()[0]
    again = normgrowth.degrees(folder("bert"))
    assert (again.outputs, again.vanished, again.explanation) == (
        result.outputs,
        result.vanished,
        result.explanation,
    )
    with pytest.raises(FolderMismatch):
        normgrowth.degrees(folder("bert"), orders=2, out=tmp_path / "out")


def test_results_are_read_without_torch(folder, tmp_path, capsys):
    run(capsys, "degrees", folder("bert"), "-o", tmp_path / "out")
    code = f"import sys, normgrowth as ng; str(ng.load({str(tmp_path / 'out')!r})); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["t5", "olmo2"])
def test_other_architectures(name, folder, capsys):
    code, out, err = run(capsys, "degrees", folder(name), "--explain", "--depth", 1)
    assert (code, err) == (0, "")
    assert "last_hidden_state has degree 1" in out


def test_parameters_held_fixed(folder, capsys):
    bert = folder("bert")
    _, out, _ = run(capsys, "degrees", bert, "--json")
    all_grow = json.loads(out)
    code, out, err = run(capsys, "degrees", bert, "--json", "--fixed", "*.LayerNorm.*")
    held = json.loads(out)
    assert "held fixed: *.LayerNorm.*; all other parameters grow" in held["notes"]
    assert (code, err) == (0, "")
    assert (all_grow["outputs"]["last_hidden_state"], held["outputs"]["last_hidden_state"]) == ("1", "0")
    assert len(held["parameters"]) == len(all_grow["parameters"]) - 14  # a gain and a bias of seven norms


def test_bad_input_is_one_line_and_exit_code_2(folder, tmp_path, capsys):
    bert = folder("bert")
    (tmp_path / "empty").write_text("")
    cases = [
        ((tmp_path / "gone" / "x",), "no such folder or file"),
        ((bert, "--select", "("), "--select (: invalid regular expression"),
        ((bert, "--text", tmp_path / "none"), "none: No such file"),
        ((bert, "--text", tmp_path / "empty"), "empty: contains no sentence"),
        ((bert, "--fixed", "*.A_log"), "fixed: no parameter matches '*.A_log'"),
    ]
    for arguments, said in cases:
        code, out, err = run(capsys, "degrees", *arguments)
        assert (code, out) == (2, ""), arguments
        assert said in err
        assert err.count("\n") == 1
    assert run(capsys, "degrees", bert, "--depth", 0)[0] == 2
    assert run(capsys, "degrees", bert, "--attn", "flash")[0] == 2


def test_an_operation_without_a_rule_is_one_line(folder, capsys, monkeypatch):
    from normgrowth.limit import RULES

    monkeypatch.delitem(RULES, "tanh")
    code, out, err = run(capsys, "degrees", folder("bert"))
    assert (code, out) == (2, "")
    assert "tanh" in err
    assert "in module pooler.activation" in err
    assert err.count("\n") == 1


class Hostile(nn.Module):
    """Its parts are called by markup, an escape sequence, and a mark that turns the line around."""

    NAMES = ("[red]x[/red]", "\x1b]0;owned\x07", "a\u202eb\nc")

    def __init__(self):
        super().__init__()
        for name in self.NAMES:
            self.add_module(name, nn.Linear(4, 4))

    def forward(self, x):
        for part in self.children():
            x = x + part(x)
        return x


@pytest.mark.parametrize("every", [False, True])
def test_hostile_names_are_shown_and_do_nothing(every):
    from normgrowth.degrees import degrees

    result = replace(degrees(Hostile(), torch.randn(2, 4)), source="\x1b[2J", notes=("\x07",))
    screen = io.StringIO()
    console = Console(file=screen, width=200, force_terminal=False)
    show(result, console, explain=True, every=every)
    out = screen.getvalue()
    assert "[red]x[/red]" in out
    assert r"\x1b]0;owned\x07" in out
    assert r"a\u202eb\nc" in out
    assert not set("\x1b\x07\u202e") & set(out)


@pytest.mark.slow
def test_the_trained_minilm(capsys):
    code, out, err = run(capsys, "degrees", "minilm", "--explain", "--depth", 3)
    if "pip install" in err:
        pytest.skip(err)
    said = " ".join(out.split())
    assert code == 0
    assert "encoder.layer.0-5.attention.output (every block): attention.output.dense (degree 3)" in said
    assert "the bias of every Linear except pooler.dense" in said


def test_some_of_the_modules():
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Linear(3, 2))
    found = normgrowth.degrees(model, torch.ones(1, 3))
    assert {row.module for row in found.modules} == {"", "0", "0.0", "0.1", "1"}
    assert {row.module for row in found.select(depth=1).modules} == {"", "0", "1"}
    assert [row["module"] for row in found.select(r"^0\.").to_json()["modules"]] == ["0.0", "0.1"]
    assert {row.module for row in found.select("0", depth=1).modules} == {"0"}
    with pytest.raises(InputError, match="invalid regular expression"):
        found.select("(")
