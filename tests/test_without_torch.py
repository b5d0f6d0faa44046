"""The base install has no torch: what reads checkpoints and shows results works, the rest names the extra."""

import json
import subprocess
import sys

import torch
from synthetic_series import walk, write_series

SCRIPT = """
import json, sys
sys.modules["torch"] = None  # any import of it fails, as where it is not installed
from normgrowth.cli.main import main
codes = [main(command) for command in json.loads(sys.argv[1])]
print(json.dumps(codes), file=sys.stderr)
"""


def exit_codes(*commands):
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps([[str(word) for word in command] for command in commands])],
        capture_output=True,
        text=True,
        check=True,
    )
    *said, codes = run.stderr.splitlines()
    return json.loads(codes), said


def test_checkpoints_are_measured_and_shown(tmp_path):
    states = walk(4)
    series, out = write_series(tmp_path / "series", states), tmp_path / "trace"
    for step, state in enumerate(states):
        torch.save(state, tmp_path / f"step_{step}.pt")
    codes, _ = exit_codes(
        ("trace", series, "-o", out),
        ("trace", tmp_path / "step_*.pt"),
        ("lint", series),
        ("parameters", series),
        ("fit", out, "--bootstrap", 0),
        ("dynamics", out),
        ("compare", out, out),
        ("plot", out, "--formats", "png"),
        ("report", out),
    )
    assert codes == [0] * 9


def test_other_commands_name_the_extra(tmp_path):
    commands = [("degrees", "paper"), ("saturation", "minilm"), ("train", "dyck2", "-o", tmp_path / "run")]
    codes, said = exit_codes(*commands)
    assert codes == [2, 2, 2]
    assert len(said) == 3
    assert all("normgrowth[torch]" in line for line in said)
