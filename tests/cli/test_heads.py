"""normgrowth heads as a person meets it."""

import json

import command_line
import numpy as np
import pytest
import torch
from tiny_configs import tiny_config

from normgrowth.errors import InputError
from normgrowth.heads import heads
from normgrowth.network.heads.result import Heads
from normgrowth.network.models import encoder_folder as stored
from normgrowth.network.models.encoders import EncoderConfig, LanguageModel
from normgrowth.network.models.load import load_model
from normgrowth.paper.published.figure3 import figure3
from normgrowth.paper.published.tables import published
from normgrowth.records import Records
from normgrowth.results import load

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = ["<eos>", "<unk>", "the", "cat", "sat", "on", "mat", "a", "dog"]


def run(capsys, *arguments):
    return command_line.run(capsys, "heads", *arguments)


@pytest.fixture
def models(tmp_path, monkeypatch):
    """Two of our own, with a true and with a leaking mask, a BERT, and a text."""
    for name, leaking in (("true", False), ("leaking", True)):
        torch.manual_seed(0)
        shape = {"width": 16, "layers": 2, "heads": 4, "feedforward": 16}
        config = EncoderConfig(vocabulary=len(WORDS), max_length=83, leaking=leaking, **shape)
        stored.write(tmp_path / name, LanguageModel(config), WORDS)
    tiny_config("bert").save_pretrained(tmp_path / "bert")
    (tmp_path / "text.txt").write_text("the cat sat\n\na dog\nthe dog and the cat sat on the mat\n")
    (tmp_path / "empty.txt").write_text("\n\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_table_records_and_figures(models, capsys):
    options = ["--text", "text.txt", "--window", 83, "--published", "--c", 1000, "-o", "out"]
    code, out, err = run(capsys, "true", "leaking", *options)
    assert (code, err) == (0, "")
    assert all(part in out for part in ("8 heads", "3 sentences", "17 tokens"))
    records = Records.read("out")
    assert records.distinct("run") == ["true", "leaking"]
    for scale, quantities in ((None, {"hard_scale"}), (1000, set())):
        found = set(records.where(scale=scale).distinct("quantity"))
        assert {"attended", "attended_window", *quantities} <= found
    here = heads(load_model("leaking"), "text.txt", window=83, c=(1000,))
    np.testing.assert_array_equal(
        records.where(run="leaking").table["value"].to_numpy(), here.records.table["value"].to_numpy()
    )
    result = load("out")
    assert isinstance(result, Heads)
    assert result.models["leaking"].kinds == here.models["leaking"].kinds
    files = {path.name for path in (models / "out" / "figures").iterdir()}
    assert files == {
        f"{n}.{form}" for n in ("heads_atlas", "heads_positions") for form in ("png", "svg", "pdf")
    }


def test_patterns_of_a_sentence(models, capsys):
    show = ["--show", "the zebra sat on a mat", "--text", "text.txt"]
    code, out, err = run(capsys, "true", *show, "--head", "layer.1.head.3", "-o", "out", "--json")
    found = json.loads(out)
    assert code == 0
    assert "heads_patterns.png" in err
    patterns = found["models"]["true"]["patterns"]
    assert patterns["tokens"] == ["<eos>", "the", "<unk>", "sat", "on", "a", "mat"]
    assert list(patterns["heads"]) == ["layer.1.head.3"]
    for weights in patterns["heads"]["layer.1.head.3"].values():
        assert np.array(weights).sum(1) == pytest.approx(1, abs=1e-3)
    (note,) = found["notes"]
    assert "zebra" in note
    code, out, _ = run(capsys, "bert", *show, "-o", "more", "--json")
    assert len(json.loads(out)["models"]["bert"]["patterns"]["heads"]) == 4


def test_soft_heads_alone(models, capsys):
    code, out, _ = run(capsys, "bert", "--text", "text.txt", "--no-exact", "--json")
    found = json.loads(out)
    assert code == 0
    assert not {row["quantity"] for row in found["records"]} & {"attended", "saturated_distance"}
    assert found["models"]["bert"]["kinds"]
    assert not found["models"]["bert"]["saturated_kinds"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere/at/all"], "no such folder or file"),
        (["true", "true"], "must be given once"),
        (["true", "--window", "83", "--published"], "add -o DIR"),
        (["true", "--published", "-o", "out"], "--window 83"),
        (["true", "--window", "50", "--published", "-o", "out"], "no published numbers for a window of 50"),
        (["true", "--show", "the cat"], "add -o DIR"),
        (["true", "--head", "layer.0.head.0"], "add --show SENTENCE"),
        (["true", "--show", " ", "--text", "text.txt", "-o", "out"], "empty sentence"),
        (
            ["true", "--show", "a", "--head", "x", "--text", "text.txt", "-o", "out"],
            "no head x: there are layer.0",
        ),
        (["true", "--text", "missing.txt"], "true: missing.txt: No such file"),
        (["true", "--text", "empty.txt"], "true: empty.txt: contains no sentence"),
        (["true", "--text", "text.txt", "--window", "84"], "the model has only 83 positions"),
        (["true", "--text", "text.txt", "--c", "0"], "finite and above 0"),
        (["true", "--text", "text.txt", "--tolerance", "2"], "between 0 and 0.5"),
    ],
)
def test_bad_input_is_one_line(models, capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (models / "out").exists()


def test_long_sentences_are_cut_and_that_is_said(models, capsys):
    (models / "long.txt").write_text(" ".join(["cat"] * 100) + "\n")
    code, out, _ = run(capsys, "true", "--text", "long.txt")
    assert code == 0
    assert all(part in out for part in ("1 of 1 sentences", "83 tokens"))


def test_what_was_published():
    """144 heads for each model; the largest values are those of a mask that leaks."""
    records = figure3().records
    assert records.distinct("run") == [
        "penn, paper-pre-norm",
        "penn, post-norm",
        "wikitext-2, paper-pre-norm",
        "wikitext-2, post-norm",
    ]
    table = published("attention_positions")
    for run_ in records.distinct("run"):
        values = records.where(run=run_).table["value"].to_numpy()
        assert len(values) == 144
        data, encoder = run_.split(", ")
        largest = table["positions_to"][(table["data"] == data) & (table["encoder"] == encoder)].max()
        assert values.max() < largest
        window = {"penn": 83, "wikitext-2": 700}[data]
        assert ((window - 1) * window / 2 + 1) / window <= largest + 1e-3 < (window + 1) / 2
    assert list(figure3(700).models) == ["wikitext-2, paper-pre-norm", "wikitext-2, post-norm"]
    assert table["heads"].sum() == 4 * 144
    assert table.source.startswith("published: ")
    with pytest.raises(InputError, match="window of 84"):
        figure3(84)
