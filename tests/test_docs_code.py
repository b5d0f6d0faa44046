"""The Python examples of the documentation run as they are printed."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
RUNNABLE = ("fit", "dynamics", "t5", "tracker")  # pages whose examples need no files
FIRST = (
    "tracker",
)  # of these only the first example: the others are parts of scripts that tests run elsewhere


@pytest.mark.parametrize("page", RUNNABLE)
def test_examples_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks[:1] if page in FIRST else blocks:  # later ones use what earlier ones made
        exec(compile(block, f"{page}.md", "exec"), names)
    assert capsys.readouterr().out
