"""What a training run shows, in sentences."""

from math import isnan
from typing import TYPE_CHECKING

import numpy as np

from normgrowth.report.grids import Grids
from normgrowth.report.numbers import number, times
from normgrowth.report.sentences.trace import matrices_sentence

if TYPE_CHECKING:
    from normgrowth.lab.run import Run


def sentences(result: "Run") -> list[str]:
    grids = Grids(result)
    said = _learned(result, grids)
    tested = grids.model("test_perplexity")[1]
    if len(tested):
        said.append(f"Its test perplexity is {number(float(tested[-1]), 4)}.")
    said += [led] if (led := matrices_sentence(grids)) else []
    norms = grids.model("norm")[1]
    if len(norms) > 1:
        said.append(
            f"The norm went from {number(norms[0])} to {number(norms[-1])} (×{times(norms[-1] / norms[0])})."
        )
    levels, others = (grids.model(name)[1] for name in ("saturation", "saturation_others"))
    if len(levels) > 1:
        beside = ""
        if len(others) > 1:  # rows of one token have no other tokens
            beside = f"; to the saturated states of other tokens from {others[0]:.3f} to {others[-1]:.3f}"
        said.append(f"Saturation, mean over blocks, went from {levels[0]:.3f} to {levels[-1]:.3f}{beside}.")
    return said


def _learned(result: "Run", grids: Grids) -> list[str]:
    steps, losses = grids.model("dev_loss")
    if not len(losses):
        return []
    best, words = float(losses.min()), result.corpus.frequency_loss
    step = int(steps[losses.argmin()]) if result.best_step is None else result.best_step
    known = (
        f"Best at step {step:,}: dev perplexity {number(float(np.exp(best)), 4)}, {best:.3f} nats per token"
    )
    if isnan(words):
        return [f"{known}."]
    if best < words:
        return [f"{known}, {words - best:.2f} below word frequencies alone."]
    return [f"{known}: no better than word frequencies alone ({words:.3f})."]
