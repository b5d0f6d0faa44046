"""Growth laws in a terminal: a table of laws, and what they say in sentences.

Takes the plain values that `Fits.facts()` gives, as it would from a JSON file.
"""

from collections.abc import Mapping, Sequence
from math import inf, isfinite, isnan, nan
from typing import TYPE_CHECKING, Any

from normgrowth.report.terminal.console import Cells, new_console, say, show
from normgrowth.report.wording import number

if TYPE_CHECKING:
    from rich.console import Console

Facts = Mapping[str, Any]

PAPER_LAW = "sqrt"


def print_fit(facts: Facts, title: str = "", console: "Console | None" = None) -> None:
    """One series: a row for each law, then the verdict."""
    console, rows = console or new_console(), facts["laws"]
    if title:
        say(console, title, "bold")
    columns = [
        Cells("law", [row["law"] for row in rows], right=False),
        Cells("formula", [row["formula"] for row in rows], 4, right=False),
        Cells("r²", [_r2(row["r2"]) for row in rows]),
        Cells("error\nahead", [_share(row["ahead"]) for row in rows], 2),
        Cells("AICc", [_tenth(row["aicc"]) for row in rows], 3),
        Cells("ΔAICc, as if\nindependent", [_tenth(row["delta_aicc"]) for row in rows], 1),
        Cells("ΔAICc", [_tenth(row["delta_effective"]) for row in rows]),
        Cells("weight", [f"{row['weight']:.3f}" if isfinite(row["aicc"]) else "-" for row in rows]),
        Cells(f"parameters [{_confidence(facts)}]", [_params(row) for row in rows], right=False),
    ]
    show(console, columns)
    for text in [*verdict(facts), *(f"note: {note}" for note in _notes(facts))]:
        say(console, text)


def print_fits(series: Mapping[str, Facts], title: str = "", console: "Console | None" = None) -> None:
    """Several series: a row for each, with its best law beside the paper's."""
    console = console or new_console()
    facts = list(series.values())
    if title:
        say(console, title, "bold")

    def column(title: str, law: str, key: str, write: Any, rank: int = 0) -> Cells:
        return Cells(
            title, [write(_law(f, f["best"] if law == "best" else law).get(key, nan)) for f in facts], rank
        )

    def exponent(law: str, rank: int) -> Cells:
        rows = [_law(f, law) for f in facts]
        return Cells(f"p of {law}", [_param(row, "p")[2:] if row else "-" for row in rows], rank, right=False)

    columns = [
        Cells("series", list(series), right=False),
        Cells("points", [f"{f['points']:,}" for f in facts], 3),
        Cells("worth", [number(f["effective"], 2) for f in facts], 2),
        Cells("best law", [f["best"] or "-" for f in facts], right=False),
        column("weight", "best", "weight", lambda x: "-" if isnan(x) else f"{x:.2f}"),
        column("r²\nof best", "best", "r2", _r2),
        column("r²\nof sqrt", "sqrt", "r2", _r2),
        column("ΔAICc\nof sqrt", "sqrt", "delta_effective", _tenth, 1),
        column("sqrt, error\nahead", "sqrt", "ahead", _share, 4),
        exponent("power", 1),
        exponent("power2", 2),
    ]
    show(console, columns)
    best = [f["best"] for f in facts if f["best"]]
    counts = {law: best.count(law) for law in dict.fromkeys(best)}
    if counts:
        ranked = sorted(counts.items(), key=lambda item: -item[1])
        said = ", ".join(f"{law} in {count}" for law, count in ranked)
        say(console, f"Most evidence, of {len(facts)} series: {said}.")
        behind = [f for f in facts if _law(f, PAPER_LAW).get("delta_effective", nan) > 2]
        if any(_law(f, PAPER_LAW) for f in facts):
            say(console, f"The paper's law is behind by more than 2 in AICc in {len(behind)}.")
    for name, fact in series.items():
        for note in fact["notes"]:
            say(console, f"note: {name}: {note}")
        if not fact["best"]:
            reason = next((f"not fitted: {row['reason']}" for row in fact["laws"] if row["reason"]), "")
            say(console, f"note: {name}: {reason or verdict(fact)[0]}")


def verdict(facts: Facts) -> list[str]:
    """Which law, by how much, and how far that can be trusted."""
    rows = {row["law"]: row for row in facts["laws"]}
    if not facts["best"]:
        return [f"Too few points to choose a law: {facts['points']}; these laws need {facts['needed']}."]
    sentences = (_evidence, _independence, _ahead, _exponents)
    return [text for sentence in sentences if (text := sentence(facts, rows))]


def _evidence(facts: Facts, rows: Mapping[str, Facts]) -> str:
    best = rows[facts["best"]]
    text = f"{_name(best)} has the most evidence: weight {best['weight']:.2f}, r² = {_r2(best['r2'])}"
    others = [row for row in rows.values() if row is not best and isfinite(row["delta_effective"])]
    if not others:
        return f"{text}."
    paper = rows.get(PAPER_LAW)
    rival = paper if paper in others else min(others, key=lambda row: row["delta_effective"])
    delta = rival["delta_effective"]
    against = f"ahead of {_name(rival)} (r² = {_r2(rival['r2'])}) by ΔAICc = {delta:.1f}, {_strength(delta)}"
    near = [row["law"] for row in others if row is not rival and row["delta_effective"] < 2]
    undecided = f" Within 2 of it too: {', '.join(near)}." if near else ""
    return f"{text}; {against}.{undecided}"


def _independence(facts: Facts, rows: Mapping[str, Facts]) -> str:
    if facts["effective"] > 0.8 * facts["points"]:
        return ""
    text = (
        f"Residuals follow each other (correlation {facts['rho']:.2f} between neighbours): "
        f"{facts['points']} points are worth about {number(facts['effective'], 2)} independent ones."
    )
    book = min(rows.values(), key=lambda row: row["delta_aicc"])
    paper = rows.get(PAPER_LAW)
    if paper and book is not paper and isfinite(paper["delta_aicc"]):
        text += (
            f" Taken for independent, AICc would prefer {book['law']} over the paper's law "
            f"by {paper['delta_aicc']:.1f}."
        )
    return text


def _ahead(facts: Facts, rows: Mapping[str, Facts]) -> str:
    known = [row for row in rows.values() if isfinite(row["ahead"])]
    if len(known) < 2:
        return ""
    first = min(known, key=lambda row: row["ahead"])
    compared = {PAPER_LAW: "the paper's law", facts["best"]: facts["best"]}
    rest = [
        f"{name} {_share(rows[law]['ahead'])}"
        for law, name in compared.items()
        if law in rows and rows[law] is not first and isfinite(rows[law]["ahead"])
    ]
    others = f", {' and '.join(rest)}" if rest else ""
    return f"Fitted to the first half, {first['law']} misses the second by {_share(first['ahead'])}{others}."


def _exponents(_: Facts, rows: Mapping[str, Facts]) -> str:
    said = [
        f"p = {_param(rows[law], 'p')[2:]} in {rows[law]['formula']}"
        for law in ("power", "power2")
        if law in rows and rows[law]["fitted"]
    ]
    return f"Free exponents: {', '.join(said)}." if said else ""


def _name(row: Facts) -> str:
    return (
        f"the paper's law {row['formula']}" if row["law"] == PAPER_LAW else f"{row['law']}, {row['formula']},"
    )


def _strength(delta: float) -> str:
    if delta < 2:
        return "which decides nothing"
    return "some evidence" if delta < 6 else "strong evidence" if delta < 10 else "decisive"


def _share(x: float) -> str:
    return f"{number(100 * x, 2)}%" if isfinite(x) else "-"


def _law(facts: Facts, name: str | None) -> Facts:
    return next((row for row in facts["laws"] if row["law"] == name and row["fitted"]), {})


def _r2(x: float) -> str:
    """Four decimals, and one more when the best fits would all look alike."""
    return "-" if not isfinite(x) else f"{x:.4f}" if x < 0.999 else f"{x:.5f}"


def _tenth(x: float) -> str:
    return f"{x:,.1f}" if isfinite(x) else "-"


def _confidence(facts: Facts) -> str:
    return f"{100 * facts['confidence']:g}%"


def _end(x: float) -> str:
    return {inf: "∞", -inf: "−∞"}.get(x) or number(x, 4)


def _param(row: Facts, name: str) -> str:
    low, high = row["intervals"].get(name, (nan, nan))
    between = "" if isnan(low) else f" [{_end(low)}, {_end(high)}]"
    return f"{name} {number(row['params'][name], 4)}{between}"


def _params(row: Facts) -> str:
    if not row["fitted"]:
        return f"not fitted: {row['reason']}"
    return "; ".join(_param(row, name) for name in row["params"])


def _notes(facts: Facts) -> Sequence[str]:
    return [*facts["notes"], *(f"{row['law']}: {note}" for row in facts["laws"] for note in row["notes"])]
