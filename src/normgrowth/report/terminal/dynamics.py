"""Dynamics in the terminal: measured and predicted norms, then sentences."""

from collections.abc import Callable, Sequence
from math import isnan, nan
from typing import TYPE_CHECKING

from normgrowth.dynamics.result import Dynamics
from normgrowth.report.numbers import number, small
from normgrowth.report.sentences import dynamics as sentences
from normgrowth.report.terminal.console import Cells, literal, say, say_counted, say_remarks, spread
from normgrowth.report.terminal.console import show as show_table

if TYPE_CHECKING:
    from rich.console import Console

ROWS = 14  # of the table at most


def show(d: Dynamics, console: "Console") -> None:
    from rich.padding import Padding

    chosen = spread(len(d.steps), ROWS)

    def column(
        title: str, values: Sequence[float], write: Callable[[float], str] = number, rank: int = 0
    ) -> Cells:
        values = [
            *[nan] * (len(d.steps) - len(values)),
            *values,
        ]  # the first checkpoint has no interval before it
        return Cells(title, ["-" if isnan(values[i]) else write(values[i]) for i in chosen], rank)

    about = d.name if d.schedule is None else f"{d.name}, {d.schedule}"
    say(console, f"{d.source}: {about}", "bold")
    say_counted(console, d.parameters)
    columns = [column("step", d.steps, lambda step: f"{step:,}"), column("norm", d.norms)]
    if d.aligned is not None and d.misaligned is not None:
        columns += [
            column("if\nmisaligned", d.misaligned.predicted),
            column("if\naligned", d.aligned.predicted),
            column("κ, squares\nadd", d.misaligned.kappa_by_interval, _four, rank=1),
            column("κ, lengths\nadd", d.aligned.kappa_by_interval, _four, rank=3),
        ]
    columns += [
        column("step\nsize", d.step_sizes, _four, rank=4),
        column("alignment", d.alignments, small, rank=2),
    ]
    show_table(console, columns)
    if len(chosen) < len(d.steps):
        say(console, f"{len(chosen)} of {len(d.steps)} checkpoints shown.", "dim")
    sections = (
        ("Dynamics", sentences.findings(d)),
        ("Open questions", sentences.undecided(d)),
        ("Weight decay", sentences.weight_decay(d)),
        ("Direction", sentences.direction(d.direction)),
        ("Uniformity", [sentences.uniformity(found) for found in list(d.uniformity.values())[:1]]),
    )
    for title, said in sections:
        if said:
            say(console, title, "bold")
            for sentence in said:
                console.print(Padding(literal(console, sentence), (0, 0, 0, 2), expand=False))
    if d.schedule is None:
        say(console, "No model of the dynamics is fitted: give a schedule of learning rates.", "dim")
    say_remarks(console, d)


def _four(x: float) -> str:
    return number(x, 4)
