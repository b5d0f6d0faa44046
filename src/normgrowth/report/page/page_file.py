"""`Page`: what `normgrowth.report` returns."""

from dataclasses import dataclass
from html import escape
from pathlib import Path


@dataclass(frozen=True)
class Page:
    """The path of an HTML page; a notebook displays the page."""

    path: Path

    def _repr_html_(self) -> str:
        text = escape(self.path.read_text(encoding="utf-8"))
        return f'<iframe sandbox="allow-scripts" width="100%" height="800" srcdoc="{text}"></iframe>'
