"""What a trace shows, in sentences."""

from collections.abc import Callable
from math import exp, isfinite

from normgrowth.checkpoints.parameters.selection import parameters_text
from normgrowth.records import Records
from normgrowth.report.grids import Grids
from normgrowth.report.numbers import cosine, number, percent, signed, small, times
from normgrowth.text import visible
from normgrowth.trace.result import MATRICES, Selection, Trace

MOST = 5  # sentences on one trace


def model_title(selection: Selection | None) -> str:
    """The title of the model's panel: "model (blocks)"; "whole model" if every parameter is counted."""
    said = parameters_text(selection) if selection else ""
    return "whole model" if said == "all" else f"model ({said})" if said else "model"


def role_name(role: str) -> str:
    """The name of a role in tables and figures. The role "norm", of gains and biases of layer norms, is no norm."""
    return "norm layers" if role == "norm" else role


def _count(x: float) -> str:
    for size, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if x >= size:
            return f"{x / size:.3g} {word}"
    return f"{x:,.0f}"


def sentences(given: "Records | Trace | Grids", most: int | None = MOST) -> list[str]:
    """Sentences on a trace, the most important first; at most five, or `most`, or all of them."""
    grids = given if isinstance(given, Grids) else Grids(given)
    makers = (
        nonfinite_sentence,
        matrices_sentence,
        growth_sentence,
        layer_sentence,
        budget_sentence,
        scalars_sentence,
        _direction,
        _alignment,
    )
    return [text for make in makers if (text := make(grids))][:most]


def _unit(grids: Grids) -> str:
    return "measured step" if grids.tracked else "checkpoint"


def matrices_sentence(grids: Grids) -> str:
    """The growth of the matrices, where gains and biases make much of the norms of layers and of the model."""
    if not grids.matrices_lead:
        return ""
    norm = grids.of("part", "norm").curve(MATRICES)
    there = "s of the layers and of the model"
    because = (
        f"Gains, biases and other vectors make up to {percent(grids.vector_share)} of ‖θ‖², which hides the matrices "
        f"in the norm{' of the model; the norms of layers are those of their matrices' if grids.of_layers else there}."
    )
    if len(norm) < 2:
        return f"The norm of the matrices is {number(norm[0])}. {because}"
    factor = f" (×{times(norm[-1] / norm[0])})" if norm[0] > 0 else ""
    verb = "grew" if norm[-1] > norm[0] else "went"
    return f"The norm of the matrices {verb} from {number(norm[0])} to {number(norm[-1])}{factor}. {because}"


def growth_sentence(grids: Grids) -> str:
    steps, norm = grids.model("norm")
    checkpoints, unit = len(grids.steps), _unit(grids)
    if not len(steps):
        return (
            f"The norm of the model is not finite at any {unit}." if grids.of("model", "norm").names else ""
        )
    gaps = (
        f" It is not finite at {checkpoints - len(steps)} of {checkpoints}."
        if len(steps) < checkpoints
        else ""
    )
    if len(steps) == 1:
        one = f", the only {unit}" if checkpoints == 1 else ""
        return f"The norm of the model is {number(norm[0])} at step {steps[0]:,}{one}.{gaps}"
    read = f", {_count(grids.tokens)} training tokens" if grids.tokens else ""
    over = f"over steps {steps[0]:,} to {steps[-1]:,} ({checkpoints} {unit}s{read})"
    if norm[0] == norm[-1]:
        return f"The norm of the model is {number(norm[0])} at both ends, {over}.{gaps}"
    verb = "grew" if norm[-1] > norm[0] else "fell"
    factor = f" (×{times(norm[-1] / norm[0])})" if norm[0] > 0 else ""
    return f"The norm of the model {verb} from {number(norm[0])} to {number(norm[-1])}{factor} {over}.{gaps}"


def layer_sentence(grids: Grids) -> str:
    if (ends := grids.extreme_layers()) is None:
        return ""
    grown = len(grids.steps) > 1
    show: Callable[[float], str] = (lambda x: f"×{times(x)}") if grown else number
    (_, most), (_, least) = ends
    if not grown:
        verbs = "has the largest norm", "the smallest"
    elif least >= 1:
        verbs = "grew most", "least"
    else:
        verbs = ("grew most", "shrank most") if most > 1 else ("shrank least", "most")
    said = [
        f"{visible(name)} {verb} ({show(value)})" for (name, value), verb in zip(ends, verbs, strict=True)
    ]
    count = sum(
        isfinite(grids.factor(grids.layer_level, name, grids.steps[-1]))
        for name in grids.of(grids.layer_level, "norm").names
    )
    return f"Of {count} layers{grids.of_layers}, {said[0]} and {said[1]}."


def _direction(grids: Grids) -> str:
    steps, cosines = grids.model("cosine")
    if not len(steps) or not (before := [step for step in grids.steps if step < steps[-1]]):
        return ""
    if grids.tracked:
        text = f"The cosine between the weights before and after step {steps[-1]:,} is {cosine(cosines[-1])}"
    else:
        text = f"The cosine between the weights at steps {before[-1]:,} and {steps[-1]:,} is {cosine(cosines[-1])}"
    steps, cosines = grids.model("cosine", "first")
    if len(steps) and grids.tracked:
        text += f"; between those before training and at step {steps[-1]:,} it is {cosine(cosines[-1])}"
    elif len(steps) and len(before) > 1:
        text += f"; between steps {before[0]:,} and {steps[-1]:,} it is {cosine(cosines[-1])}"
    return f"{text}."


def _alignment(grids: Grids) -> str:
    steps, alignment = grids.model("alignment")
    if not len(steps):
        return ""
    unit = "step" if grids.tracked else "interval"
    text = f"The alignment cos(δ, θ) of the last {unit} is {small(alignment[-1])}"
    return (
        f"{text}; the mean of {len(steps)} {unit}s is {small(alignment.mean())}."
        if len(steps) > 1
        else f"{text}."
    )


def budget_sentence(grids: Grids) -> str:
    if (budget := grids.budget()) is None:
        return ""
    total, aligned, steps = budget
    of = " of the matrices" if grids.matrices_lead else ""
    return f"The squared norm{of} {growth_terms(total, steps, aligned)}."


def scalars_sentence(grids: Grids) -> str:
    """How many single weights grew, and by which factors; only traces with `scalars` have these numbers."""
    quantities = ("share_grown", "share_sign_changed", *(f"log_ratio_q{q}" for q in ("05", "50", "95")))
    found = [grids.model(quantity, "first") for quantity in quantities]
    if not all(len(steps) for steps, _ in found):
        return ""
    grown, changed, *ratios = (float(values[-1]) for _, values in found)
    low, median, high = (number(exp(ratio), 3) for ratio in ratios)
    return (
        f"{percent(grown)} of the single weights are larger in magnitude than at step {grids.steps[0]:,}, and "
        f"{percent(changed)} changed sign; the median of |θ/θ₀| is {median}, and 90% of its values are between {low} "
        f"and {high}."
    )


def growth_terms(total: float, steps: float, aligned: float) -> str:
    """How the squared norm changed: the shares of both terms if neither is negative, else the terms themselves."""
    if min(total, steps, aligned) >= 0 and total > 0:
        by_steps, by_alignment = percent(steps / total), percent(aligned / total)
        shares = (
            f"{by_steps} by the steps (Σ‖δ‖²), {by_alignment} by their alignment with the weights (Σ2⟨θ,δ⟩)"
        )
        return f"grew by {number(total)}: {shares}"
    terms = f"steps {signed(steps)} (Σ‖δ‖²), alignment {signed(aligned)} (Σ2⟨θ,δ⟩)"
    return f"changed by {signed(total)}: {terms}"


def nonfinite_sentence(grids: Grids) -> str:
    steps, count = grids.model("nonfinite")
    bad = count > 0
    if not bad.any():
        return ""
    tensors = grids.of("tensor", "nonfinite")
    names = [
        visible(name)
        for name, column in zip(tensors.names, tensors.values.T, strict=True)
        if (column > 0).any()
    ]
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    where = f", in {', '.join(names[:3])}{rest}" if names else ""
    when = f"at {bad.sum()} of {len(steps)} {_unit(grids)}s, first at step {steps[bad][0]:,}"
    return f"Values are not finite {when}{where}; at most {count.max():,.0f} values at one step."
