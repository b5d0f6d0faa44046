"""Figures of a training run: losses and norm over steps, and the figures of a trace."""

from typing import TYPE_CHECKING, Any

import numpy as np

from normgrowth.errors import InputError
from normgrowth.report.figures import trace
from normgrowth.report.figures.style import BLUE, GRAY, INK, Drawing, drawing, line, step_axis, value_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from normgrowth.lab.run import Run

LOSSES = {"train_loss": ("training", GRAY), "dev_loss": ("held out", BLUE)}
ZERO_BELOW = 0.8  # the axis of norms begins at zero unless that would hide their growth


@drawing("Loss and norm over the steps of a run")
def progress(result: "Run") -> "Figure":
    """Training and held-out loss above the norm of the model; without the norm if the run has not ended."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 4.6), layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    for quantity, (name, color) in LOSSES.items():
        line(above, *result.records.series(quantity), color=color, label=name)
    above.set_ylabel("loss (nats per token)")
    value_axis(above)
    above.legend(loc="upper right")
    line(below, *_norms(result), color=INK)
    below.set_ylabel("norm ‖θ‖")
    value_axis(below, zero_below=ZERO_BELOW)
    step_axis(below, [0, max(result.steps, 1)])
    return figure


def _norms(result: "Run") -> tuple[Any, Any]:
    try:
        return result.trace.records.series("norm")
    except InputError:  # the run has not ended
        return np.zeros(0, np.int64), np.zeros(0)


def _of_trace(own: Drawing) -> Drawing:
    def build(result: "Run") -> "Figure | None":
        return own.build(result.trace)

    return Drawing(own.title, build)


FIGURES = {"progress": progress, **{name: _of_trace(own) for name, own in trace.FIGURES.items()}}
