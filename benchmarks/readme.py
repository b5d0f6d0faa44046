"""Run the commands of README.md and docs/tour.md and insert their output; make pictures and docs/commands.md.

python benchmarks/readme.py REPRODUCTION RUN...    (folders of `normgrowth reproduce` and of `normgrowth train`)

examples/tiny_series.py makes the series. The picture of a report needs a browser: playwright and chromium.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pages import DOCS, PICTURES, ROOT, fill

from normgrowth.cli.main import GROUPS, command_of

COLUMNS = 104  # characters per line
LLAMA = '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, ' + (
    '"intermediate_size": 128, "vocab_size": 1000, "num_key_value_heads": 4}'
)


def output(command: str, folder: Path) -> list[str]:
    """Return the lines that a command prints."""
    tool = Path(sys.executable).with_name("normgrowth")
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "NO_COLOR": "1"}
    run = subprocess.run(
        [str(tool), *shlex.split(command)[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise SystemExit(f"{command}: {run.stderr}")
    return [line.rstrip() for line in run.stdout.splitlines()]


def code(lines: Sequence[str]) -> str:
    return "\n".join(f"    {line}".rstrip() for line in lines)


# Name of the mark on the tour -> the command.
COMMANDS = {
    "trace": "normgrowth trace checkpoints -o traces/tiny",
    "fit": "normgrowth fit traces/tiny",
    "dynamics": "normgrowth dynamics traces/tiny",
    "watch": "normgrowth watch runs/gpt/norms --once",
    "degrees": "normgrowth degrees llama.json --explain",
    "saturation": "normgrowth saturation minilm",
    "heads": "normgrowth heads minilm",
    "reproduce": "normgrowth reproduce",
}

# Name of the mark in README.md -> the lines of the tour that it shows: the command has index 0.
ESSENTIAL: dict[str, tuple[slice, ...]] = {
    "trace": (slice(0, 9), slice(13, 14)),
    "watch": (slice(0, 8),),
    "saturation": (slice(0, 7), slice(15, 18)),
    "reproduce": (slice(0, 3), slice(18, 20)),
}


def fill_pages(folder: Path, reproduction: Path) -> None:
    make = [sys.executable, str(ROOT / "examples" / "tiny_series.py"), "checkpoints"]
    subprocess.run(make, cwd=folder, check=True, capture_output=True)
    (folder / "llama.json").write_text(LLAMA)
    shutil.copytree(reproduction, folder / "reproduction", ignore=shutil.ignore_patterns("work"))
    training = [sys.executable, str(ROOT / "examples" / "track_plain.py"), "runs/gpt"]
    subprocess.run(training, cwd=folder, check=True, capture_output=True)
    lines = {name: output(command, folder) for name, command in COMMANDS.items()}
    fill(DOCS / "tour.md", {name: code([f"$ {command}", *lines[name]]) for name, command in COMMANDS.items()})


def fill_readme() -> None:
    """Copy the essential lines of the tour to README.md and to the first page of the documentation."""
    tour = (DOCS / "tour.md").read_text(encoding="utf-8")
    sections = {}
    for name, slices in ESSENTIAL.items():
        start, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        lines = tour.split(start)[1].split(end)[0].split("\n")
        kept = "\n    …\n".join("\n".join(lines[part]) for part in slices)
        sections[name] = kept + (
            f"\n    … ({len(lines) - last} more lines)" if (last := slices[-1].stop) < len(lines) else ""
        )
    fill(ROOT / "README.md", sections)
    fill(DOCS / "start.md", {"trace": sections["trace"]})


def growth(folder: Path) -> None:
    """Draw the first picture of README.md: norm and direction of T5, as published."""
    output("normgrowth plot published:t5 --fit sqrt2 --formats svg -o figures", folder)
    shutil.copy(folder / "figures" / "trace_norm_direction.svg", PICTURES / "growth.svg")


def commands() -> str:
    """Return docs/commands.md: what each command does, with its examples."""
    lines = [
        "# Commands",
        "",
        "Each command has `--help` with all options.",
        "",
    ]
    for title, names in GROUPS.items():
        lines += [f"## {title}", ""]
        for name in names:
            command = command_of(name)
            text = command.description.replace("\n", " ")
            lines += [
                f"### normgrowth {name}",
                "",
                text,
                "",
                "```",
                re.sub("^  ", "", command.examples, flags=re.M),
                "```",
                "",
            ]
    return "\n".join(lines)


def picture(runs: Sequence[str], folder: Path) -> None:
    from playwright.sync_api import sync_playwright

    from normgrowth import report

    page = report(runs, folder / "report.html", title="Three language models on Penn Treebank").path
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1000, "height": 1150})
        opened.goto(page.as_uri())
        opened.locator("#layers").scroll_into_view_if_needed()
        opened.wait_for_timeout(2000)
        opened.evaluate("document.getElementById('growth').scrollIntoView()")
        opened.wait_for_timeout(1000)
        opened.screenshot(path=PICTURES / "report.png")
        browser.close()


def main() -> None:
    reproduction, *runs = sys.argv[1:]
    (DOCS / "commands.md").write_text(commands(), encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        growth(Path(name))
        fill_pages(Path(name), Path(reproduction).resolve())
        fill_readme()
        if runs:
            picture(runs, Path(name))


if __name__ == "__main__":
    main()
