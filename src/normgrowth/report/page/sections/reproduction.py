"""The page on a reproduction: claims with verdicts, the paper's figures, Table 1, errata and departures."""

from collections.abc import Sequence
from dataclasses import replace

from normgrowth.paper.reproduction import Reproduction, TableRow
from normgrowth.report.columns.reproduction import check_columns, claim_columns, degree_columns
from normgrowth.report.page.content import Content
from normgrowth.report.page.pieces import Picture, Section
from normgrowth.report.page.run_tables import counted_notes
from normgrowth.report.sentences.reproduction import measured_numbers, verdict_sentences
from normgrowth.report.table_columns import Table, words
from normgrowth.text import visible


def summary(content: Content) -> list[str]:
    said = [visible(text) for result in content.results(Reproduction) for text in verdict_sentences(result)]
    return [*said, *counted_notes(content.runs)] if said else []


def sections(content: Content) -> list[Section]:
    return [
        section
        for place, result in enumerate(content.results(Reproduction))
        for section in _sections(result, content.pictures, place)
    ]


def _sections(result: Reproduction, pictures: Sequence[Picture], place: int) -> list[Section]:
    """The sections of one reproduction. place: its index on the page."""
    note = "Gray: published by the authors. Each verdict follows from the measured numbers by the rule of its claim."
    tables = [Table("Claims", claim_columns(result.claims)), _grounds(result)]
    found = [Section("claims", "The claims", items=tables, notes=[note])]
    if pictures:
        colors = "Gray: published. Colors: measured here. Values derived from published numbers are labeled as derived."
        found.append(Section("figures", "The figures", [colors], pictures))
    if result.table1:
        found.append(_table1(result.table1))
    if result.errata or result.departures or result.caveats:
        given = {"Errata": result.errata, "Departures": result.departures, "Caveats": result.caveats}
        items = [Table(title, check_columns(checks)) for title, checks in given.items() if checks]
        found.append(Section("errata", "Errors in the paper and in its code", items=items))
    return [replace(section, id=f"{section.id}-{place}") for section in found] if place else found


def _grounds(result: Reproduction) -> Table:
    """What each verdict is based on: a table of its own, since one with all columns is wider than the page."""
    claims = result.claims
    return Table(
        "Rules, numbers, limits and commands of the verdicts",
        [
            words("claim", [claim.id for claim in claims]),
            words("rule", [claim.rule for claim in claims]),
            words("measured here", [measured_numbers(claim.measured) for claim in claims]),
            words("scope", [claim.scope for claim in claims]),
            words("data", [claim.data for claim in claims]),
            words("what would change it", [claim.would_change for claim in claims]),
            words("command", [result.command(claim) for claim in claims]),
        ],
    )


def _table1(rows: Sequence[TableRow]) -> Section:
    """The degrees printed in the paper, computed, and measured by scaling the weights."""
    printed = [row for row in rows if row.printed is not None]
    wrong = sum(row.printed != row.computed for row in printed)
    said = f"{len(printed)} rows are from the paper; {wrong} of them differ from the computed degree."
    table = Table("Degrees", degree_columns(rows))
    return Section("table1", "Table 1: degrees of homogeneity", [said], [table])
