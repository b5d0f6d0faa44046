"""Sentences on a reproduction of the paper, for the terminal and the page."""

from collections import Counter
from collections.abc import Mapping

from normgrowth.paper.reproduction import Reproduction
from normgrowth.report.numbers import number

VERDICTS = {  # verdict -> of one claim, of several
    "holds": ("holds", "hold"),
    "holds in part": ("holds in part", "hold in part"),
    "does not hold": ("does not hold", "do not hold"),
    "not shown": ("is not shown", "are not shown"),
    "not measured here": ("is not measured here", "are not measured here"),
}
DIFFERS = {True: "confirmed", False: "not confirmed", None: "not measured"}


def verdict_sentences(result: Reproduction) -> list[str]:
    """How many claims have which verdict, which ones, and which stages failed or are incomplete."""
    if not result.claims:
        return ["No claim was judged."]
    counts = Counter(claim.verdict for claim in result.claims)
    said = ", ".join(
        f"{counts[verdict]} {forms[counts[verdict] > 1]}"
        for verdict, forms in VERDICTS.items()
        if counts[verdict]
    )
    named = [
        f"{verdict.capitalize()}: {', '.join(claim.id for claim in result.claims if claim.verdict == verdict)}."
        for verdict in VERDICTS
        if counts[verdict]
    ]
    return [f"Of {len(result.claims)} claims of the paper, {said}.", *named, *failure_sentences(result)]


def failure_sentences(result: Reproduction) -> list[str]:
    kinds = {
        "Failed stages (their claims are not measured here)": result.failed,
        "Incomplete stages (without the parts that could not be measured)": result.incomplete,
    }
    return [
        f"{said}: {', '.join(f'{stage.name} ({stage.reason})' for stage in stages)}."
        for said, stages in kinds.items()
        if stages
    ]


def measured_numbers(measured: Mapping[str, float | None]) -> str:
    """The measured numbers with their labels: counts in full, others with three significant digits."""
    return "; ".join(
        f"{label} {f'{value:,.0f}' if float(value).is_integer() else number(value, 3)}"
        for label, value in measured.items()
        if value is not None
    )
