"""Losses over training."""

from normgrowth.report.page.content import Content
from normgrowth.report.page.pieces import STEPS, Chart, ChartAxis, Section, few
from normgrowth.text import visible

LOSSES = ("dev_loss", "train_loss")


def sections(content: Content) -> list[Section]:
    """The losses of all runs that have them."""
    curves = [
        curve
        for run in content.runs
        for dash, quantity in enumerate(LOSSES)
        for curve in run.curves(quantity, f"{run.prefix}{quantity.replace('_', ' ')}", dash=dash)
    ]
    if not curves:
        return []
    ends = [f"{visible(c.label)} from {c.y[0]:.3f} to {c.y[-1]:.3f}." for c in curves]
    chart = Chart("loss", "Loss", few(ends), STEPS, ChartAxis("nats per token"), curves)
    return [Section("learning", "What was learned", items=[chart])]
