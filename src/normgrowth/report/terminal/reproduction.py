"""A reproduction of the paper in the terminal: a row per claim with its verdict, errata and departures."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from normgrowth.paper.reproduction import Judgment, PlannedStage, Reproduction
from normgrowth.report.columns.reproduction import check_columns, claim_columns, degree_columns
from normgrowth.report.sentences.reproduction import failure_sentences
from normgrowth.report.table_columns import words
from normgrowth.report.terminal.console import say, say_remarks, show_table

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
        show_table(console, claim_columns(result.claims))
        _counts(result.claims, console)
    if result.table1 and "table1" in result.only:
        say(console, "Table 1: degrees of homogeneity", "bold")
        show_table(console, degree_columns(result.table1))
    for title, checks in (
        ("Errata: statements that are wrong as printed", result.errata),
        ("Departures: the authors' code against their text", result.departures),
        ("Caveats: limits of statements that are true or assumed", result.caveats),
    ):
        if checks:
            say(console, title, "bold")
            show_table(console, check_columns(checks))
    for stage in result.stages:
        seconds = "" if stage.seconds is None else f", {stage.seconds:.0f} s"
        say(console, f"Stage {stage.name}: {stage.status}{seconds}.")
    _remarks(result, console)


def show_stages(stages: Sequence[PlannedStage], console: "Console") -> None:
    """A row for each stage: what it computes, how long it takes, and the claims that need it."""
    columns = [
        words("stage", [stage.name or "-" for stage in stages]),
        words("computes", [stage.title for stage in stages], widest=0.3),
        words("takes", [stage.takes for stage in stages], widest=0.25),
        words("finished", ["yes" if stage.finished else "no" for stage in stages]),
        words("claims", [", ".join(stage.claims) or "-" for stage in stages], widest=0.3),
    ]
    show_table(console, columns)


def _short(result: Reproduction, console: "Console") -> None:
    """One screen: the three most notable claims and the number of claims with each verdict."""
    notable = sorted(result.claims, key=lambda claim: ORDER.index(claim.verdict))[:SHOWN]
    show_table(console, claim_columns(notable))
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
