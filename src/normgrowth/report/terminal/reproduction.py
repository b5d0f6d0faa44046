"""The claims of a paper in the terminal: a row for each, what decided it, and how many of which verdict."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from normgrowth.report.terminal.console import Cells, new_console, say, show
from normgrowth.report.wording import number

if TYPE_CHECKING:
    from rich.console import Console


def print_claims(claims: Sequence[Mapping[str, Any]], console: "Console | None" = None) -> None:
    """claims: id, where, verdict and reason of each."""
    console = console or new_console()
    columns = [
        Cells("claim", [claim["id"] for claim in claims], right=False),
        Cells("in the paper", [claim["where"] for claim in claims], 1, right=False),
        Cells("verdict", [claim["verdict"] for claim in claims], right=False, widest=0.2),
        Cells("why", [claim["reason"] for claim in claims], right=False, widest=0.8),
    ]
    show(console, columns)
    counts = Counter(claim["verdict"] for claim in claims)
    say(console, ", ".join(f"{verdict}: {count}" for verdict, count in counts.items()), "bold")


TITLES = {
    "erratum": "What is printed, against what is measured",
    "departure": "Where the authors' code departs from their text, against what is measured",
}


def print_errata(errata: Sequence[Mapping[str, Any]], console: "Console | None" = None) -> None:
    """What is printed, and then what the authors' code does, against what is measured."""
    console = console or new_console()
    for kind, title in TITLES.items():
        own = [one for one in errata if one["kind"] == kind]
        if own:
            say(console, title, "bold")
            _print_kind(kind, own, console)


def _print_kind(kind: str, errata: Sequence[Mapping[str, Any]], console: "Console") -> None:
    numbers = [
        "; ".join(
            f"{name} {number(value, 3)}" for name, value in one["measured"].items() if value is not None
        )
        for one in errata
    ]
    fails = {True: "fails", False: "does not fail here", None: "not measured"}
    columns = [
        Cells(kind, [one["id"] for one in errata], right=False),
        Cells("printed, or done", [one["printed"] for one in errata], 1, right=False, widest=0.3),
        Cells("here", [fails[one["fails"]] for one in errata], right=False, widest=0.2),
        Cells(
            "measured", [said or one["why"] for said, one in zip(numbers, errata, strict=True)], right=False
        ),
    ]
    show(console, columns)
