"""Norms, directions, budgets and growth laws of all runs, overlaid."""

from collections.abc import Callable, Sequence
from math import nan

import numpy as np

from normgrowth.lab.run import Run
from normgrowth.records import Matrix
from normgrowth.report.grids import Grids
from normgrowth.report.numbers import number, times
from normgrowth.report.page.content import Content, ShownRun
from normgrowth.report.page.pieces import STEPS, Chart, ChartAxis, ChartCurve, Mark, Section, SummaryRow, few
from normgrowth.report.page.run_sections import margin_sections, scalar_sections
from normgrowth.report.page.run_tables import MOST_TENSORS, changed, law_table, layer_table, tensor_table
from normgrowth.report.quantities import QUANTITIES, Quantity
from normgrowth.report.sentences.fits import best_law_with_r2, verdict
from normgrowth.report.sentences.trace import (
    budget_sentence,
    growth_sentence,
    layer_sentence,
    matrices_sentence,
    nonfinite_sentence,
    role_name,
)
from normgrowth.text import visible
from normgrowth.trace.result import MATRICES

ROLE_COLORS = 10  # hues of the script; roles and tensors beyond them share a color
COMMANDS = {"trace": "trace", "run": "train", "saturation": "saturation"}
FIRST_TENSORS = 8  # tensors shown initially


def sections(content: Content) -> list[Section]:
    """One section on the norms of all runs: traces, training runs, and series with saturation."""
    runs = [run for run in content.runs if run.grows()]
    if not runs:
        return []
    charts = [_matrices(runs), _norm(runs), _layer_norms(runs)]
    charts += [_quantity(runs, name, one) for name, one in QUANTITIES.items() if one.chart]
    charts += [_budget(runs), _roles(runs), _tensors(runs)]
    tables = [law_table(runs), *(tensor_table(run, len(runs)) for run in runs)]
    items = [item for item in [*charts[:3], layer_table(runs), *charts[3:], *tables] if item is not None]
    return [
        Section("growth", "How the weights grow", items=items),
        *scalar_sections(runs),
        *margin_sections(runs),
    ]


def rows(content: Content) -> list[SummaryRow]:
    """A row for each run: its norm, the layer that grew most, the best law, loss and saturation."""
    return [_row(run) for run in content.runs]


def _row(run: ShownRun) -> SummaryRow:
    grids = run.grids
    norms = grids.leading("norm")[1]
    known = len(norms) > 0
    of = f" ({MATRICES})" if grids.matrices_lead else ""
    shown = grids.steps or [int(step) for step in grids.model("saturation")[0]]
    unit = "measured steps" if grids.tracked else "checkpoints"
    laws = run.fits.get(grids.lead[1])
    budget = grids.budget()
    return SummaryRow(
        visible(run.label),
        COMMANDS[run.result.kind] if not grids.tracked or isinstance(run.result, Run) else "tracker",
        f"{shown[0]:,} to {shown[-1]:,} ({len(shown)} {unit})" if len(shown) > 1 else f"{shown[0]:,}",
        " → ".join(number(norm) for norm in dict.fromkeys((norms[0], norms[-1]))) + of if known else "",
        float(norms[-1] / norms[0]) if len(norms) > 1 and norms[0] > 0 else nan,
        budget[2] / budget[0] if budget and min(budget) >= 0 and budget[0] > 0 else nan,
        _grew_most(grids),
        best_law_with_r2(laws) if laws else "",
        "; ".join(_scores(grids)),
    )


def _grew_most(grids: Grids) -> str:
    ends = grids.extreme_layers()
    return "" if ends is None or len(grids.steps) < 2 else f"{visible(ends[0][0])} (×{times(ends[0][1])})"


def _scores(grids: Grids) -> list[str]:
    """The first and the last loss and saturation."""
    found = []
    for quantity, name in (("dev_loss", "dev loss"), ("saturation", "saturation")):
        values = grids.model(quantity)[1]
        if len(values):
            ends = dict.fromkeys(f"{value:.3f}" for value in (values[0], values[-1]))
            found.append(f"{name} {' → '.join(ends)}")
    others = grids.model("saturation_others")[1]
    return [*found, f"to other tokens {others[-1]:.3f}"] if len(others) else found


def summary(content: Content) -> list[str]:
    """Values that are not finite, the norm of the matrices if it leads, and the best law of each run."""
    return [f"{visible(run.prefix)}{text}" for run in content.runs for text in _main_sentences(run) if text]


def _main_sentences(run: ShownRun) -> list[str]:
    grids = run.grids
    lead = MATRICES if grids.matrices_lead and MATRICES in run.fits else "model"
    law = (
        [f"Norm of the {lead}: {text[0].lower()}{text[1:]}" for text in verdict(run.fits[lead])[:1]]
        if lead in run.fits
        else []
    )
    return [nonfinite_sentence(grids), matrices_sentence(grids) if grids.matrices_lead else "", *law]


def _matrices(runs: Sequence[ShownRun]) -> Chart | None:
    """The norm of the matrices, if gains and biases hide it in the norm of a model."""
    if not any(run.grids.matrices_lead for run in runs):
        return None
    curves = []
    for run in runs:
        grid = run.grids.of("part", "norm")
        for dash, (name, values) in enumerate(zip(grid.names, grid.values.T, strict=True)):
            curves.append(run.curve(f"{run.label}: {name}", grid.steps, values, dash=dash, shown=dash == 0))
    alt = few(_said(runs, matrices_sentence))
    return _chart("matrices", "Norm of the matrices", alt, "norm ‖θ‖ of the matrices", False, curves)


def _norm(runs: Sequence[ShownRun]) -> Chart | None:
    curves = []
    for run in runs:
        curves += run.curves("norm", run.label)
        if "model" in run.fits and run.fits["model"].best_law:
            law, steps = run.fits["model"].best, run.grids.model("norm")[0]
            look = {"color": run.color + run.alone, "dash": 1, "provenance": "derived"}
            curves.append(run.curve(f"{run.label}: law {law.law}", steps, law.predict(steps), **look))
        said = f"{run.label}: equilibrium norm of steps and decay"
        curves += run.curves("equilibrium_norm", said, dash=2, shown=False, provenance="derived")
    return _chart("norm", "Norm of the model", few(_said(runs, growth_sentence)), "norm ‖θ‖", False, curves)


def _said(runs: Sequence[ShownRun], sentence: Callable[[Grids], str]) -> list[str]:
    """The sentence for each run that has the data for it."""
    return [f"{visible(run.label)}: {text}" for run in runs if (text := sentence(run.grids))]


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


def _layers(run: ShownRun, place: int, quantity: str, reference: str | None = None) -> list[ChartCurve]:
    """A curve for each layer. Dashes show the run, by its place, or encoder and decoder of a single run."""
    grid = run.grids.of(run.grids.layer_level, quantity, reference)
    stack = {name: i for i, names in enumerate(grid.stacks().values()) for name in names}
    named = any(layer is not None for layer in grid.layers)
    notes = _norm_notes(run.grids) if quantity == "norm" else _end_notes(grid, QUANTITIES[quantity].write)
    return [
        run.curve(
            f"{run.prefix}{name}",
            grid.steps,
            values,
            shade=shade,
            dash=named * stack[name] if run.alone else place,
            note=notes.get(name, ""),
        )
        for name, values, shade in zip(grid.names, grid.values.T, _shades(grid), strict=True)
        if np.isfinite(values).any()
    ]


def _norm_notes(grids: Grids) -> dict[str, str]:
    """The layers that grew most and least, with their factors."""
    if (ends := grids.extreme_layers()) is None:
        return {}
    (most, high), (least, low) = ends
    if len(grids.steps) < 2:
        return {most: f"largest, {number(high)}", least: f"smallest, {number(low)}"}
    first = "shrank least" if high <= 1 else "grew most"
    last = "shrank most" if low < 1 else "grew least"
    return {most: f"{first}, ×{times(high)}", least: f"{last}, ×{times(low)}"}


def _end_notes(grid: Matrix, write: Callable[[float], str]) -> dict[str, str]:
    """The layers with the highest and the lowest last value."""
    last = {
        name: values[np.isfinite(values)][-1:] for name, values in zip(grid.names, grid.values.T, strict=True)
    }
    ends = {name: float(values[0]) for name, values in last.items() if len(values)}
    if len(set(ends.values())) < 2:
        return {}
    high, low = max(ends, key=ends.__getitem__), min(ends, key=ends.__getitem__)
    return {high: f"highest at the end, {write(ends[high])}", low: f"lowest at the end, {write(ends[low])}"}


def _shades(grid: Matrix) -> list[float]:
    """Shades from the first layer to the last; encoder and decoder layers of one number have the same shade."""
    numbers = [i if layer is None else layer for i, layer in enumerate(grid.layers)]
    known = sorted(set(numbers))
    return [known.index(n) / max(len(known) - 1, 1) for n in numbers]


def _layer_norms(runs: Sequence[ShownRun]) -> Chart | None:
    curves = [c for i, run in enumerate(runs) for c in _layers(run, i, "norm")]
    alt = few(_said(runs, layer_sentence)) or f"The norm of each layer over training, {len(curves)} curves."
    shown = {run.grids.of_layers for run in runs}
    title = f"Norm by layer{next(iter(shown)) if len(shown) == 1 else ''}"
    return _chart("layers", title, alt, "norm ‖θ‖", False, curves)


def _quantity(runs: Sequence[ShownRun], shown: str, one: Quantity) -> Chart | None:
    quantity, _, reference = shown.partition(" ")
    curves, said = [], []
    for i, run in enumerate(runs):
        steps, values = run.grids.model(quantity, reference or None)
        if len(steps):
            curves.append(run.curve("model" if run.alone else run.label, steps, values))
            first, last = (one.write(values[end]) for end in (0, -1))
            said.append(f"{visible(run.label)}: {first} at step {steps[0]:,}, {last} at step {steps[-1]:,}.")
        curves += _layers(run, i, quantity, reference or None)
    label = one.axis.format(before=_before(runs))
    marks = [Mark(0.0, one.zero)] if one.zero else ()
    log = one.log and any((np.asarray(curve.y) > 0).any() for curve in curves)
    alt = few(said) or f"{one.chart} of {len(curves)} layers."
    tracked = [visible(run.label) for run in runs if run.grids.tracked]
    if one.between and 0 < len(tracked) < len(runs):
        alt += f" Values of {', '.join(tracked)} are over one training step, the others between checkpoints."
    return _chart(shown.replace(" ", "_"), one.chart, alt, label, log, curves, marks)


def _before(runs: Sequence[ShownRun]) -> str:
    """The reference of cosine and angle: the previous checkpoint, or the previous training step for a tracker."""
    kinds = {run.grids.tracked for run in runs}
    if kinds == {True}:
        return "the weights one step before"
    return "the previous weights" if True in kinds else "the previous checkpoint"


def _budget(runs: Sequence[ShownRun]) -> Chart | None:
    terms = {"": "growth", "_alignment": "by alignment 2⟨θ, δ⟩", "_steps": "by steps ‖δ‖²"}
    curves = []
    for run in runs:
        for dash, (term, name) in enumerate(terms.items()):
            steps, values = run.grids.leading(f"total_growth{term}")
            if len(steps):
                curves.append(run.curve(f"{run.prefix}{name}", steps, values, dash=dash))
    alt = few(_said(runs, budget_sentence)) or "The growth of the squared norm and its two terms."
    return _chart(
        "budget", "Where the growth comes from", alt, "growth of ‖θ‖² since the start", False, curves
    )


def _roles(runs: Sequence[ShownRun]) -> Chart | None:
    """A role has the same color in every run; the dashes show the run."""
    curves = []
    grids = [run.grids.of("role", "norm") for run in runs]
    roles = list(dict.fromkeys(name for grid in grids for name in grid.names))
    for place, (run, grid) in enumerate(zip(runs, grids, strict=True)):
        for name, values in zip(grid.names, grid.values.T, strict=True):
            if len(grid.steps) > 1 and values[0] > 0:
                label, relative = f"{run.prefix}{role_name(name)}", values / values[0]
                repeat, color = divmod(roles.index(name), ROLE_COLORS)
                dash = place if len(runs) > 1 else repeat
                curves.append(run.curve(label, grid.steps, relative, color=color, dash=dash))
    colors = " Colors show the role, dashes the run." if len(runs) > 1 else ""
    alt = f"The norm of each role divided by its first value, {len(curves)} curves.{colors}"
    return _chart("roles", "Growth by role", alt, "norm relative to the first step", False, curves)


def _tensors(runs: Sequence[ShownRun]) -> Chart | None:
    curves, colors = [], dict[str, int]()
    for i, run in enumerate(runs):
        grid = run.grids.of("tensor", "norm")
        if len(grid.steps) < 2:
            continue
        order = changed(grid)[1][: MOST_TENSORS // len(runs)]
        for place, item in enumerate(order):
            label, shown = f"{run.prefix}{grid.names[item]}", place < FIRST_TENSORS
            values = grid.values[:, item]
            color = colors.setdefault(grid.names[item], len(colors)) % ROLE_COLORS
            curves.append(run.curve(label, grid.steps, values, color=color, dash=i, shown=shown))
    alt = f"The norm of single tensors. {len(curves)} can be shown; the ones that changed most are shown initially."
    return _chart("tensors", "Norm of single tensors", alt, "norm ‖θ‖", False, curves)
