"""The Python examples of the documentation run as they are printed, and its commands have the options they name."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from synthetic_series import walk, write_series
from tracking.tiny_training import backward, tiny

import normgrowth
from normgrowth.cli.main import COMMANDS, command_of, parser_of

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RUNNABLE = (
    "growth",
    "alignment",
    "weight_decay",
    "fit",
    "dynamics",
    "t5",
    "train",
    "tracker",
    "degrees",
    "scaling",
)  # pages whose examples need no files
FIRST = (
    "tracker",
)  # of these only the first example: the others are parts of scripts that tests run elsewhere


def run_examples(page: str, **names: object) -> dict[str, object]:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks[:1] if page in FIRST else blocks:  # later ones use what earlier ones made
        exec(compile(block, f"{page}.md", "exec"), names)
    return names


@pytest.mark.parametrize("page", RUNNABLE)
def test_examples_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_examples(page)
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", ["../README", "start"])
def test_first_examples_run(page, tmp_path, monkeypatch):
    """Those that a newcomer pastes, with their own series, model and loop."""
    monkeypatch.chdir(tmp_path)
    write_series(tmp_path / "runs" / "gpt" / "checkpoints", walk(12))
    model = tiny(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def train(model, optimizer):
        for step in range(1, 21):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()

    inputs = {"tokens": torch.arange(6)[None]}
    names = run_examples(page, model=model, optimizer=optimizer, train=train, inputs=inputs)
    assert (tmp_path / "growth.png").stat().st_size > 10_000
    assert len(names["trace"].steps) == 12
    assert names["tracker"].trace.steps == (0, 10, 20)


def test_the_page_of_the_interface_runs_as_a_script(tmp_path):
    """With all of its examples, one after the other, as a reader may paste them into a file."""
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    script = tmp_path / "page.py"
    script.write_text("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)), encoding="utf-8")
    subprocess.run([sys.executable, script], cwd=tmp_path, timeout=240, check=True, capture_output=True)
    assert isinstance(normgrowth.load(tmp_path / "sweeps" / "dyck"), normgrowth.Sweep)
    assert isinstance(normgrowth.load(tmp_path / "reproduction"), normgrowth.Reproduction)


@pytest.mark.parametrize("name", normgrowth.__all__)
def test_public_names_are_documented(name):
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    assert re.search(rf"^- (`\w+`, )?`{name}\b|, as (a |an )?`{name}`", text, re.MULTILINE), (
        "a line that says what it is"
    )
    assert re.search(rf"^\.\. auto\w+:: normgrowth\.{name}$", text, re.MULTILINE), "its docstring"
    examples = "".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    assert re.search(rf"\bng\.{name}\b", examples), "an example"


def shown_commands():
    """Every command in a code block of the documentation, a docstring of an example or the help."""
    texts = {page.name: page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *DOCS.glob("*.md"))}
    texts |= {f"{name} --help": command_of(name).examples for name in COMMANDS}
    for name, text in texts.items():
        whole = re.sub(r"\\\n\s*", "", text)  # a command on several lines
        for line in re.findall(r"^(?: {2,}(?:\$ )?)?(normgrowth \w.*)$", whole, re.MULTILINE):
            command = re.split(r"\s{2,}[#(]|\s+#|\s+(?:&&|\||>|&)(?:\s|$)", line)[0]
            if command.split()[1] in COMMANDS:
                yield pytest.param(command, id=f"{name}: {command}")


@pytest.mark.parametrize("command", list(shown_commands()))
def test_a_command_of_the_documentation_parses(command):
    _, name, *words = shlex.split(command)
    if not {"-h", "--help"} & set(words):  # help exits
        parser_of(name).parse_args(words)
