"""The command `sweep`, in processes of its own."""

import json
import subprocess
import sys

import pytest

TINY = [
    "--preset",
    "tiny",
    "--longest",
    "6",
    "--layers",
    "1",
    "--width",
    "8",
    "--heads",
    "2",
    "--feedforward",
    "8",
    "--steps",
    "6",
    "--batch",
    "4",
    "--dev-sentences",
    "5",
]


def command(*arguments, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "normgrowth", "sweep", *map(str, arguments)], capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    return done


def test_a_table_figures_and_json(tmp_path):
    out = tmp_path / "sweep"
    grid = ["--x", "lr=1e-3:1e-1:2", "--y", "weight-decay=0,0.1,1"]
    done = command("dyck2", "-o", out, *TINY, *grid)
    assert "6 of 6 cells were trained" in done.stdout
    assert (out / "figures" / "sweep_phase.svg").is_file()
    again = json.loads(command("dyck2", "-o", out, *TINY, *grid, "--json").stdout)
    assert {row["level"] for row in again["records"]} == {"cell", "column"}
    assert again["y"]["values"] == [0, 0.1, 1]


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        (["--x", "lr"], "invalid --x 'lr' (examples: lr=1e-5:1e-1:20, layers=1,2,4)"),
        (["--x", "lr=1:2"], "invalid --x 'lr=1:2'"),
        (["--y", "weight_decay=0:1:3"], "--y weight_decay=0:1:3: weight_decay: a logarithmic grid"),
        (["--y", "mood=1,2"], "--y mood=1,2: unknown setting 'mood'"),
        (["--x", "lr=abc,1"], "--x lr=abc,1: lr must be a number, got 'abc'"),
        (["--y", "layers=1.5,2"], "--y layers=1.5,2: layers must be an integer, got 1.5"),
        (["--schedule", "linear", "--warmup", "9"], "lr=1e-05, weight_decay=1e-05: schedule linear: steps"),
        (["--engine", "local", "--ray-address", "x:1"], "--ray-address requires --engine ray"),
        (["--engine", "ray", "--ray-address", "127.0.0.1:9"], "cannot connect"),
    ],
)
def test_bad_input_is_one_line(tmp_path, grid, said):
    done = command("dyck2", "-o", tmp_path / "x", *TINY, *grid, code=2)
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "x").exists()
