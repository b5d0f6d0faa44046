"""Commands that write into a folder: another request's result is refused, and a file of somebody else is kept."""

import json
import shutil

import pytest
from own_folders import KINDS, TRAIN, done, make_sweep, make_trace, make_train, run
from tiny_configs import tiny_config

from normgrowth import InputError
from normgrowth.engine import Threads
from normgrowth.errors import FolderMismatch
from normgrowth.lab.cells.axis import Axis
from normgrowth.lab.settings import TrainSettings
from normgrowth.stored_result import StoredResult
from normgrowth.sweep import sweep

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("overwrite") / "trained"
    make_train(folder)
    return folder


def content(folder):
    """All files but locks and derived ones."""
    return {
        path.relative_to(folder): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock" and "figures" not in path.parts
    }


def refused(folder, *argv):
    """The command says no, and nothing in the folder has changed."""
    before = content(folder)
    code, out, err = run(*argv)
    assert (code, out) == (2, "")
    assert "--overwrite" in err
    assert content(folder) == before
    return err


@pytest.mark.parametrize(
    ("command", "other"),
    [
        (("saturation", "{}/best", "--sentences", "4"), ("--sentences", "3")),
        (("heads", "{}/best", "--sentences", "4"), ("--tolerance", "0.02")),
        (("scaling", "{}/best", "--scales", "4"), ("--scales", "3")),
    ],
)
def test_models_measured_otherwise_are_refused(tmp_path, trained, command, other):
    command = [word.format(trained) for word in command]
    done(*command, "-o", tmp_path)
    first = (tmp_path / "records.parquet").read_bytes()
    done(*command, "-o", tmp_path)  # the same request may be measured again
    assert (tmp_path / "records.parquet").read_bytes() == first
    refused(tmp_path, *command, *other, "-o", tmp_path)
    done(*command, *other, "-o", tmp_path, "--overwrite")
    assert (tmp_path / "records.parquet").read_bytes() != first
    refused(tmp_path, *command, "-o", tmp_path)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two series of checkpoints with a trace of each: one/series and one/trace, other/series and other/trace."""
    folder = tmp_path_factory.mktemp("two")
    for name in ("one", "other"):
        (folder / name).mkdir()
        make_trace(folder / name / "trace")
    return folder


FIT, DYNAMICS = ("fit", "--bootstrap", "0"), ("dynamics", "--schedule", "1e-3", "--weight-decay", "0.1")


@pytest.mark.parametrize(
    ("command", "source", "option"),
    [
        (("lint",), "series", ("--include", "blocks")),
        (FIT, "trace", ("--level", "layer")),
        (FIT, "trace", ("--laws", "sqrt,linear")),
        (DYNAMICS, "trace", ("--kappa", "0.5")),
        (("parameters",), "series", ("--include", "all")),
        (("compare", "{}/one/trace"), "trace", ("--tolerance", "0.1")),
    ],
)
def test_a_result_of_the_same_kind_is_refused_if_its_source_or_an_option_differs(
    tmp_path, two, command, source, option
):
    command, folder = [word.format(two) for word in command], tmp_path / "out"
    one, other = ([*command, two / name / source, "-o", folder] for name in ("one", "other"))

    def made(*argv):
        assert run(*argv)[0] in (0, 1)  # 1: the result has findings

    made(*one)
    made(*one)  # the same request may be measured again
    said = refused(folder, *other)
    assert "one/" in said
    assert "other/" in said
    said = refused(folder, *one, *option)
    assert option[1].split(",")[0] in said
    made(*one, *option, "--overwrite")
    refused(folder, *one)
    made(*other, "--overwrite")
    refused(folder, *one)


@pytest.mark.filterwarnings("ignore::normgrowth.errors.SeriesWarning")  # one of the checkpoints is a copy
def test_saving_another_result_of_the_same_kind_is_refused(tmp_path, two):
    import normgrowth as ng

    one, other = (ng.load(two / name / "trace") for name in ("one", "other"))
    different = ng.trace(two / "other/series", include="all")
    one.save(tmp_path)
    ng.trace(two / "one/series").save(tmp_path)  # the same result, measured again
    before = content(tmp_path)
    for result in (other, different):
        with pytest.raises(FolderMismatch):
            result.save(tmp_path)
    assert content(tmp_path) == before
    different.save(tmp_path, overwrite=True)
    fits, again = tmp_path / "fits", tmp_path / "again"
    ng.fit(one, out=fits, bootstrap=0)
    ng.fit(ng.load(two / "one/trace"), out=fits, bootstrap=0)
    with pytest.raises(FolderMismatch):
        ng.fit(different, out=fits, bootstrap=0)
    ng.fit([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6], again, bootstrap=0)
    with pytest.raises(FolderMismatch):
        ng.fit([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 7], again, bootstrap=0)


@pytest.mark.parametrize("verb", ["fit", "parameters", "lint", "degrees"])
def test_an_empty_name_is_no_output_folder(tmp_path, monkeypatch, two, verb):
    monkeypatch.chdir(tmp_path)
    code, _, said = run(verb, two / "one" / ("trace" if verb == "fit" else "series"), "-o", "")
    assert code == 2
    assert "empty" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command",
    [
        ("saturation", "--sentences", "4"),
        ("heads", "--sentences", "4"),
        ("scaling", "--scales", "4"),
    ],
)
def test_another_model_type_is_another_request(tmp_path, command):
    """A config.json without model_type is measured as what --model-type says, so its folder is that type's."""
    pytest.importorskip("transformers")
    config = {**tiny_config("bert").to_dict(), "model_type": None, "architectures": None}
    model, folder = tmp_path / "config.json", tmp_path / "out"
    model.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    verb, *options = command
    command = (verb, model, *options, "-o", folder)
    done(*command, "--model-type", "bert")
    said = refused(folder, *command, "--model-type", "roberta")
    assert "model_type: bert" in said
    assert "model_type: roberta" in said
    done(*command, "--model-type", "bert")
    before = (folder / "records.parquet").read_bytes()
    done(*command, "--model-type", "roberta", "--overwrite")
    assert (folder / "records.parquet").read_bytes() != before


def test_one_command_does_not_replace_the_result_of_another(tmp_path, trained):
    folder = tmp_path / "trace"
    make_trace(folder)
    (folder / "notes.txt").write_text("mine")
    for command in (
        ["saturation", trained / "best", "--sentences", "4"],
        ["heads", trained / "best", "--sentences", "4"],
        ["scaling", trained / "best", "--scales", "4"],
        ["reproduce", "--only", "norm-sqrt"],
    ):
        refused(folder, *command, "-o", folder)
    for command in (["train", *TRAIN], ["sweep", *TRAIN]):
        before = content(folder)
        assert run(*command, "-o", folder)[0] == 2
        assert content(folder) == before
    done("heads", trained / "best", "--sentences", "4", "-o", folder, "--overwrite")
    assert StoredResult.read(folder).fields["kind"] == "heads"
    assert (folder / "notes.txt").read_text() == "mine"
    assert not (folder / "moments").exists()


def test_a_training_run_with_other_settings_is_refused(tmp_path, trained):
    folder = tmp_path / trained.name
    shutil.copytree(trained, folder)
    said = refused(folder, "train", *TRAIN, "--lr", "0.5", "-o", folder)
    assert "lr: 0.5" in said
    assert "lr: 0.001" in said
    done("train", *TRAIN, "-o", folder, "--overwrite")  # the same run goes on: nothing is removed
    assert content(folder).keys() == content(trained).keys()
    done("train", *TRAIN, "--lr", "0.5", "-o", folder, "--overwrite")
    assert StoredResult.read(folder).fields["settings"]["lr"] == 0.5
    fresh = tmp_path / "fresh"
    done("train", *TRAIN, "--lr", "0.5", "-o", fresh)
    assert (fresh / "best/model.safetensors").read_bytes() == (folder / "best/model.safetensors").read_bytes()


def test_a_sweep_with_other_settings_is_refused_and_its_cells_are_kept(tmp_path):
    folder = tmp_path / "sweep"
    make_sweep(folder)
    settings = TrainSettings(**json.loads((folder / "records.json").read_text())["settings"])
    x, y = Axis("lr", (1e-3, 1e-2, 0.1)), Axis("weight_decay", (1e-3, 0.1, 5.0))
    other = TrainSettings(**{**vars(settings), "seed": 1})
    before = content(folder)
    engine = Threads(1)
    with pytest.raises(FolderMismatch) as caught:
        sweep(other, folder, x=x, y=y, engine=engine)
    assert (caught.value.found["seed"], caught.value.wanted["seed"]) == (0, 1)
    with pytest.raises(FolderMismatch):
        sweep(settings, folder, x=x, y=Axis("batch", (2, 4)), engine=engine)
    assert content(folder) == before
    sweep(settings, folder, x=Axis("lr", (1e-3, 0.1)), y=y, engine=engine)  # another grid of the same sweep
    sweep(other, folder, x=Axis("lr", (1e-3,)), y=y, engine=engine, overwrite=True)
    assert StoredResult.read(folder).fields["settings"]["seed"] == 1
    cells = {path for path in before if path.parts[0] == "cells"}
    assert cells < content(folder).keys()
    engine.close()


def test_figures_and_pages_replace_their_own_kind_only(tmp_path):
    folder = tmp_path / "trace"
    make_trace(folder)
    for _ in range(2):  # drawn again without a question
        done("plot", folder)
        done("report", folder)
    figures = sorted((folder / "figures").iterdir())
    assert {path.suffix for path in figures} == {".png", ".svg", ".pdf"}
    for path in (*figures[:3], folder / "report.html"):
        path.write_text("mine")
    assert run("plot", folder)[0] == 2
    code, _, said = run("report", folder)
    assert code == 2
    assert "report.html" in said
    for path in (*figures[:3], folder / "report.html"):
        assert path.read_text() == "mine"
    done("report", folder, "-o", tmp_path / "other.html")


def test_figures_and_pages_of_another_trace_are_kept(tmp_path):
    one, other = tmp_path / "one/trace", tmp_path / "other/trace"
    for folder in (one, other):
        folder.parent.mkdir()
        make_trace(folder)
    all_of_one = tmp_path / "one/all"
    done("trace", one.with_name("series"), "--include", "all", "-o", all_of_one)
    place, page = tmp_path / "place", tmp_path / "page.html"
    for _ in range(2):
        done("plot", one, "-o", place)
        done("report", one, "-o", page)
    before = content(place), page.read_bytes()
    for form in ("png", "svg", "pdf"):
        for others in (other, all_of_one):
            said = refused(place, "plot", others, "-o", place, "--formats", form)
            assert "one/series" in said
            assert "include=blocks" in said
    for others in ([other], [one, other]):
        code, _, said = run("report", *others, "-o", page)
        assert code == 2
        assert "was made from trace," in said
        assert "--overwrite" in said
    assert (content(place), page.read_bytes()) == before
    done("plot", other, "-o", place, "--overwrite")
    done("report", other, "-o", page, "--overwrite")
    assert content(place) != before[0]
    assert page.read_bytes() != before[1]


def test_a_tracker_does_not_write_over_records(tmp_path):
    from normgrowth.tracking.log.step_log import StepLog

    KINDS["tracker"].make(tmp_path / "run")
    make_trace(tmp_path / "trace")
    for folder in (tmp_path / "run", tmp_path / "trace"):
        before = content(folder)
        with pytest.raises(InputError):
            StepLog.open(folder, None)
        assert content(folder) == before


@pytest.mark.parametrize("verb", ["saturation", "heads", "scaling", "degrees", "behavior"])
def test_what_is_given_in_memory_is_part_of_the_request(tmp_path, trained, verb):
    """Other sentences, other inputs, or other weights of the same class are another request."""
    import torch

    import normgrowth as ng
    from normgrowth.network.models.load import load_model

    loaded = load_model(trained / "best")
    words = ["the limit of a network", "a list of words"]
    options = {"scaling": {"c": [10.0, 20.0]}, "behavior": {"bootstrap": 0}}.get(verb, {})
    model = trained / "best" if verb == "behavior" else loaded

    def measured(**given):
        getattr(ng, verb)(model, **{"texts": words, "out": tmp_path, **options, **given})

    measured()
    before = content(tmp_path)
    measured(texts=(word for word in words))
    for other in ({"texts": words[:1]}, {"texts": None}):
        with pytest.raises(FolderMismatch, match="text"):
            measured(**other)
    if model is not loaded:
        return
    parameter = next(loaded.model.parameters())
    with torch.no_grad():
        parameter.mul_(2)
    with pytest.raises(FolderMismatch, match="weights"):
        measured()
    with torch.no_grad():
        parameter.mul_(0.5)
    measured()
    assert content(tmp_path).keys() == before.keys()
