"""Dynamics: measured norms, the predictions of aligned and misaligned dynamics, and sentences."""

from math import isfinite, nan

from normgrowth.dynamics.result import Dynamics
from normgrowth.report.figures.dynamics import FAR
from normgrowth.report.numbers import number
from normgrowth.report.page.content import Content, PageEntry, labeled
from normgrowth.report.page.pieces import STEPS, Chart, ChartAxis, ChartCurve, Section, SummaryRow
from normgrowth.report.sentences import dynamics as sentences
from normgrowth.text import visible

VERDICTS = {
    "misaligned": "the misaligned model fits",
    "aligned": "the aligned model fits",
    "both": "both models fit",
    "between": "growth lies between the aligned and the misaligned prediction",
    "neither": "neither model fits",
    "undecided": "the norm changed too little to decide",
}


def sections(content: Content) -> list[Section]:
    entries = content.of(Dynamics)
    said = labeled(entries, _sentences)
    items = [_chart(entry, place) for place, entry in enumerate(entries)]
    return [Section("dynamics", "Why the weights grow", said, items)] if items else []


def rows(content: Content) -> list[SummaryRow]:
    """A row for each part: its norm, and the model of the dynamics that fits."""
    return [_row(entry) for entry in content.of(Dynamics)]


def _row(entry: PageEntry[Dynamics]) -> SummaryRow:
    d = entry.result.leading
    known = [norm for norm in d.norms if isfinite(norm)]
    of = f" ({d.name})" if d.level == "part" else ""
    return SummaryRow(
        visible(entry.label),
        "dynamics",
        f"{d.steps[0]:,} to {d.steps[-1]:,} ({len(d.steps)} checkpoints)",
        f"{number(known[0])} → {number(known[-1])}{of}" if known else "",
        known[-1] / known[0] if known and known[0] > 0 else nan,
        found="" if d.verdict is None else VERDICTS[d.verdict],
    )


def summary(content: Content) -> list[str]:
    """A sentence on which model of the dynamics fits."""
    return [
        f"{visible(entry.label)}: {sentences.verdict(d, d.aligned, d.misaligned)}"
        for entry in content.of(Dynamics)
        if (d := entry.result.leading).verdict is not None
        and d.aligned is not None
        and d.misaligned is not None
    ]


def _sentences(result: Dynamics) -> list[str]:
    prefixes = {"Open questions": "Open question: ", "Whole model": "Whole model: "}
    said = sentences.topics(result, "chart").items()
    rest = [f"{prefixes.get(topic, '')}{text}" for topic, texts in said for text in texts]
    return [f"{sentences.interval(result.leading)}.", *rest]


def _chart(entry: PageEntry[Dynamics], place: int) -> Chart:
    d = entry.result.leading
    curves = [ChartCurve("measured", d.steps, d.norms)]
    if d is not entry.result:
        curves.append(ChartCurve("model, measured", d.steps, entry.result.norms, color=3))
    for i, fit in enumerate(one for one in (d.aligned, d.misaligned) if one is not None):
        near = fit.predicted[-1] <= FAR * max(d.norms)  # larger predictions would hide the measured growth
        look = {"color": i + 1, "dash": 1, "shown": near, "provenance": "derived"}
        curves.append(ChartCurve(f"{fit.model} dynamics", d.steps, fit.predicted, **look))
    title = f"Norm of {d.name}, measured{' and predicted' if d.aligned else ''}: {entry.label}"
    alt = "The dashed curves are predictions." if d.aligned else "Without a schedule there is no prediction."
    return Chart(f"dynamics-{place}", title, alt, STEPS, ChartAxis("norm ‖θ‖"), curves)
