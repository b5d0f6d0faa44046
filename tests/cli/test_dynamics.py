"""normgrowth dynamics as a person meets it."""

import json

import numpy as np
import pytest
from vectors import norms, simulate, write_path

from normgrowth.cli.main import parser_of
from normgrowth.dynamics.equilibrium import equilibrium
from normgrowth.errors import FolderMismatch, InputError
from normgrowth.records import Records
from normgrowth.results import load
from normgrowth.schedules import Schedule, cosine, parse
from normgrowth.trace import trace

SPEC = "cosine:lr=0.05,steps=400,warmup=40,end=0.005"
SCHEDULE = cosine(0.05, 400, warmup=40, end=0.005)


def run(capsys, *words):
    arguments = parser_of("dynamics").parse_args([*map(str, words)])
    code = arguments.command.run(arguments)
    out, err = capsys.readouterr()
    assert err == ""
    return code, out


@pytest.fixture(scope="module")
def path():
    return simulate(SCHEDULE, 1.5, 400, norm0=7.0, dims=4_000)


@pytest.fixture(scope="module")
def folder(path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("dynamics")
    trace(write_path(folder / "series", path, 20), folder / "trace", lags=(2, 4, 8))
    return folder / "trace"


def test_the_table_shows_both_models_and_what_they_mean(folder, path, capsys):
    code, out = run(capsys, folder, "--schedule", SPEC)
    assert code == 0
    for words in ("misaligned", "14 of 21", SPEC):
        assert words in " ".join(out.split())
    code, whole = run(capsys, folder, "--schedule", SPEC, "--wide")
    assert code == 0
    titles = ("Growth", "Layers", "Direction", "Open questions")
    assert [line for line in whole.splitlines() if line in titles] == list(titles)
    assert "Open questions" not in out
    assert f"{norms(path)[-1]:.3f}"[:5] in out
    assert "Weight decay" not in out


def test_json_is_json_and_nothing_else(folder, path, capsys):
    code, out = run(capsys, folder, "--schedule", SPEC, "--weight-decay", "0", "--json")
    assert code == 0
    content = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert Schedule(**content["schedule"]) == parse(SPEC)
    assert content["steps"] == list(range(0, 401, 20))
    np.testing.assert_allclose(content["norms"], norms(path)[::20])
    misaligned = content["misaligned"]
    assert misaligned["kappa"] == pytest.approx(1.5, rel=0.02)
    assert misaligned["kappa_low"] < misaligned["kappa"] < misaligned["kappa_high"]
    np.testing.assert_allclose(misaligned["predicted"], content["norms"], rtol=0.03)
    assert content["aligned"]["predicted"][-1] > 2 * content["norms"][-1]
    assert (content["kind"], content["verdict"]) == ("dynamics", "misaligned")
    assert content["checkpoint_gap"] == [20, 20]
    assert content["equilibria"][0]["equilibrium"]["norm"] is None  # infinite without decay
    assert [lag["lag"] for lag in content["direction"]["lags"]] == [1, 2, 4, 8]
    assert sum(content["uniformity"]["layer"]["last_share"]) == pytest.approx(1)
    shares = [
        row["value"] for row in content["records"] if (row["level"], row["quantity"]) == ("layer", "share")
    ]
    np.testing.assert_allclose(np.reshape(shares, (2, 21)).sum(axis=0), 1)
    assert set(content["uniformity"]) == {"layer", "role", "tensor"}


def test_an_output_folder_has_the_result_and_its_figures(folder, tmp_path, capsys):
    code, printed = run(capsys, folder, "-o", tmp_path / "out")
    assert code == 0
    assert "dynamics_alignment.png" in printed
    assert load(tmp_path / "out").kind == "dynamics"
    drawn = {path.stem for path in (tmp_path / "out" / "figures").iterdir()}
    assert drawn == {"dynamics_alignment", "dynamics_budget", "dynamics_plane"}  # no schedule, no prediction
    with pytest.raises(FolderMismatch):
        run(capsys, folder, "-o", folder)


def test_equilibrium_where_the_decay_is_given(folder, capsys):
    words = ("--schedule", SPEC, "--weight-decay", 0.1, "--betas", "0.9,0.95")
    _, out = run(capsys, folder, *words, "--json")
    content = json.loads(out)
    peak, last = content["equilibria"]
    assert (peak["step"], last["step"]) == (40, 399)
    true = equilibrium(lr=0.05, weight_decay=0.1, numel=4_000, betas=(0.9, 0.95))
    assert peak["equilibrium"]["norm"] == pytest.approx(true.norm)
    assert peak["equilibrium"]["rotation"] == pytest.approx(true.rotation)
    _, out = run(capsys, folder, *words)
    assert "equilibrium" in out
    assert f"{true.norm:.4g}" in out


def test_other_settings(folder, capsys):
    code, out = run(
        capsys, folder, "--schedule", "0.05", "--optimizer", "sgd", "--momentum", 0.9, "--gradient-norm", 3,
        "--invariant", "--weight-decay", 0.01, "--kappa", 1.5, "--level", "layer", "--name", "layer.1", "--json",
    )  # fmt: skip
    assert code == 0
    content = json.loads(out)
    assert content["name"] == "layer.1"
    assert content["norms"][0] == Records.read(folder).series("norm", level="layer", name="layer.1")[1][0]
    assert content["equilibria"][0]["equilibrium"]["p"] == -1
    code, _ = run(capsys, folder, "--schedule", "0.05", "--weight-decay", 0.001, "--decay", "eq3")
    assert code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--schedule", "step:lr=1"], "'step' is neither one of"),
        (["--schedule", "cosine:lr=1"], "steps is missing"),
        (["--kappa", "1"], r"kappa needs a schedule \(--schedule\), for example cosine:lr="),
        (["--weight-decay", "0"], r"weight_decay needs a schedule \(--schedule\)"),
        (["--schedule", "0.1", "--level", "layer"], r"level layer needs a name \(--name\): layer.0, layer.1"),
        (["--schedule", "0.1", "--name", "layer.0"], r"name layer.0 needs a level \(--level\)"),
        (
            ["--schedule", "0.1", "--level", "layer", "--name", "layer.9"],
            "'layer.9'; known: layer.0, layer.1",
        ),
        (["--schedule", "0.1", "--optimizer", "sgd", "--weight-decay", "0.1"], "gradient_norm"),
        (
            ["--schedule", "0.1", "--optimizer", "sgd", "--weight-decay", "0.1", "--momentum", "1"],
            "momentum must be",
        ),
        (["--schedule", "0.1", "--weight-decay", "10"], "weight decay 10"),
        (["--schedule", "0.1", "--weight-decay", "-1"], "weight decay must be >= 0"),
        (["--schedule", "0.1", "--kappa", "-1"], "kappa must be >= 0"),
        (["--schedule", "0"], "κ"),
    ],
)
def test_bad_arguments_are_one_clear_line(folder, capsys, words, said):
    with pytest.raises(InputError, match=said) as error:
        run(capsys, folder, *words)
    assert "\n" not in str(error.value)


def test_the_published_numbers(capsys):
    """The values of docs/dynamics.md. T5's schedule is known, the number of its weights is not in the records."""
    _, out = run(capsys, "published:t5", "--json")
    content = json.loads(out)
    assert str(Schedule(**content["schedule"])) == "inverse_sqrt:lr=0.01,hold=10000"
    assert content["verdict"] == "between"
    assert content["checkpoint_gap"] == [4_088, 5_100]
    assert content["budget"]["by_steps"] == pytest.approx(0.56, abs=0.005)
    misaligned, aligned = content["misaligned"], content["aligned"]
    assert [round(misaligned[key], 2) for key in ("kappa", "kappa_low", "kappa_high", "kappa_drift")] == [
        0.73,
        0.70,
        0.75,
        1.08,
    ]
    assert misaligned["predicted"][-1] == pytest.approx(1_747, abs=1)
    assert aligned["predicted"][-1] == pytest.approx(4e8, rel=0.2)
    _, out = run(capsys, "published:t5", "--weight-decay", 0, "--schedule", "0.01", "--json")
    content = json.loads(out)
    assert (content["equilibria"], content["optimizer"]["numel"]) == ([], None)
    assert content["schedule"]["lr"] == 0.01


def test_no_decay_needs_no_gradient_norm(folder, capsys):
    _, out = run(capsys, folder, "--schedule", SPEC, "--optimizer", "sgd", "--weight-decay", 0, "--json")
    content = json.loads(out)
    assert content["equilibria"] == []
    assert "weight_decay" not in content["open_questions"]


def test_betas_are_two_numbers(folder, capsys):
    with pytest.raises(SystemExit):
        run(capsys, folder, "--schedule", SPEC, "--betas", "0.9")
    assert "'0.9'" in capsys.readouterr().err


def test_no_trace_there(tmp_path, capsys):
    with pytest.raises(InputError, match="no normgrowth result here"):
        run(capsys, tmp_path, "--schedule", "0.1")
