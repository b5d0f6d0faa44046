"""A reproduction of the paper in the terminal: a row per claim with its verdict, errata and departures."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from normgrowth.paper.reproduction import Check, Judgment, PlannedStage, Reproduction, TableRow
from normgrowth.report.sentences.reproduction import DIFFERS, failure_sentences, measured_numbers
from normgrowth.report.terminal.console import Cells, say, say_remarks
from normgrowth.report.terminal.console import show as show_table

if TYPE_CHECKING:
    from rich.console import Console


SHOWN = 3  # claims in the short form
# The verdicts that a reader looks for first.
ORDER = ("does not hold", "not shown", "holds in part", "holds", "not measured here")


def show(result: Reproduction, console: "Console", *, verbose: bool = True) -> None:
    """Print the claims with their verdicts. verbose: all of them, with errata, departures and stages."""
    if not verbose:
        _short(result, console)
        return
    if result.claims:
        _claims(result.claims, console)
        _counts(result.claims, console)
    if result.table1 and "table1" in result.only:
        say(console, "Table 1: degrees of homogeneity", "bold")
        _table1(result.table1, console)
    for title, checks in (
        ("Errata: statements that are wrong as printed", result.errata),
        ("Departures: the authors' code against their text", result.departures),
        ("Caveats: limits of statements that are true or assumed", result.caveats),
    ):
        if checks:
            say(console, title, "bold")
            _checks(checks, console)
    for stage in result.stages:
        seconds = "" if stage.seconds is None else f", {stage.seconds:.0f} s"
        say(console, f"Stage {stage.name}: {stage.status}{seconds}.")
    _remarks(result, console)


def show_stages(stages: Sequence[PlannedStage], console: "Console") -> None:
    """A row for each stage: what it computes, how long it takes, and the claims that need it."""
    columns = [
        Cells("stage", [stage.name or "-" for stage in stages], right=False),
        Cells("computes", [stage.title for stage in stages], right=False, widest=0.3),
        Cells("takes", [stage.takes for stage in stages], right=False, widest=0.25),
        Cells("finished", ["yes" if stage.finished else "no" for stage in stages], right=False),
        Cells("claims", [", ".join(stage.claims) or "-" for stage in stages], right=False, widest=0.3),
    ]
    show_table(console, columns)


def _short(result: Reproduction, console: "Console") -> None:
    """One screen: the three most notable claims and the number of claims with each verdict."""
    notable = sorted(result.claims, key=lambda claim: ORDER.index(claim.verdict))[:SHOWN]
    _claims(notable, console)
    _counts(result.claims, console)
    counted = [
        f"{sum(bool(one.differs) for one in checks)} of {len(checks)} {name} confirmed"
        for checks, name in ((result.errata, "errata"), (result.departures, "departures"))
    ]
    say(console, f"{', '.join(counted)}. `--verbose` prints all of them; the report has the details.")
    _remarks(result, console)


def _remarks(result: Reproduction, console: "Console") -> None:
    for sentence in failure_sentences(result):
        say(console, sentence, "bold")
    say_remarks(console, result)


def _counts(claims: Sequence[Judgment], console: "Console") -> None:
    counts = Counter(claim.verdict for claim in claims)
    said = ", ".join(f"{verdict}: {counts[verdict]}" for verdict in ORDER if counts[verdict])
    say(console, f"{len(claims)} {'claim' if len(claims) == 1 else 'claims'}. {said}.", "bold")


def _claims(claims: Sequence[Judgment], console: "Console") -> None:
    columns = [
        Cells("claim", [claim.id for claim in claims], right=False),
        Cells("in the paper", [claim.where for claim in claims], 1, right=False),
        Cells("verdict", [claim.verdict for claim in claims], right=False, widest=0.2),
        Cells("why", [claim.reason for claim in claims], right=False, widest=0.8),
    ]
    show_table(console, columns)


def _table1(rows: Sequence[TableRow], console: "Console") -> None:
    columns = [
        Cells("component", [row.component for row in rows], right=False),
        Cells("printed", [_number(row.printed) for row in rows]),
        Cells("degree,\ncomputed", [_number(row.computed) for row in rows]),
        Cells("measured, slope\nof log‖f(cθ)‖", [_number(row.measured, ".4f") for row in rows]),
    ]
    show_table(console, columns)


def _number(value: float | None, form: str = "g") -> str:
    return "-" if value is None else format(value, form)


def _checks(checks: Sequence[Check], console: "Console") -> None:
    columns = [
        Cells("id", [one.id for one in checks], right=False),
        Cells("paper or code", [one.stated for one in checks], 1, right=False, widest=0.3),
        Cells("here", [DIFFERS[one.differs] for one in checks], right=False, widest=0.2),
        Cells("measured", [measured_numbers(one.measured) or one.reason for one in checks], right=False),
    ]
    show_table(console, columns)
