"""Results as the text of golden files: what the terminal prints, and what the HTML page shows, without its markup."""

import io
from pathlib import Path

from golden.examples import EXAMPLES
from rich.console import Console

from normgrowth.report import renderers as dispatch
from normgrowth.report.page.content import PageEntry, content_of
from normgrowth.report.page.pieces import Chart, ChartCurve, Map, Picture, Section
from normgrowth.report.page.summary import parameter_notes, summary_sentences, summary_table
from normgrowth.report.page.write import sections_of
from normgrowth.report.table_columns import Table
from normgrowth.results import Result

FOLDER = Path(__file__).parent
WIDTH = 100


def _terminal(result: Result) -> str:
    file = io.StringIO()
    dispatch.show(result, Console(file=file, width=WIDTH, force_terminal=False, force_jupyter=False))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def _page(result: Result) -> str:
    content = content_of([PageEntry("example", result)])
    table = summary_table(content)
    lines = [*(_rows(table) if table else []), *parameter_notes(content), *summary_sentences(content), ""]
    for section in sections_of(content):
        lines += _section(section)
    return "\n".join(lines).rstrip()


def _section(section: Section) -> list[str]:
    lines = [f"## {section.title}", *section.sentences]
    for item in section.items:
        lines += ["", f"[{type(item).__name__.lower()}] {item.title}"]
        if isinstance(item, Table):
            lines += _rows(item)
            continue
        lines.append(item.alt)
        if isinstance(item, Picture):
            continue
        lines.append(f"x: {item.x.label}; y: {item.y.label}{', logarithmic' if item.y.log else ''}")
        lines += [f"y = {mark.y:g}: {mark.label}" for mark in item.marks] if isinstance(item, Chart) else []
        if isinstance(item, Map):
            lines += [" | ".join(row) for row in item.texts]
        lines += [_curve(curve) for curve in item.curves]
    return [*lines, *(f"note: {note}" for note in section.notes), ""]


def _rows(table: Table) -> list[str]:
    cells = [[column.heading, *column.cells] for column in table.shown]
    return [" | ".join(row) for row in zip(*cells, strict=True)]


def _curve(curve: ChartCurve) -> str:
    shown = "" if curve.shown else ", hidden at first"
    ends = f"{curve.y[0]:.4g} to {curve.y[-1]:.4g}" if len(curve.y) else "empty"
    note = f", {curve.note}" if curve.note else ""
    return f"- {curve.label}{note} ({curve.provenance}{shown}): {len(curve.y)} points, {ends}"


RENDERERS = {"terminal": _terminal, "page": _page}


def golden_file(kind: str, renderer: str) -> Path:
    return FOLDER / f"{kind}.{renderer}.txt"


def rendered(kind: str, renderer: str) -> str:
    """All examples of a kind, each below its name."""
    parts = [f"=== {name}\n{RENDERERS[renderer](make())}\n" for name, make in EXAMPLES[kind].items()]
    return "\n".join(parts)
