"""The commands of docs/compare.md run as they are printed, and print what the page says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "compare.md"


@pytest.mark.slow
def test_the_commands_of_the_page(tmp_path, monkeypatch):
    text = PAGE.read_text(encoding="utf-8")
    script, in_python = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    tools = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    printed = {}
    commands = [
        line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()
    ]
    for command in commands:
        for _ in range(3):
            done = subprocess.run(
                command.split(),
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            if "(SIGABRT)" not in done.stderr:
                break
            # Now and then a thread of gloo outlives its process group, and aborts the process as it ends.
            shutil.rmtree(tmp_path / command.split()[-1])
        expected = 1 if command.endswith("compare runs/ddp runs/fsdp-scaled") else 0
        assert done.returncode == expected, f"{command}: {done.stderr[-2000:]}"
        printed[command] = done.stdout
    outputs = " ".join(" ".join(text.split()) for text in printed.values())
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    shown = re.findall(r"^    (\S.*)$", prose, re.MULTILINE)
    assert len(shown) == 2
    for line in shown:
        assert line in outputs
    assert "mean over 2 ranks" in outputs
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(f"import normgrowth as ng\n{in_python}", "compare.md", "exec"), names)
    assert names["found"].diagnoses[0].cause == "gradient_factor"  # pyright: ignore[reportAttributeAccessIssue]
