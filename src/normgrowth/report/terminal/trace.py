"""A trace in the terminal: a row for each layer and one for the model, then sentences."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from normgrowth.lint.finding import fault_messages
from normgrowth.report.grids import Grids, grids_of_trace
from normgrowth.report.terminal.console import Cells, layer_cells, say, say_parameters, say_remarks
from normgrowth.report.terminal.console import show as show_table
from normgrowth.report.wording import cosine, number, percent, small, summary, times
from normgrowth.trace.result import Trace

if TYPE_CHECKING:
    from rich.console import Console


def show(trace: Trace, console: "Console", *, remarks: bool = True) -> None:
    """remarks: also print notes, problems and the first faults of the integrity checks."""
    if not len(trace.records):
        say(console, f"{trace.source or 'trace'}: no steps measured yet", "bold")
        return
    grids = grids_of_trace(trace)
    first, last = grids.steps[0], grids.steps[-1]
    if first == last:
        span, columns = f"step {first:,}", _one_checkpoint(grids)
    else:
        count = f"{len(grids.steps)} {'measured steps' if trace.tracked else 'checkpoints'}"
        span, columns = f"steps {first:,} to {last:,}, {count}", _growth(grids)
    say(console, f"{trace.source or 'trace'}: {span}", "bold")
    say_parameters(console, trace.selection, trace.counted)
    show_table(console, [layer_cells(grids.things()), *columns], last_bold=True)
    for sentence in summary(grids):
        say(console, sentence)
    if remarks:
        say_remarks(console, trace)
        for fault in fault_messages(trace.findings or ()):
            say(console, f"fault: {fault}", "bold red")


def _one_checkpoint(grids: Grids) -> list[Cells]:
    step = grids.steps[0]
    return [
        _column(grids, "norm", "norm", number, step),
        _column(grids, "rms", "rms", _rough, step),
        _column(grids, "largest", "largest", _rough, step),
    ]


def _growth(grids: Grids) -> list[Cells]:
    first, last = grids.steps[0], grids.steps[-1]
    factors = [times(grids.factor(*thing, last)) for thing in grids.things()]
    return [
        _column(grids, "norm\nat first", "norm", number, first),
        _column(grids, "norm\nat last", "norm", number, last),
        Cells("factor", factors),
        _column(grids, "rms", "rms", _rough, last, rank=6),
        _column(grids, "step\nsize", "step_size", _rough, last, rank=4),
        _column(grids, "relative\nstep", "relative_step", _rough, last, rank=5),
        _column(grids, "cosine to\nprevious", "cosine", cosine, last, rank=1),
        _column(grids, "cosine\nto first", "cosine", cosine, last, rank=3, reference="first"),
        _column(grids, "alignment", "alignment", small, last, rank=2),
        _column(grids, "growth\nby steps", "total_share_steps", percent, last, rank=1),
    ]


def _column(
    grids: Grids,
    title: str,
    quantity: str,
    write: Callable[[float], str],
    step: int,
    *,
    rank: int = 0,
    reference: str | None = None,
) -> Cells:
    values = [grids.value(*thing, quantity, step, reference) for thing in grids.things()]
    return Cells(title, [write(value) for value in values], rank)


def _rough(value: float) -> str:
    return number(value, 4)
