"""Write measured tables, between marks in the text, and pictures to the pages in docs/."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from normgrowth.report.figures.style import style

ROOT = Path(__file__).parent.parent
DOCS, PICTURES = ROOT / "docs", ROOT / "docs" / "pictures"


def fill(page: Path, sections: Mapping[str, str]) -> None:
    """Replace the text from <!-- name --> to <!-- end of name --> for each name."""
    text = page.read_text(encoding="utf-8")
    for name, made in sections.items():
        start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        if start not in text or end not in text:
            raise SystemExit(f"{page.name} has no place for {name}")
        text = re.sub(f"{start}.*?{end}", lambda _, new=f"{start}\n{made}\n{end}": new, text, flags=re.S)
    page.write_text(text, encoding="utf-8")


def picture(figure: Figure, name: str) -> None:
    PICTURES.mkdir(exist_ok=True)
    with style():  # fixes the ids in the file, so that equal pictures give equal files
        figure.savefig(PICTURES / f"{name}.svg", format="svg", metadata={"Date": None})


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
