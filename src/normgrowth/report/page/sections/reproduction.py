"""Claims with their verdicts, errata, and the paper's figures: published, measured here and derived kept apart."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite, nan
from typing import Any

from normgrowth.records import Records
from normgrowth.report.page.pieces import Picture, Section, Table, column, words
from normgrowth.report.wording import number, visible

CLAIMS = "claims.json"
LOOKS = {
    "holds": "holds",
    "in part": "part",
    "does not hold": "fails",
    "undecided": "open",
    "needs weights that are not here": "open",
}
TABLE1 = "table1: "
FAILS = {True: "fails", False: "does not fail here", None: "not measured"}
Facts = Mapping[str, Any]
MEASURED = {...: (float, None)}
CLAIM = {
    **dict.fromkeys(("id", "where", "statement", "published", "rule", "verdict", "reason"), str),
    "source?": str,
    "measured": MEASURED,
}
ERRATUM = {
    **dict.fromkeys(("id", "kind", "where", "printed", "true", "why"), str),
    "fails": (bool, None),
    "measured": MEASURED,
}
PAPER = {"claims": [CLAIM], "errata?": [ERRATUM], "stages?": {...: str}}  # what a reader needs of claims.json


def paper_sentences(paper: Facts) -> list[str]:
    if not paper["claims"]:
        return ["No claim was asked for."]
    counts = Counter(claim["verdict"] for claim in paper["claims"])
    said = ", ".join(
        f"{counts[verdict]} {_verb(verdict, counts[verdict])}" for verdict in LOOKS if counts[verdict]
    )
    stages = [
        f"{name} ({why.removeprefix('failed: ')})" for name, why in _stages(paper) if why.startswith("failed")
    ]
    failed = (
        [f"Stages that failed, whose claims are undecided: {', '.join(map(visible, stages))}."]
        if stages
        else []
    )
    named = [
        f"{verdict.capitalize()}: {', '.join(visible(c['id']) for c in paper['claims'] if c['verdict'] == verdict)}."
        for verdict in LOOKS
        if counts[verdict]
    ]
    return [
        f"Of {len(paper['claims'])} claims of the paper, judged on what was run here: {said}.",
        *named,
        *failed,
    ]


def _verb(verdict: str, count: int) -> str:
    plural = {
        "holds": "hold",
        "in part": "hold in part",
        "does not hold": "do not hold",
        "needs weights that are not here": "need weights that are not here",
    }
    single = {"in part": "holds in part"}
    return (plural if count > 1 else single).get(verdict, verdict)


def _stages(paper: Facts) -> list[tuple[str, str]]:
    return [(str(name), str(how)) for name, how in paper.get("stages", {}).items()]


def paper_sections(
    paper: Facts, pictures: Sequence[Picture] = (), theory: Sequence[Records] = (), place: int = 0
) -> list[Section]:
    """place: of several."""
    claims, errata = paper["claims"], paper.get("errata", [])
    verdicts = [claim["verdict"] for claim in claims]
    table = Table(
        "Claims",
        [
            words("claim", [claim["id"] for claim in claims]),
            words("in the paper", [claim["where"] for claim in claims]),
            words("statement", [claim["statement"] for claim in claims]),
            words("published", [_published(claim) for claim in claims], ["published"] * len(claims)),
            words("verdict here", verdicts, [LOOKS.get(verdict, "open") for verdict in verdicts]),
            words("why", [claim["reason"] for claim in claims]),
            words("measured here", [_numbers(claim["measured"]) for claim in claims]),
            words("rule", [claim["rule"] for claim in claims]),
        ],
    )
    note = "Grey: published by the authors. Verdicts are computed from records of what was run here by the rule beside."
    found = [Section("claims", "The claims", items=[table], notes=[note])]
    if pictures:
        colours = (
            "Grey is published; colours are measured here; what is derived from published numbers says so."
        )
        found.append(Section("figures", "The figures", [colours], pictures))
    found += [_degrees(records) for records in theory]
    if errata:
        found.append(_errata(errata))
    return [replace(section, id=f"{section.id}-{place}") for section in found] if place else found


def _published(claim: Facts) -> str:
    """With where it is from: printed, a figure, or derived from one."""
    return f"{claim['published']} ({claim['source']})" if claim.get("source") else str(claim["published"])


def _degrees(theory: Records) -> Section:
    """Table 1 of the paper: what is printed, what the calculus says, and what a growing network shows."""
    rows: dict[str, dict[str, float]] = {}
    for row in theory.table.to_pylist():
        if row["run"].startswith(TABLE1):
            rows.setdefault(row["run"].removeprefix(TABLE1), {})[row["quantity"]] = row["value"]
    printed = [values.get("printed", nan) for values in rows.values()]
    wrong = [
        p != values.get("degree", nan) and isfinite(p)
        for p, values in zip(printed, rows.values(), strict=True)
    ]
    shown = [f"{p:.0f}" if isfinite(p) else "-" for p in printed]
    columns = [
        words("component", list(rows)),
        words("printed", shown, ["published"] * len(rows)),
        words(
            "degree, computed",
            [f"{values.get('degree', nan):g}" for values in rows.values()],
            ["fails" if one else "holds" for one in wrong],
        ),
        column(
            "measured, slope of log‖f(cθ)‖",
            [v.get("degree_measured", nan) for v in rows.values()],
            lambda x: f"{x:.4f}",
        ),
    ]
    theirs = sum(isfinite(p) for p in printed)
    said = f"{theirs} rows are the paper's, of which {sum(wrong)} differ from what is computed."
    return Section("table1", "Table 1: degrees of homogeneity", [said], [Table("Degrees", columns)])


def _errata(errata: Sequence[Facts]) -> Section:
    said = [FAILS[one["fails"]] for one in errata]
    table = Table(
        "Errata, and departures of the authors' code",
        [
            words("id", [one["id"] for one in errata]),
            words("kind", [one["kind"] for one in errata]),
            words("in the paper", [one["where"] for one in errata]),
            words("printed, or said", [one["printed"] for one in errata], ["published"] * len(errata)),
            words("true, or done", [one["true"] for one in errata]),
            words("here it", said, ["fails" if one["fails"] else "open" for one in errata]),
            words("measured here", [_numbers(one["measured"]) or one["why"] for one in errata]),
        ],
    )
    return Section("errata", "Where print and code are wrong", items=[table])


def _numbers(measured: Facts) -> str:
    return "; ".join(f"{name} {number(value, 3)}" for name, value in measured.items() if value is not None)
