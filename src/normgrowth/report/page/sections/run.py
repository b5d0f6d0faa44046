"""Losses over training."""

from normgrowth.report.page.content import Content
from normgrowth.report.page.pieces import STEPS, Chart, ChartAxis, ChartCurve, Section, few
from normgrowth.text import visible

LOSSES = ("dev_loss", "train_loss")


def sections(content: Content) -> list[Section]:
    """The losses of all runs that have them."""
    runs, curves = content.runs, []
    for run in runs:
        for dash, quantity in enumerate(LOSSES):
            steps, values = run.grids.model(quantity)
            if len(steps):
                name = quantity.replace("_", " ")
                label = f"{run.label}: {name}" if len(runs) > 1 else name
                curves.append(ChartCurve(label, steps, values, run.label, run.color, dash=dash))
    if not curves:
        return []
    ends = [f"{visible(c.label)} from {c.y[0]:.3f} to {c.y[-1]:.3f}." for c in curves]
    chart = Chart("loss", "Loss", few(ends), STEPS, ChartAxis("nats per token"), curves)
    return [Section("learning", "What was learned", items=[chart])]
