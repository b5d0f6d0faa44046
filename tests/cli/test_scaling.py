"""normgrowth scaling as a person meets it."""

import io
import json

import numpy as np
import pytest
from command_line import run
from rich.console import Console

from normgrowth.cli.main import main
from normgrowth.errors import InputError, SchemaError
from normgrowth.network.scaling.result import Scaling
from normgrowth.paper.published.figure4 import figure4
from normgrowth.records import Records
from normgrowth.report.renderers import draw
from normgrowth.report.sentences.scaling import sentences
from normgrowth.report.terminal.scaling import show
from normgrowth.results import load
from normgrowth.stored_result import StoredResult

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = ("scaling", "paper", "--layers", 1, "--width", 12, "--seeds", 2, "--scales", 9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("scaling")
    assert main([*map(str, SMALL), "--published", "-o", str(where)]) == 0
    return where


def test_the_paper_with_the_published_curves_kept_apart(capsys):
    code, out, err = run(capsys, *SMALL, "--published")
    assert (code, err) == (0, "")
    rows = [line for line in out.splitlines() if line.startswith(("paper_pre", "usual_pre", "post_n"))]
    assert sum("biases  " in row for row in rows) == 6
    assert "published: pre-norm, no-bias      0.72730" in out


def test_figures_and_records_keep_them_apart_too(folder):
    for form, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        assert (folder / "figures" / f"scaling_curves.{form}").read_bytes().startswith(start)
    svg = (folder / "figures" / "scaling_curves.svg").read_text()
    assert "published as with biases" in svg
    assert "measured, with biases" in svg
    result = load(folder)
    assert isinstance(result, Scaling)
    assert len(result.networks) == 12
    assert not any("published" in network.run for network in result.networks)


def test_json_has_everything(capsys):
    code, out, _ = run(capsys, *SMALL, "--json", "--published")
    content = json.loads(out)
    assert code == 0
    assert {row["quantity"] for row in content["records"]} == {
        "cosine_saturated",
        "cosine_flattened",
        "scaling_error",
        "error_power",
        "scaled_norm",
    }
    assert len(content["published"]["records"]) == 80
    assert len(content["networks"]) == 12
    assert content["kind"] == "scaling"


def test_a_model_shows_its_layers(capsys, tmp_path):
    pytest.importorskip("transformers")
    from tiny_configs import BLOCKS, tiny_config

    tiny_config("bert").save_pretrained(tmp_path)
    code, out, err = run(capsys, "scaling", tmp_path, "--seeds", 2, "--scales", 9, "-o", tmp_path / "out")
    assert (code, err) == (0, "")
    assert "words numbered in order of appearance" in " ".join(out.split())
    assert sum(line.startswith("layer.") for line in out.splitlines()) == BLOCKS
    assert "last state" in out
    assert Records.read(tmp_path / "out").distinct("seed") == [0, 1]
    assert (tmp_path / "out" / "figures" / "scaling_curves.png").is_file()


def test_spread_and_published_are_read_from_records(folder):
    result, published = load(folder), figure4()
    assert isinstance(result, Scaling)
    own = result.curves
    assert len(own) == 6
    rows = result.matrix("cosine_saturated", "model", run="post_norm, biases", seed=1).values[:, 0]
    assert np.array_equal(own[-1].values["cosine_saturated"][1], rows)
    assert np.isnan(own[0].at("cosine_saturated", 1e9)).all()
    (said,) = [
        s for s in sentences(result, published) if s.startswith("Mean distance to the published curves")
    ]
    theirs = published.curves[-1]
    ours = np.mean([own[-1].at("cosine_flattened", c) for c in theirs.scales], axis=1)
    apart = np.abs(ours - theirs.values["cosine_flattened"][0]).mean()
    assert f"post_norm, biases {apart:.3f} (" in said
    narrow = Console(file=io.StringIO(), width=60)
    show(result, narrow, published)
    assert "Hidden columns" in narrow.file.getvalue()


def test_the_same_records_give_the_same_bytes(folder, tmp_path):
    result, published = load(folder), figure4()
    assert isinstance(result, Scaling)
    (path,) = draw(result, tmp_path, published=published, formats=["svg"])
    assert path.read_bytes() == (folder / "figures" / "scaling_curves.svg").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("minilm", "--published"), "is for `normgrowth scaling paper`"),
        (("minilm", "--width", 8), "are only for scaling('paper')"),
        (("paper", "--text", "x.txt"), "texts cannot be used with 'paper'"),
        (("paper", "--largest", 1), "--largest must be > 1"),
        (("paper", "--scales", 1), "--scales >= 2"),
        (("no/such/folder/here",), "no such folder or file"),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, message):
    code, out, err = run(capsys, "scaling", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_other_records_are_not_curves(tmp_path):
    with pytest.raises(SchemaError, match="networks"):
        Scaling.from_stored(StoredResult(figure4().records, {"networks": {"x": {}}}))
    with pytest.raises(InputError, match="'gif'"):
        draw(figure4(), tmp_path, formats=["gif"])
