"""The top of the page: a table with one row per result, and at most five sentences."""

from itertools import zip_longest
from typing import Any

from normgrowth.paper.reproduction import Reproduction
from normgrowth.report.numbers import percent, times
from normgrowth.report.page.content import Content
from normgrowth.report.page.pieces import SummaryRow
from normgrowth.report.page.run_tables import counted_notes
from normgrowth.report.renderers import view
from normgrowth.report.table_columns import Table, numbers, words

MOST = 5  # sentences; the sections have all of them
# The order of the sections. Each kind of result has its file in `report.page.sections`.
ORDER = (
    *("reproduction", "trace", "fits", "dynamics", "comparison", "run", "saturation", "heads"),
    *("degrees", "scaling", "behavior", "sweep", "parameters", "findings"),
)
# The order of the sentences: causes and verdicts before descriptions.
IMPORTANCE = ("comparison", "dynamics", "scaling", "behavior", "sweep", "trace", "fits", "heads")


def section_file(kind: str) -> Any:
    """The module with the sections of a kind of result."""
    module = view("page.sections", kind)
    assert module is not None, f"report/page/sections/{kind}.py is missing"
    return module


def summary_table(content: Content) -> Table | None:
    """One row per result, without columns that would be empty. A reproduction has its claims instead."""
    if content.of(Reproduction):
        return None
    rows: list[SummaryRow] = [
        row
        for kind in ORDER
        if hasattr(section_file(kind), "rows")
        for row in section_file(kind).rows(content)
    ]
    if not rows:
        return None
    columns = [
        words("result", [row.result for row in rows]),
        words("command", [row.kind for row in rows]),
        words("steps", [row.steps for row in rows], 1),
        words("norm, first → last", [row.norm for row in rows], 1),
        numbers("factor", [row.factor for row in rows], lambda x: f"×{times(x)}", 1, missing=""),
        numbers("growth by steps", [row.by_steps for row in rows], percent, 1, missing=""),
        words("layer that grew most", [row.most for row in rows], 1),
        words("best law", [row.law for row in rows], 1),
        words("main result", [row.found for row in rows], 1),
    ]
    return Table("Summary", columns)


def summary_sentences(content: Content) -> list[str]:
    """At most five sentences: first one of each kind of result, then further ones; the last is on lint."""
    if content.of(Reproduction):
        return [text for kind in ("reproduction", "findings") for text in section_file(kind).summary(content)]
    by_kind = [section_file(kind).summary(content) for kind in IMPORTANCE]
    said = [text for texts in zip_longest(*by_kind) for text in texts if text]
    lint = section_file("findings").summary(content)
    return [*said[: MOST - len(lint)], *lint]


def parameter_notes(content: Content) -> list[str]:
    """Which parameters the norms of the page count."""
    return [] if content.of(Reproduction) else counted_notes(content.runs)
