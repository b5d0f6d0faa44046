"""Every measurable statement of the paper, one line each in `statements.tsv`, and what covers it.

where       section, figure or footnote
statement   what the paper says, in short
by          what covers it: ids of claims, erratum:ID, departure:ID, caveat:ID, published:TABLE, test:FILE::FUNCTION;
            "-" for nothing
verdict     one of the five verdicts; empty if it is the verdict of the claims and discrepancies in `by`
reason      why the verdict differs from that of the whole claim, or why nothing is measured
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from normgrowth.paper.reproduction import Check, Judgment

DISCREPANCIES = ("erratum", "departure", "caveat")


@dataclass(frozen=True)
class Statement:
    """A line of statements.tsv."""

    where: str
    statement: str
    by: tuple[str, ...]
    verdict: str
    reason: str

    @property
    def claims(self) -> tuple[str, ...]:
        """The ids of the claims that cover the statement."""
        return tuple(one for one in self.by if ":" not in one)

    def ids(self, kind: str) -> tuple[str, ...]:
        """The references of one kind: ids of errata ("erratum"), tables ("published"), functions ("test")."""
        return tuple(one.partition(":")[2] for one in self.by if one.startswith(f"{kind}:"))

    def judged(self, claims: Mapping[str, Judgment], checks: Mapping[str, Check]) -> str:
        """The verdict and its reason: from this line, or else from the claims and discrepancies that cover it."""
        if self.verdict:
            return f"{self.verdict}{f': {self.reason}' if self.reason else ''}"
        found = [claims[name].verdict for name in self.claims]
        for kind in DISCREPANCIES:
            for name in self.ids(kind):
                shown = {True: "confirmed", False: "not confirmed", None: "not measured here"}
                found.append(f"{kind} {shown[checks[name].differs]}")
        return "; ".join(dict.fromkeys(found))


def statements() -> tuple[Statement, ...]:
    """All statements, in the order of the paper."""
    text = (files("normgrowth.paper") / "statements.tsv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    return tuple(
        Statement(**{**row, "by": tuple(one for one in row["by"].split() if one != "-")}) for row in rows
    )
