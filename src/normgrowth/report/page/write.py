"""Results -> sections, by their types -> one HTML file."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from normgrowth.errors import InputError
from normgrowth.measurements import is_named
from normgrowth.report.page.collect import Given, collect
from normgrowth.report.page.content import Content, content_of
from normgrowth.report.page.document import Document, write_page
from normgrowth.report.page.page_file import Page
from normgrowth.report.page.pieces import Section
from normgrowth.report.page.summary import (
    ORDER,
    parameter_notes,
    section_file,
    summary_sentences,
    summary_table,
)
from normgrowth.results import Provenance, Result, to_plain
from normgrowth.text import labels
from normgrowth.workspace import refuse_other_origin

PAGE = "report.html"


def write_results(
    results: Given | Sequence[Given],
    path: Path | str | None = None,
    *,
    title: str = "",
    fit: bool = True,
    overwrite: bool = False,
) -> Page:
    # A result may itself be a sequence, as Findings is.
    given = [results] if isinstance(results, Result | str | Path) else list(results)
    if not given:
        raise InputError("nothing to report: give at least one result or folder")
    target = _default(given) if path is None else Path(path)
    origin = _origin(given)
    if path is not None and not overwrite:
        refuse_other_origin(target, origin)
    content = content_of(collect(given), fitted=fit)
    names = ", ".join(entry.label for entry in content.entries[:3])
    facts = {"versions": Provenance.now().versions, "folders": origin}
    return Page(write_content(content, target, title=title or f"normgrowth: {names}", facts=facts))


def write_content(content: Content, path: Path, *, title: str, facts: Mapping[str, object]) -> Path:
    """Write the page. facts: versions and sources; the fields of each result are added."""
    if not (sections := sections_of(content)):
        labels = ", ".join(entry.label for entry in content.entries)
        raise InputError(f"{labels}: nothing to report: no runs, networks or sweeps in these results")
    fields = {entry.label: to_plain(entry.result) for entry in content.entries}
    document = Document(
        title,
        sections,
        summary_sentences(content),
        summary_table(content),
        parameter_notes(content),
        {**facts, "records": fields},
        [run.label for run in content.runs],
    )
    return write_page(path, document)


def sections_of(content: Content) -> list[Section]:
    return [section for kind in ORDER for section in section_file(kind).sections(content)]


def _default(given: Sequence[Given]) -> Path:
    """report.html in the first folder, or in the current directory if the first input is not a folder."""
    first = given[0]
    return Path(PAGE) if isinstance(first, Result) or is_named(first) else Path(first) / PAGE


def _origin(given: Sequence[Given]) -> str:
    """The names of all inputs, and a digest of their full paths."""
    names, identities = [], []
    short = iter(labels([one for one in given if not isinstance(one, Result) and not is_named(one)]))
    for one in given:
        if isinstance(one, Result):
            names.append(one.kind)
            identities.append(f"{one.kind} of {getattr(one, 'source', '')}")
        elif is_named(one):
            names.append(str(one))
            identities.append(str(one))
        else:
            names.append(next(short))
            identities.append(str(Path(one).resolve()))
    digest = hashlib.sha256("\n".join(identities).encode("utf-8", "surrogateescape")).hexdigest()
    return ",".join([*names, digest[:8]])
