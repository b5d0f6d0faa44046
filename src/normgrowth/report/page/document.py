"""Sections -> one HTML file.

BokehJS (1.4 MB with its plotting interface) draws the charts. Plotly's bundle has 4.8 MB; Vega's is a third smaller
than Bokeh's but cannot defer a thousand curves until the reader selects them. The scripts of the installed package are
part of the page, so that it needs no network. A content security policy allows only these scripts, by their hashes,
and no requests. So a name could not run code even if its escaping failed.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from normgrowth.errors import InputError
from normgrowth.report.page.packing import POINTS, packed
from normgrowth.report.page.pieces import Chart, Map, Picture, Section
from normgrowth.report.table_columns import Table
from normgrowth.text import visible
from normgrowth.workspace import origin_mark, refuse_foreign, replacing

LIBRARY = ("bokeh.min.js", "bokeh-api.min.js")
GENERATOR = '<meta name="generator" content="normgrowth">'
LARGEST = 6_000_000  # bytes of one page
THINNED = "Long curves are thinned to the resolution of a screen; the records contain every value."
LONG = 60  # characters; longer cells get a wide column
MOST = 40  # entries of a list or an object in the facts; longer ones are cut
Item = Chart | Map | Table | Picture


@dataclass(frozen=True)
class Document:
    """What a page shows. summary, table, notes: sentences, a table and small print at the top.

    facts: versions and settings. runs: labels of overlaid runs.
    """

    title: str
    sections: Sequence[Section]
    summary: Sequence[str] = ()
    table: Table | None = None
    notes: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    runs: Sequence[str] = ()


def write_page(path: Path, document: Document) -> Path:
    refuse_foreign(path, GENERATOR.encode())
    for points in (POINTS, POINTS // 4, POINTS // 16):
        made = page(document, points=points).encode()
        if len(made) <= LARGEST:
            break
    else:
        raise InputError(
            f"{path}: the page would have {len(made) / 1e6:.1f} MB, more than {LARGEST / 1e6:.0f} MB; "
            "report fewer folders at once"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_bytes(made)
    return path


def page(document: Document, *, points: int = POINTS) -> str:
    """The HTML text of the page. points: the maximum number of points in one chart."""
    title, sections = text(document.title), document.sections
    drawn = [item for section in sections for item in section.items if isinstance(item, Chart | Map)]
    scripts = [*library(), _own("page.js")] if drawn else [_own("page.js")]
    data = packed(drawn, document.runs, points)
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts
    )
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:"
    policy += "; base-uri 'none'; form-action 'none'"
    head = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        GENERATOR,
        f'<meta name="source" content="{origin_mark(source)}">'
        if (source := document.facts.get("folders"))
        else "",
        f"<title>{title}</title><style>{_own('page.css')}</style></head><body>",
    ]
    nav = "".join(f'<a href="#{section.id}">{text(section.title)}</a>' for section in sections)
    top = [
        '<a class="skip" href="#main">Skip to content</a><header>',
        f'<div class="top"><h1>{title}</h1>',
        '<button id="theme" type="button" aria-pressed="false" hidden>Dark theme</button></div>',
        f'<nav aria-label="sections">{nav}</nav></header>',
        '<div id="choices" role="group" aria-label="for all charts"></div><main id="main">',
        _table(document.table) if document.table else "",
        "".join(f'<p class="note">{text(note)}</p>' for note in document.notes),
        "".join(f"<p>{text(sentence)}</p>" for sentence in document.summary),
    ]
    body = [_section(section) for section in sections]
    end = [
        f'<p class="note">{THINNED}</p>' if drawn else "",
        _facts(document.facts),
        '</main><noscript><p class="note">The charts need JavaScript; tables and sentences do not.</p></noscript>',
        f'<script type="application/json" id="data">{_inert(data)}</script>',
        *(f"<script>{script}</script>" for script in scripts),
        "</body></html>\n",
    ]
    return "\n".join([*head, *top, *body, *end])


def library() -> list[str]:
    """The scripts of BokehJS, from the installed package."""
    try:
        folder = files("bokeh") / "server" / "static" / "js"
        return [_whole((folder / name).read_text(encoding="utf-8")) for name in LIBRARY]
    except (ImportError, OSError):
        raise InputError(
            "the HTML report needs BokehJS; install it with `pip install 'bokeh>=3.4'`"
        ) from None


def _own(name: str) -> str:
    return _whole((files("normgrowth.report.page") / name).read_text(encoding="utf-8"))


def _whole(script: str) -> str:
    """The script, with sequences that would end its HTML element escaped."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _inert(data: str) -> str:
    """The JSON, with all characters that HTML interprets escaped."""
    return data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def text(words: object) -> str:
    """Any object as escaped HTML text without control characters."""
    return escape(visible(words))


def _section(section: Section) -> str:
    parts = [f'<section id="{section.id}" aria-labelledby="{section.id}-title">']
    parts.append(f'<h2 id="{section.id}-title">{text(section.title)}</h2>')
    parts += [f"<p>{text(sentence)}</p>" for sentence in section.sentences]
    parts += [_item(item) for item in section.items]
    parts += [f'<p class="note">{text(note)}</p>' for note in section.notes]
    return "\n".join([*parts, "</section>"])


def _item(item: Item) -> str:
    if isinstance(item, Table):
        return _table(item)
    if isinstance(item, Picture):
        source = base64.b64encode(item.svg).decode()
        image = f'<img alt="{text(item.alt)}" src="data:image/svg+xml;base64,{source}">'
        return f'<figure id="{item.id}"><figcaption>{text(item.title)}</figcaption>{image}</figure>'
    kind = " map" if isinstance(item, Map) else ""
    return (
        f'<figure id="{item.id}"><figcaption>{text(item.title)}</figcaption>'
        f'<div class="plot{kind}" role="group" aria-label="{text(item.title)}. {text(item.alt)}"></div>'
        f'<p class="alt">{text(item.alt)}</p></figure>'
    )


def _table(table: Table) -> str:
    heads = "".join(
        f'<th scope="col"{" data-numeric" if c.values is not None else ""}>{text(c.heading)}</th>'
        for c in table.shown
    )
    count = max((len(c.cells) for c in table.shown), default=0)
    rows = "".join(f"<tr>{''.join(_cells(table, i))}</tr>" for i in range(count))
    return (
        f'<h3>{text(table.title)}</h3><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{text(table.title)}"><table class="sortable"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cells(table: Table, row: int) -> Iterable[str]:
    for column in table.shown:
        shown = text(column.cells[row])
        if column.values is not None:
            yield f'<td class="number" data-value="{column.values[row]:.7g}">{shown}</td>'
            continue
        names = [*column.classes[row : row + 1], *(["long"] if len(column.cells[row]) > LONG else [])]
        yield f'<td class="{escape(" ".join(names))}">{shown}</td>' if names else f"<td>{shown}</td>"


def _shortened(value: Any) -> Any:
    """The value with long lists and objects cut."""
    if isinstance(value, Mapping):
        kept = {str(key): _shortened(one) for key, one in list(value.items())[:MOST]}
        return kept | ({"…": f"{len(value) - MOST} more"} if len(value) > MOST else {})
    if isinstance(value, list | tuple):
        rest = [f"… {len(value) - MOST} more"] if len(value) > MOST else []
        return [*map(_shortened, value[:MOST]), *rest]
    return value


def _facts(facts: Mapping[str, Any]) -> str:
    if not facts:
        return ""
    said = json.dumps(_shortened(facts), indent=1, ensure_ascii=False, default=str)
    lines = "\n".join(text(line) for line in said.splitlines())
    return (
        '<section id="made"><h2>How this page was made</h2><details><summary>commands, versions and settings</summary>'
        f'<pre tabindex="0">{lines}</pre></details></section>'
    )
