"""normgrowth train as a person meets it."""

import io
import json

import command_line
import pytest
from rich.console import Console

from normgrowth import load
from normgrowth.report.renderers import show
from normgrowth.report.terminal.run import TrainProgress, sentences
from normgrowth.stored_result import StoredResult

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = (
    "--layers 1 --width 8 --heads 2 --feedforward 8 --dev-sentences 10 --saturation-sentences 3 --threads 1"
)


def run(capsys, *arguments):
    return command_line.run(capsys, "train", *arguments)


def small(capsys, corpus, out, *more):
    return run(capsys, corpus, "-o", out, *SMALL.split(), *more)


def test_a_table_and_what_it_says(tmp_path, capsys):
    code, out, err = small(capsys, "pydoc", tmp_path / "run", "--steps", 4, "--evaluate", "powers")
    assert (code, err) == (0, "")
    rows = [
        line.split() for line in out.splitlines() if line.strip()[:1].isdecimal() and len(line.split()) > 3
    ]
    assert [row[0] for row in rows] == ["0", "1", "2", "4"]
    result = load(tmp_path / "run")
    best = min(one.scores["dev_loss"] for one in result.evaluations)
    assert best > result.corpus.frequency_loss  # four steps teach nothing
    assert result.test.scores["perplexity"] > 0
    assert len(sentences(result)) >= 3  # the best loss, test perplexity, saturation
    assert any("<unk>" in note for note in result.notes)


def test_json_is_all_there_is_on_stdout(tmp_path, capsys):
    code, out, _ = small(
        capsys, "anbn", tmp_path / "run", "--steps", 2, "--json", "--optimizer", "sgd", "--lr", 0.1
    )
    assert code == 0
    said = json.loads(out)
    assert said["settings"]["optimizer"] == "sgd"
    assert {"dev_loss", "legal_share", "saturation"} <= {row["quantity"] for row in said["records"]}
    assert said["corpus"]["vocabulary"] == 4  # a, b, the end mark and <unk>


def test_every_option_reaches_the_settings(tmp_path, capsys):
    given = {
        "kind": "usual_pre_norm",
        "optimizer": "sgd",
        "schedule": "linear",
        "lr": 0.25,
        "warmup": 1,
        "end": 0.125,
        "weight_decay": 0.5,
        "momentum": 0.75,
        "clip": 2.0,
        "batch": 3,
        "epochs": 2,
        "steps": 2,
        "seed": 7,
        "min_count": 3,
        "longest": 9,
        "positions": 30,
        "evaluate": "powers",
        "track": "powers",
        "include": "all",
    }
    flags = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    flags += ["--no-bias", "--final-norm", "--tied", "--leaking"]
    code, _, err = small(capsys, "pydoc", tmp_path / "run", *flags)
    assert code == 0, err
    said = StoredResult.read(tmp_path / "run").fields["settings"]
    assert given.items() <= said.items()
    assert (said["bias"], said["final_norm"], said["tied"], said["leaking"]) == (False, True, True, True)
    assert said["width"] == 8


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing"], "nothing: no such file or folder; known corpora: penn"),
        (["penn", "--data", "nowhere"], "penn: no such folder; set --data to"),
        (["pydoc", "--heads", "3"], "width 8 is not divisible by 3 heads"),
        (["pydoc", "--device", "abacus"], "device abacus"),
        (["anbn", "--longest", "1"], "anbn"),
    ],
)
def test_bad_input_in_a_line(tmp_path, capsys, arguments, says):
    corpus, *more = arguments
    code, out, err = small(capsys, corpus, tmp_path / "run", "--steps", 1, *more)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


def test_another_run_is_refused_and_a_diverging_one_says_so(tmp_path, capsys):
    assert small(capsys, "pydoc", tmp_path / "run", "--steps", 1)[0] == 0
    code, _, err = small(capsys, "pydoc", tmp_path / "run", "--steps", 1, "--seed", 1)
    assert code == 2
    assert "with seed: 0" in err
    assert "with seed: 1" in err
    code, _, err = small(
        capsys, "pydoc", tmp_path / "far", "--steps", 9, "--optimizer", "sgd", "--lr", "1e30"
    )
    assert code == 2
    assert err.count("\n") == 1
    assert "a lower --lr" in err


def test_the_bar_tells_the_loss_and_the_speed():
    said = []
    progress = TrainProgress(lambda done, total, label: said.append((done, total, label)))
    for step in (1, 2, 3):
        progress(step, 9, {"loss": 5.0, "tokens": 100.0})
    assert said[0][:2] == (1, 9)
    assert "5.000" in said[0][2]
    assert said[-1][:2] == (3, 9)
    assert "loss 5.000" in said[-1][2]
    assert "tokens/s" in said[-1][2]


def test_a_narrow_terminal_keeps_what_matters(tmp_path, capsys):
    small(capsys, "pydoc", tmp_path / "run", "--steps", 2)
    result = load(tmp_path / "run")
    console = Console(file=io.StringIO(), width=50)
    show(result, console)
    shown = console.file.getvalue()
    assert "perplexity" in shown
    assert "Hidden columns" in shown
    assert all(len(line) <= 50 for line in shown.splitlines())
    assert len(sentences(result)) >= 3
