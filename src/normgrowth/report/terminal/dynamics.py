"""Dynamics in the terminal: measured and predicted norms, then sentences."""

import sys
from collections.abc import Callable, Sequence
from math import nan
from typing import TYPE_CHECKING

from normgrowth.dynamics.observed.uniformity import Uniformity
from normgrowth.dynamics.result import Dynamics, ModelFit
from normgrowth.report.numbers import number, signed, small, times
from normgrowth.report.sentences import dynamics as sentences
from normgrowth.report.table_columns import Column, numbers
from normgrowth.report.terminal.console import (
    WIDE,
    layer_names,
    say,
    say_counted,
    say_each,
    say_remarks,
    show_table,
    spread,
)

if TYPE_CHECKING:
    from rich.console import Console

ROWS = 14  # most rows of the table
MOST = 5  # sentences, without --wide


def show(result: Dynamics, console: "Console") -> None:
    """Print the table and the sentences of the matrices if vectors hide them, then those of the model."""
    d = result.leading
    chosen = spread(len(d.steps), ROWS)

    def column(
        title: str, values: Sequence[float], write: Callable[[float], str] = number, rank: int = 0
    ) -> Column:
        # The first checkpoint has no interval before it.
        values = [*[nan] * (len(d.steps) - len(values)), *values]
        return numbers(title, [values[i] for i in chosen], write, rank)

    about = d.name if d.schedule is None else f"{d.name}, {d.schedule}"
    say(console, f"{d.source}: {about}", "bold")
    say_counted(console, d.parameters)
    say(console, sentences.interval(d), "dim")
    columns = [column("step", d.steps, "{:,.0f}".format), *_norms(result, column)]
    if d.aligned is not None and d.misaligned is not None:
        columns += [
            column("if\nmisaligned", d.misaligned.predicted),
            column("if\naligned", d.aligned.predicted),
            *_kappa(d.aligned, d.misaligned, d.checkpoint_gap[1] == 1, column),
        ]
    columns += [
        column("step\nsize", d.step_sizes, _four, rank=4),
        *_bound(d, "step\nsize ±", "step_sizes", 5, column),
        column("alignment", d.alignments, small, rank=2),
        *_bound(d, "alignment\n±", "alignments", 5, column),
    ]
    show_table(console, columns)
    if len(chosen) < len(d.steps):
        unit = "steps" if d.checkpoint_gap[1] == 1 else "checkpoints"
        say(console, f"{len(chosen)} of {len(d.steps)} {unit} shown.", "dim")
    for found in sentences.shown_layers(d):
        _layers(found, console)
    sections = sentences.topics(result, "table")
    if console.width >= WIDE:
        for title, said in sections.items():
            if said:
                say(console, title, "bold")
                for sentence in said:
                    say(console, sentence)
    else:
        _most_important(sections, console)
    if d.schedule is None:
        say(console, "No model of the dynamics is fitted: pass the learning rates with --schedule.", "dim")
    say_remarks(console, d)


def _layers(found: Uniformity, console: "Console") -> None:
    """Print how much ‖θ‖² of each layer grew, and both terms of this growth."""
    if not found.by_steps:
        return
    chosen = spread(len(found.names), sys.maxsize if console.width >= WIDE else ROWS)
    growth = [sum(terms) for terms in zip(found.by_alignment, found.by_steps, strict=True)]
    terms = {"growth\nof ‖θ‖²": growth, "by\nalignment": found.by_alignment, "by\nsteps": found.by_steps}
    columns = [
        layer_names([(found.level, found.names[i]) for i in chosen]),
        numbers("factor", [found.factor[i] for i in chosen], times),
        *(numbers(title, [values[i] for i in chosen], signed) for title, values in terms.items()),
    ]
    show_table(console, columns)
    if len(chosen) < len(found.names):
        say(console, f"{len(chosen)} of {len(found.names)} layers shown.", "dim")


def _norms(result: Dynamics, column: Callable[..., Column]) -> list[Column]:
    """The norm; if the matrices come first, theirs and that of the model."""
    if result.matrices is not None:
        return [column("norm of\nmatrices", result.matrices.norms), column("norm of\nmodel", result.norms)]
    return [column("norm", result.norms), *_bound(result, "norm ±", "norms", 0, column)]


def _bound(d: Dynamics, title: str, name: str, rank: int, column: Callable[..., Column]) -> list[Column]:
    """The bound of rounding errors of published values."""
    return [column(title, getattr(d.rounding, name), _two, rank)] if d.rounding else []


def _kappa(
    aligned: ModelFit, misaligned: ModelFit, single: bool, column: Callable[..., Column]
) -> list[Column]:
    """κ of each interval; for intervals of several steps, both if their steps are independent and if parallel."""
    if single:
        return [column("κ", misaligned.kappa_by_interval, _four, rank=1)]
    return [
        column("κ if steps\nindependent", misaligned.kappa_by_interval, _four, rank=1),
        column("κ if steps\nparallel", aligned.kappa_by_interval, _four, rank=3),
    ]


def _most_important(sections: dict[str, list[str]], console: "Console") -> None:
    """Print at most five sentences, beginning with the model that fits, κ and the growth budget."""
    said = [
        *sections["Growth"][:3],
        *sections["Rounding"],
        *sections["Layers"][:1],
        *sections["Weight decay"][:1],
        *sections["Direction"][:1],
    ]
    said += [text for texts in sections.values() for text in texts if text not in said]
    say_each(console, said[:MOST])
    if (more := len(said) - MOST) > 0:
        say(console, f"{more} more sentence{'s' if more > 1 else ''} with --wide.", "dim")


def _four(x: float) -> str:
    return number(x, 4)


def _two(x: float) -> str:
    return number(x, 2)
