"""What README.md shows of commands: run for real, and put between its marks; and the picture of a page.

python benchmarks/readme.py REPRODUCTION RUN...    (folders of `normgrowth reproduce` and of `normgrowth train`)

The series is that of examples/tiny_series.py. The picture needs a browser: playwright and chromium.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pages import PICTURES, ROOT, fill

COLUMNS, MOST = 104, 16  # letters of a line, lines of an output
LLAMA = '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, ' + (
    '"intermediate_size": 128, "vocab_size": 1000, "num_key_value_heads": 4}'
)


def shown(command: str, folder: Path, most: int = MOST) -> str:
    """A command and what it prints, with four blanks before each line."""
    tool = Path(sys.executable).with_name("normgrowth")
    arguments = [str(tool), *shlex.split(command)[1:]]
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "NO_COLOR": "1"}
    found = subprocess.run(
        arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if found.returncode:
        raise SystemExit(f"{command}: {found.stderr}")
    lines = [line.rstrip() for line in found.stdout.splitlines()]
    rest = [f"… ({len(lines) - most} more lines)"] if len(lines) > most + 1 else []
    return "\n".join(
        f"    {line}".rstrip() for line in [f"$ {command}", *lines[: most if rest else None], *rest]
    )


def sections(folder: Path, reproduction: Path) -> dict[str, str]:
    make = [sys.executable, str(ROOT / "examples" / "tiny_series.py"), "checkpoints"]
    subprocess.run(make, cwd=folder, check=True, capture_output=True)
    (folder / "llama.json").write_text(LLAMA)
    shutil.copytree(reproduction, folder / "reproduction", ignore=shutil.ignore_patterns("work"))
    training = [sys.executable, str(ROOT / "examples" / "track_plain.py"), "runs/gpt"]
    subprocess.run(training, cwd=folder, check=True, capture_output=True)

    def together(*commands: str, most: int = MOST) -> str:
        return "\n\n".join(shown(command, folder, most) for command in commands)

    return {
        "trace": together(
            "normgrowth trace checkpoints -o traces/tiny",
            "normgrowth fit traces/tiny",
            "normgrowth report traces/tiny",
            most=16,
        ),
        "watch": together("normgrowth watch runs/gpt/norms --once"),
        "degrees": together("normgrowth degrees llama.json --explain", most=24),
        "reproduce": together("normgrowth reproduce", most=14),
        "saturation": together("normgrowth saturation minilm", "normgrowth heads minilm", most=14),
    }


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
    with tempfile.TemporaryDirectory() as name:
        fill(ROOT / "README.md", sections(Path(name), Path(reproduction).resolve()))
        if runs:
            picture(runs, Path(name))


if __name__ == "__main__":
    main()
