"""Norms, directions, budgets and growth laws of all runs, overlaid."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from normgrowth.lab.run import Run
from normgrowth.records import Matrix
from normgrowth.report.grids import Grids
from normgrowth.report.numbers import cosine, number, small
from normgrowth.report.page.content import Content, ShownRun
from normgrowth.report.page.pieces import STEPS, Chart, ChartAxis, ChartCurve, Mark, Section, few
from normgrowth.report.page.run_tables import (
    MOST_TENSORS,
    changed,
    counted_notes,
    law_table,
    layer_table,
    tensor_table,
)
from normgrowth.report.sentences import run as run_sentences
from normgrowth.report.sentences.fits import verdict
from normgrowth.report.sentences.trace import (
    budget_sentence,
    growth_sentence,
    layer_sentence,
    matrices_sentence,
)
from normgrowth.report.sentences.trace import sentences as trace_sentences
from normgrowth.text import visible
from normgrowth.trace.result import MATRICES

COLORS = 6  # of runs; further runs repeat them with other dashes
FIRST_TENSORS = 8  # tensors shown initially
# quantity and reference -> title, label, whether the axis is logarithmic initially
QUANTITIES = {
    "cosine": ("Direction", "cosine to {before}", False),
    "cosine first": ("Distance from the start", "cosine to the first checkpoint", False),
    "angle": ("Angle", "angle to {before} (rad)", True),
    "alignment": ("Alignment", "alignment cos(δ, θ)", False),
    "step_size": ("Size of the steps", "step size ‖δ‖", True),
    "relative_step": ("Size of the steps, relative", "‖δ‖ / ‖θ‖", True),
    "gradient_norm": ("Gradients", "gradient norm", True),
    "gradient_alignment": ("Gradient and weights", "cos(gradient, θ)", False),
    "first_moment_norm": ("First moment of Adam", "‖m‖", True),
    "second_moment_norm": ("Second moment of Adam", "‖√v‖", True),
    "moment_ratio": ("Ratio of Adam's moments", "‖m‖ / ‖√v‖", True),
    "lora_update_norm": ("LoRA updates", "‖BA‖ · scale", False),
}

RANDOM = {"alignment": "random steps", "gradient_alignment": "random gradients"}  # where their cosine is 0
# Quantities that compare two states of the weights.
BETWEEN = ("cosine", "angle", "alignment", "step_size", "relative_step")


def sections(content: Content) -> list[Section]:
    """One section on the norms of all runs: traces, training runs, and series with saturation."""
    runs = [run for run in content.runs if run.grows()]
    if not runs:
        return []
    charts = [_matrices(runs), _norm(runs), _layer_norms(runs)]
    charts += [_quantity(runs, quantity, *look) for quantity, look in QUANTITIES.items()]
    charts += [_budget(runs), _roles(runs), _tensors(runs)]
    laws = law_table([(run.label, name, one) for run in runs for name, one in run.fits.items()])
    tables = [layer_table(runs), laws, *(tensor_table(run, len(runs)) for run in runs)]
    items = [item for item in [*charts, *tables] if item is not None]
    return [Section("growth", "How the weights grow", counted_notes(runs), items)]


def summary(content: Content) -> list[str]:
    """Sentences on each run: loss, growth, law, alignment, saturation."""
    said = counted_notes(content.runs)
    for run in content.runs:
        texts = _of_run(run)
        several = len(content.runs) > 1 and texts
        said += [f"{visible(run.label)}: {' '.join(texts)}"] if several else texts
    return said


def _of_run(run: ShownRun) -> list[str]:
    texts, grids = trace_sentences(run.grids), run.grids
    lead = MATRICES if grids.matrices_lead and MATRICES in run.fits else "model"
    if lead in run.fits:
        texts += verdict(run.fits[lead])[:1]
    if isinstance(run.result, Run) and len(grids.model("dev_loss")[0]):
        texts = [*run_sentences.sentences(run.result)[:1], *texts]
    levels = grids.model("saturation")[1]
    if len(levels) > 1:
        others = grids.model("saturation_others")[1]
        beside = f"; to other tokens it ends at {others[-1]:.3f}" if len(others) else ""
        texts.append(f"Saturation went from {levels[0]:.3f} to {levels[-1]:.3f}, mean over blocks{beside}.")
    return texts


def _matrices(runs: Sequence[ShownRun]) -> Chart | None:
    """The norm of the matrices, if gains and biases hide it in the norm of a model."""
    if not any(run.grids.matrices_lead for run in runs):
        return None
    curves = []
    for run in runs:
        grid = run.grids.of("part", "norm")
        for dash, (name, values) in enumerate(zip(grid.names, grid.values.T, strict=True)):
            curves.append(_of(run, f"{run.label}: {name}", grid.steps, values, dash=dash, shown=dash == 0))
    alt = few(_said(runs, matrices_sentence))
    return _chart("matrices", "Norm of the matrices", alt, "norm ‖θ‖ of the matrices", False, curves)


def _norm(runs: Sequence[ShownRun]) -> Chart | None:
    curves = []
    for run in runs:
        steps, norms = run.grids.model("norm")
        if len(steps):
            curves.append(_of(run, run.label, steps, norms))
        if "model" in run.fits and run.fits["model"].best_law:
            law = run.fits["model"].best
            said = f"{run.label}: law {law.law}"
            curves.append(
                ChartCurve(
                    said,
                    steps,
                    law.predict(steps),
                    run.label,
                    run.color + (len(runs) == 1),
                    dash=1,
                    provenance="derived",
                )
            )
        steps, settled = run.grids.model("equilibrium_norm")
        if len(steps):
            said = f"{run.label}: equilibrium norm of steps and decay"
            look = {"dash": 2, "shown": False, "provenance": "derived"}
            curves.append(ChartCurve(said, steps, settled, run.label, run.color, **look))
    return _chart("norm", "Norm of the model", few(_said(runs, growth_sentence)), "norm ‖θ‖", False, curves)


def _said(runs: Sequence[ShownRun], sentence: Callable[[Grids], str]) -> list[str]:
    """The sentence for each run that has the data for it."""
    return [f"{visible(run.label)}: {text}" for run in runs if (text := sentence(run.grids))]


def _of(run: ShownRun, label: str, x: Any, y: Any, **look: Any) -> ChartCurve:
    look = {"dash": run.color // COLORS} | look  # the seventh run has the first color with other dashes
    return ChartCurve(label, x, y, run.label, run.color, provenance=run.provenance, **look)


def _chart(
    name: str,
    title: str,
    alt: str,
    label: str,
    log: bool,
    curves: Sequence[ChartCurve],
    marks: Sequence[Mark] = (),
) -> Chart | None:
    if not curves:
        return None
    return Chart(name, title, alt, STEPS, ChartAxis(label, log=log), curves, marks)


def _layers(run: ShownRun, quantity: str, dash: int, reference: str | None = None) -> list[ChartCurve]:
    """A curve for each layer. dash: the pattern of the run; −1 if dashes show encoder and decoder of a single run."""
    grid = run.grids.of("layer", quantity, reference)
    stack = {name: i for i, names in enumerate(grid.stacks().values()) for name in names}
    named = any(layer is not None for layer in grid.layers)
    prefix = f"{run.label}: " if dash >= 0 else ""
    return [
        _of(
            run,
            f"{prefix}{name}",
            grid.steps,
            values,
            shade=shade,
            dash=dash if dash >= 0 else named * stack[name],
        )
        for name, values, shade in zip(grid.names, grid.values.T, _shades(grid), strict=True)
        if np.isfinite(values).any()
    ]


def _shades(grid: Matrix) -> list[float]:
    """Shades from the first layer to the last; encoder and decoder layers of one number have the same shade."""
    numbers = [i if layer is None else layer for i, layer in enumerate(grid.layers)]
    known = sorted(set(numbers))
    return [known.index(n) / max(len(known) - 1, 1) for n in numbers]


def _several(runs: Sequence[ShownRun], place: int) -> int:
    """The dash pattern of a run in charts whose colors show layers; −1 if there is only one run."""
    return place if len(runs) > 1 else -1


def _layer_norms(runs: Sequence[ShownRun]) -> Chart | None:
    curves = [c for i, run in enumerate(runs) for c in _layers(run, "norm", _several(runs, i))]
    alt = few(_said(runs, layer_sentence)) or f"The norm of each layer over training, {len(curves)} curves."
    return _chart("layers", "Norm by layer", alt, "norm ‖θ‖", False, curves)


def _quantity(runs: Sequence[ShownRun], shown: str, title: str, label: str, log: bool) -> Chart | None:
    quantity, _, reference = shown.partition(" ")
    curves, said = [], []
    for i, run in enumerate(runs):
        steps, values = run.grids.model(quantity, reference or None)
        if len(steps):
            curves.append(_of(run, run.label if len(runs) > 1 else "model", steps, values))
            first, last = (_write(quantity)(values[end]) for end in (0, -1))
            said.append(f"{visible(run.label)}: {first} at step {steps[0]:,}, {last} at step {steps[-1]:,}.")
        curves += _layers(run, quantity, _several(runs, i), reference or None)
    label = label.format(before=_before(runs))
    marks = [Mark(0.0, RANDOM[quantity])] if quantity in RANDOM else ()
    if log and not any((np.asarray(curve.y) > 0).any() for curve in curves):
        log = False
    alt = few(said) or f"{title} of {len(curves)} layers."
    tracked = [visible(run.label) for run in runs if run.grids.tracked]
    if shown in BETWEEN and 0 < len(tracked) < len(runs):
        alt += f" Values of {', '.join(tracked)} are over one training step, the others between checkpoints."
    return _chart(shown.replace(" ", "_"), title, alt, label, log, curves, marks)


def _before(runs: Sequence[ShownRun]) -> str:
    """The reference of cosine and angle: the previous checkpoint, or the previous training step for a tracker."""
    kinds = {run.grids.tracked for run in runs}
    if kinds == {True}:
        return "the weights one step before"
    return "the previous weights" if True in kinds else "the previous checkpoint"


def _write(quantity: str) -> Any:
    return {"cosine": cosine, "alignment": small, "gradient_alignment": small}.get(quantity, number)


def _budget(runs: Sequence[ShownRun]) -> Chart | None:
    curves = []
    for run in runs:
        for term, (name, dash) in {
            "": ("growth", 0),
            "_alignment": ("by alignment 2⟨θ, δ⟩", 1),
            "_steps": ("by steps ‖δ‖²", 2),
        }.items():
            steps, values = run.grids.model(f"total_growth{term}")
            if len(steps):
                prefix = f"{run.label}: " if len(runs) > 1 else ""
                curves.append(_of(run, f"{prefix}{name}", steps, values, dash=dash))
    return _chart(
        "budget",
        "Where the growth comes from",
        few(_said(runs, budget_sentence)) or "The growth of the squared norm and its two terms.",
        "growth of ‖θ‖² since the start",
        False,
        curves,
    )


def _roles(runs: Sequence[ShownRun]) -> Chart | None:
    curves = []
    for place, run in enumerate(runs):
        grid = run.grids.of("role", "norm")
        prefix = f"{run.label}: " if len(runs) > 1 else ""
        for i, (name, values) in enumerate(zip(grid.names, grid.values.T, strict=True)):
            if len(grid.steps) > 1 and values[0] > 0:
                label, relative = f"{prefix}{name}", values / values[0]
                dash = place if len(runs) > 1 else i // COLORS
                curves.append(ChartCurve(label, grid.steps, relative, run.label, i % COLORS, dash=dash))
    alt = f"The norm of each role divided by its first value, {len(curves)} curves."
    return _chart("roles", "Growth by role", alt, "norm relative to the first step", False, curves)


def _tensors(runs: Sequence[ShownRun]) -> Chart | None:
    curves = []
    for i, run in enumerate(runs):
        grid = run.grids.of("tensor", "norm")
        if len(grid.steps) < 2:
            continue
        prefix = f"{run.label}: " if len(runs) > 1 else ""
        order = changed(grid)[1][: MOST_TENSORS // len(runs)]
        for place, item in enumerate(order):
            label, shown = f"{prefix}{grid.names[item]}", place < FIRST_TENSORS
            values = grid.values[:, item]
            curves.append(ChartCurve(label, grid.steps, values, run.label, place % 6, dash=i, shown=shown))
    alt = f"The norm of single tensors. {len(curves)} can be shown; the ones that changed most are shown initially."
    return _chart("tensors", "Norm of single tensors", alt, "norm ‖θ‖", False, curves)
