"""The table of saturation: by layer, with a column for each model and c; for a series, by step."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from normgrowth.network.saturation.result import Saturation
from normgrowth.report.columns.saturation import columns
from normgrowth.report.numbers import number
from normgrowth.report.sentences.saturation import (
    COSINE,
    ERRORS,
    EXCESS,
    Profile,
    checked_curves,
    level_sentences,
    method_name,
    sentences,
    text_sentence,
)
from normgrowth.report.table_columns import Column, numbers
from normgrowth.report.terminal.console import say, say_each, say_parameters, say_remarks, show_table, spread
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
    roomy = 20 + 18 * len(drawn) <= console.width
    show_table(console, columns(drawn, errors=roomy), last_bold=True)
    if any(np.isfinite(line.others).any() for line in drawn):
        say_each(console, level_sentences([line for line in drawn if not line.baseline]))
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

    def column(title: str, values: Floats, rank: int = 0) -> Column:
        return numbers(title, [values[i] for i in rows], "{:.3f}".format, rank, missing="NaN")

    ends = dict.fromkeys([*profile.layers.names[:1], *profile.layers.names[-1:]])
    shown = [
        Column("step", [f"{profile.steps[i]:,}" for i in rows]),
        numbers("norm", [profile.norm[i] for i in rows], number),
        column("saturation,\nmean of blocks", profile.level),
        *([column("to other\ntokens", profile.others)] if np.isfinite(profile.others).any() else []),
        *(column(f"saturation\nof {visible(name)}", profile.layers.curve(name), 1) for name in ends),
        *(column(f"at {method_name(c)},\nmean of blocks", profile.mean_at(c), 2) for c in profile.scales[1:]),
    ]
    show_table(console, shown)
    say_each(console, sentences(result))
    say_remarks(console, result)
