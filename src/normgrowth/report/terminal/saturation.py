"""The table of saturation: by layer, with a column for each model and c; for a series, by step."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from normgrowth.network.saturation.result import EMBEDDINGS, Saturation
from normgrowth.report.numbers import number
from normgrowth.report.sentences.saturation import (
    COSINE,
    ERRORS,
    EXCESS,
    Profile,
    checked_curves,
    layer_name,
    level,
    level_sentences,
    method_name,
    sentences,
    text_sentence,
)
from normgrowth.report.terminal.console import Cells, say, say_parameters, say_remarks, spread
from normgrowth.report.terminal.console import show as show_columns
from normgrowth.text import visible

if TYPE_CHECKING:
    from rich.console import Console

Floats = NDArray[np.float64]
ROWS = 12  # most rows of the table


def show(result: Saturation, console: "Console") -> None:
    if result.steps:
        _show_series(result, console)
    else:
        _show_models(result, console)


def _show_models(result: Saturation, console: "Console") -> None:
    """A row for each layer and one for their mean; a column for each model and c."""
    drawn = checked_curves(result)
    for run, model in result.models.items():
        say(console, f"{run}: {text_sentence(model.text)}", "bold")
    say(console, COSINE, "dim")
    depth = range(EMBEDDINGS, max(max(line.layers) for line in drawn) + 1)
    names = [layer_name(layer) for layer in depth]
    columns = [Cells("layer", [*names, "mean of blocks"], right=False)]
    roomy = 20 + 18 * len(drawn) <= console.width
    for line in drawn:
        at = dict(zip(line.layers, zip(line.values, line.errors, strict=True), strict=True))
        cells = [level(*(at[layer] if roomy else at[layer][:1])) if layer in at else "-" for layer in depth]
        run, baseline = visible(line.run), "\nrandom baseline" if line.baseline else ""
        rank = 2 * line.baseline + 4 * (line.c != drawn[0].c)  # the models at the first c are never hidden
        columns.append(Cells(f"{run}\n{method_name(line.c)}{baseline}", [*cells, level(line.mean)], rank))
        if np.isfinite(line.others).any() and line.c == drawn[0].c:
            other = dict(zip(line.layers, line.others, strict=True))
            mean = float(np.mean([value for layer, value in other.items() if layer != EMBEDDINGS]))
            cells = [level(other[layer]) if layer in other else "-" for layer in depth]
            rank = 2 * line.baseline + (
                len(result.models) > 1
            )  # hidden last: only the excess over it indicates saturation
            columns.append(Cells(f"{run}\nto other tokens{baseline}", [*cells, level(mean)], rank))
    show_columns(console, columns, last_bold=True)
    if any(np.isfinite(line.others).any() for line in drawn):
        for sentence in level_sentences([line for line in drawn if not line.baseline]):
            say(console, sentence)
        say(console, EXCESS, "dim")
    if roomy:
        say(console, ERRORS, "dim")
    say_remarks(console, result)


def _show_series(result: Saturation, console: "Console") -> None:
    """Norm, and saturation of the model, its first and its last layer; a row for each of at most 12 steps."""
    profile = Profile(result)
    said = [text_sentence(model.text) for model in result.models.values()]
    each = f", each {said[0]}" if said and said[0] else ""
    say(console, f"{profile.run}: {len(profile.steps)} checkpoints{each}", "bold")
    say_parameters(console, result.selection, result.counted)
    rows = spread(len(profile.steps), ROWS)

    def column(title: str, values: Floats, rank: int = 0) -> Cells:
        return Cells(title, [f"{values[i]:.3f}" if np.isfinite(values[i]) else "NaN" for i in rows], rank)

    columns = [
        Cells("step", [f"{profile.steps[i]:,}" for i in rows]),
        Cells("norm", [number(float(profile.norm[i])) for i in rows]),
        column("saturation,\nmean of blocks", profile.level),
    ]
    ends = dict.fromkeys([*profile.layers.names[:1], *profile.layers.names[-1:]])
    if np.isfinite(profile.others).any():
        columns.append(column("to other\ntokens", profile.others))
    columns += [
        column(f"saturation\nof {visible(name)}", profile.layers.curve(name), rank=1) for name in ends
    ]
    for c in profile.scales[1:]:
        columns.append(column(f"at {method_name(c)},\nmean of blocks", profile.mean_at(c), rank=2))
    show_columns(console, columns)
    for sentence in sentences(result):
        say(console, sentence)
    say_remarks(console, result)
