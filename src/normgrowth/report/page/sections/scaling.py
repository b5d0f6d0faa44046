"""How networks approach their saturated limit as the weights grow."""

from math import isfinite

from normgrowth.network.scaling.result import Scaling
from normgrowth.report.page.content import Content
from normgrowth.report.page.pieces import Chart, ChartAxis, ChartCurve, Section, SummaryRow
from normgrowth.report.sentences.scaling import sentences
from normgrowth.text import visible

COSINE = ("Cosine to the saturated network", "cosine", False)


def sections(content: Content) -> list[Section]:
    items: list[Chart] = []
    said: list[str] = []
    for place, result in enumerate(content.results(Scaling)):
        groups = result.curves
        said += sentences(result)
        x = ChartAxis("scale c of the weights", log=True)
        # Published curves have only the cosine of all tokens as one vector.
        by_token = any("cosine_saturated" in group.values for group in groups)
        for quantity, title, label, log in (
            ("cosine_saturated" if by_token else "cosine_flattened", *COSINE),
            ("scaling_error", "Distance to the saturated network", "relative error", True),
        ):
            curves = [
                ChartCurve(group.run, group.scales, group.mean(quantity), group.run, i % 6, dash=i // 6)
                for i, group in enumerate(groups)
                if quantity in group.values
            ]
            if curves:
                alt = f"{title} as all weights grow, {len(curves)} networks."
                items.append(Chart(f"{quantity}-{place}", title, alt, x, ChartAxis(label, log=log), curves))
    return [Section("scaling", "Convergence to the limit", said, items)] if items else []


def rows(content: Content) -> list[SummaryRow]:
    """A row for each network: its cosine to the limit at the smallest and at the largest c."""
    found = []
    for result in content.results(Scaling):
        for group in result.curves:
            quantity = "cosine_saturated" if "cosine_saturated" in group.values else "cosine_flattened"
            mean = group.mean(quantity)
            known = [i for i, value in enumerate(mean) if isfinite(value)]
            ends = [f"{mean[i]:.3f} at c = {group.scales[i]:g}" for i in (known[:1] + known[-1:])]
            said = f"cosine to the limit {' → '.join(ends)}" if known else ""
            found.append(SummaryRow(visible(group.run), "scaling", found=said))
    return found


def summary(content: Content) -> list[str]:
    return [visible(text) for result in content.results(Scaling) for text in sentences(result)]
