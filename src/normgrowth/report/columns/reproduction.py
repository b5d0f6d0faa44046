"""A reproduction: claims with their verdicts, Table 1, errata and departures."""

from collections.abc import Sequence

from normgrowth.paper.reproduction import Check, Judgment, TableRow
from normgrowth.report.sentences.reproduction import DIFFERS, measured_numbers
from normgrowth.report.table_columns import PAGE_ONLY, Column, numbers, words

# The CSS classes of verdicts; other verdicts are styled as open.
VERDICT_CSS = {"holds": "holds", "holds in part": "part", "does not hold": "fails"}


def claim_columns(claims: Sequence[Judgment]) -> list[Column]:
    published = [f"{one.published} ({one.source})" if one.source else one.published for one in claims]
    looks = [VERDICT_CSS.get(claim.verdict, "open") for claim in claims]
    return [
        words("claim", [claim.id for claim in claims]),
        words("in the paper", [claim.where for claim in claims], 1),
        words("statement", [claim.statement for claim in claims], PAGE_ONLY),
        words("published", published, PAGE_ONLY, classes=["published"] * len(claims)),
        words("verdict", [claim.verdict for claim in claims], widest=0.2, classes=looks),
        words("why", [claim.reason for claim in claims], widest=0.8),
    ]


def degree_columns(rows: Sequence[TableRow]) -> list[Column]:
    """Table 1: the degrees printed in the paper, computed, and measured by scaling the weights."""
    equal = [row.printed in (None, row.computed) for row in rows]
    return [
        words("component", [row.component for row in rows]),
        Column("printed", [_degree(row.printed) for row in rows], classes=["published"] * len(rows)),
        Column(
            "degree,\ncomputed",
            [_degree(row.computed) for row in rows],
            classes=["holds" if one else "fails" for one in equal],
        ),
        numbers("measured, slope\nof log‖f(cθ)‖", [row.measured for row in rows], "{:.4f}".format),
    ]


def check_columns(checks: Sequence[Check]) -> list[Column]:
    """Errata, departures or caveats."""
    looks = ["fails" if one.differs else "open" for one in checks]
    return [
        words("id", [one.id for one in checks]),
        words("where", [one.where for one in checks], PAGE_ONLY),
        words(
            *("paper or code", [one.stated for one in checks], 1),
            widest=0.3,
            classes=["published"] * len(checks),
        ),
        words("correct", [one.correct for one in checks], PAGE_ONLY),
        words("here", [DIFFERS[one.differs] for one in checks], widest=0.2, classes=looks),
        words("measured", [measured_numbers(one.measured) or one.reason for one in checks]),
    ]


def _degree(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
