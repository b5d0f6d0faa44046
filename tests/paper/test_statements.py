"""The list of statements: every line is covered by something that exists, or says why not."""

import re
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from normgrowth.paper.claims import CLAIMS
from normgrowth.paper.discrepancies.caveats import CAVEATS
from normgrowth.paper.discrepancies.departures import DEPARTURES
from normgrowth.paper.discrepancies.errata import ERRATA
from normgrowth.paper.published.tables import TABLES
from normgrowth.paper.reproduction import Check, Judgment, Verdict
from normgrowth.paper.statements import DISCREPANCIES, statements

ROOT = Path(__file__).parents[2]
ALL = statements()
KNOWN = {"erratum": ERRATA, "departure": DEPARTURES, "caveat": CAVEATS}


def test_there_are_about_150_different_ones():
    assert 140 <= len(ALL) <= 180
    assert max(Counter(one.statement for one in ALL).values()) == 1


@pytest.mark.parametrize("one", ALL, ids=lambda one: f"{one.where} {one.statement}"[:60])
def test_a_statement_is_covered_by_what_exists(one):
    assert one.where
    assert len(one.statement.split()) < 20
    assert set(one.claims) <= CLAIMS.keys()
    for kind, known in KNOWN.items():
        assert set(one.ids(kind)) <= known.keys()
    assert set(one.ids("published")) <= TABLES.keys()
    for place in one.ids("test"):
        path, _, function = place.partition("::")
        assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8")
    assert one.verdict in ("", *get_args(Verdict))
    decided = one.claims or any(one.ids(kind) for kind in DISCREPANCIES)
    if not decided:
        assert one.verdict  # nothing else gives it one
    assert all((ROOT / page).is_file() for page in re.findall(r"docs/[\w/]+\.md", one.reason))
    if not one.by:
        assert one.verdict in ("not measured here", "not shown")
        assert one.reason


def test_every_claim_and_discrepancy_covers_a_statement():
    assert {name for one in ALL for name in one.claims} == CLAIMS.keys()
    for kind, known in KNOWN.items():
        assert {name for one in ALL for name in one.ids(kind)} == known.keys()


def test_verdicts_come_from_the_judgments():
    texts = {"where": "", "statement": "", "published": "", "rule": "", "reason": ""}
    claims = {name: Judgment(id=name, verdict="not shown", **texts) for name in CLAIMS}
    checks = {
        name: Check(id=name, where="", stated="", correct="", differs=True)
        for name in (*ERRATA, *DEPARTURES, *CAVEATS)
    }
    by_statement = {one.statement: one.judged(claims, checks) for one in ALL}
    assert by_statement["T5's norm follows √t"] == "not shown"
    assert by_statement["The saturated network is the limit of f(x; cθ)"] == "erratum confirmed"
    assert by_statement["Step sizes go as η‖θ‖"] == "not shown; erratum confirmed"
    assert by_statement["Ties in an argmax head give the mean of the tied entries"] == "holds"
