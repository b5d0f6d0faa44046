"""Results of `fit`: measured values, the best laws, and their evidence."""

from normgrowth.fit.result import Fits
from normgrowth.report.columns.fits import law_columns, series_columns
from normgrowth.report.page.content import Content, PageEntry
from normgrowth.report.page.pieces import STEPS, Chart, ChartAxis, ChartCurve, Section, SummaryRow, few
from normgrowth.report.sentences.fits import best_law, best_law_counts, best_law_with_r2, verdict
from normgrowth.report.table_columns import Table
from normgrowth.text import visible

COLORS = 6


def sections(content: Content) -> list[Section]:
    items: list[Chart | Table] = []
    said: list[str] = []
    for place, entry in enumerate(content.of(Fits)):
        fits = entry.result.leading
        items += [chart for chart in [_chart(entry, place)] if chart is not None]
        if len(fits.series) == 1:
            items.append(Table(f"Laws of {entry.label}", law_columns(fits.only, fits.confidence)))
            if entry.result.matrices is not None:
                said.append(f"{visible(entry.label)}: norm of the matrices. {' '.join(fits.notes)}.")
            said += [f"{visible(entry.label)}: {text}" for text in verdict(fits.only)]
        else:
            items.append(Table(f"Laws of {entry.label}", series_columns(list(fits.series.values()))))
    return [Section("fits", "Growth laws", said, items)] if items else []


def rows(content: Content) -> list[SummaryRow]:
    """A row for each result: the best law, or how often each law is best."""
    found = []
    for entry in content.of(Fits):
        series = list(entry.result.leading.series.values())
        steps = [step for one in series for step in one.steps]
        span = f"{min(steps):,.0f} to {max(steps):,.0f}" if steps else ""
        if len(series) == 1:
            law = best_law_with_r2(series[0])
        else:
            counts = best_law_counts(series, 2)
            law = f"{counts} of {len(series)}" if counts else ""
        found.append(SummaryRow(visible(entry.label), "fit", span, law=law or "too few points"))
    return found


def summary(content: Content) -> list[str]:
    fits = [(entry.label, entry.result.leading) for entry in content.of(Fits)]
    shown = [(label, one.only) for label, one in fits if len(one.series) == 1]
    return [f"{visible(label)}: {text}" for label, one in shown for text in verdict(one)[:1]]


def _chart(entry: PageEntry[Fits], place: int) -> Chart | None:
    fits, curves, said = entry.result.leading, [], []
    several = len(fits.series) > 1
    for i, (name, one) in enumerate(fits.series.items()):
        if not one.steps:
            continue
        color, dash = i % COLORS, i // COLORS
        curves.append(
            ChartCurve(name or "measured", one.steps, one.measured, color=color, dash=dash, dots=not several)
        )
        if one.best_law:
            law = one.best
            label = f"{name}: {law.law}" if several else law.law
            color, fitted = (i + 1 - several) % COLORS, law.predict(one.steps)
            look = {"dash": 1, "shown": not several, "provenance": "derived"}
            curves.append(ChartCurve(label, one.steps, fitted, color=color, **look))
            said.append(
                f"{visible(name or fits.quantity)}: {'' if one.undecided else 'best law '}{best_law(one)}."
            )
    if not curves:
        return None
    title = f"Growth laws of {entry.label}"
    alt = few(said) or f"{len(fits.series)} series, each with too few points to choose a law."
    return Chart(f"fits-{place}", title, alt, STEPS, ChartAxis(fits.quantity), curves)
