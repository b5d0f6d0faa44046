"""The page on a reproduction: claims with verdicts, the paper's figures, Table 1, errata and departures."""

from collections.abc import Sequence
from dataclasses import replace
from math import nan

from normgrowth.paper.reproduction import Check, Judgment, Reproduction, TableRow
from normgrowth.report.page.content import Content
from normgrowth.report.page.pieces import Picture, Section, Table, column, words
from normgrowth.report.page.run_tables import counted_notes
from normgrowth.report.sentences.reproduction import DIFFERS, measured_numbers, verdict_sentences
from normgrowth.text import visible

VERDICT_CSS = {
    "holds": "holds",
    "holds in part": "part",
    "does not hold": "fails",
}  # other verdicts are styled as open


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
    tables = [_claims(result.claims), _grounds(result)]
    found = [Section("claims", "The claims", items=tables, notes=[note])]
    if pictures:
        colors = "Gray: published. Colors: measured here. Values derived from published numbers are labeled as derived."
        found.append(Section("figures", "The figures", [colors], pictures))
    if result.table1:
        found.append(_table1(result.table1))
    if result.errata or result.departures or result.caveats:
        tables = [
            ("Errata", result.errata, "printed"),
            ("Departures", result.departures, "done by the code"),
            ("Caveats", result.caveats, "printed"),
        ]
        items = [_checks(title, checks, stated) for title, checks, stated in tables if checks]
        found.append(Section("errata", "Errors in the paper and in its code", items=items))
    return [replace(section, id=f"{section.id}-{place}") for section in found] if place else found


def _claims(claims: Sequence[Judgment]) -> Table:
    published = [
        f"{claim.published} ({claim.source})" if claim.source else claim.published for claim in claims
    ]
    looks = [VERDICT_CSS.get(claim.verdict, "open") for claim in claims]
    return Table(
        "Claims",
        [
            words("claim", [claim.id for claim in claims]),
            words("in the paper", [claim.where for claim in claims]),
            words("statement", [claim.statement for claim in claims]),
            words("published", published, ["published"] * len(claims)),
            words("verdict here", [claim.verdict for claim in claims], looks),
            words("why", [claim.reason for claim in claims]),
        ],
    )


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
    wrong = [row.printed is not None and row.printed != row.computed for row in rows]
    columns = [
        words("component", [row.component for row in rows]),
        words(
            "printed",
            ["-" if row.printed is None else f"{row.printed:.0f}" for row in rows],
            ["published"] * len(rows),
        ),
        words(
            "degree, computed",
            ["-" if row.computed is None else f"{row.computed:g}" for row in rows],
            ["fails" if one else "holds" for one in wrong],
        ),
        column(
            "measured, slope of log‖f(cθ)‖",
            [nan if row.measured is None else row.measured for row in rows],
            lambda x: f"{x:.4f}",
        ),
    ]
    said = f"{len(printed)} rows are from the paper; {sum(wrong)} of them differ from the computed degree."
    return Section("table1", "Table 1: degrees of homogeneity", [said], [Table("Degrees", columns)])


def _checks(title: str, checks: Sequence[Check], stated: str) -> Table:
    return Table(
        title,
        [
            words("id", [one.id for one in checks]),
            words("where", [one.where for one in checks]),
            words(stated, [one.stated for one in checks], ["published"] * len(checks)),
            words("correct", [one.correct for one in checks]),
            words(
                "here",
                [DIFFERS[one.differs] for one in checks],
                ["fails" if one.differs else "open" for one in checks],
            ),
            words("measured here", [measured_numbers(one.measured) or one.reason for one in checks]),
        ],
    )
