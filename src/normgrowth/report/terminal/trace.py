"""A trace in the terminal: a row for each layer and one for the model, then sentences."""

from typing import TYPE_CHECKING

from normgrowth.report.columns.trace import layer_columns, scalar_columns
from normgrowth.report.grids import Grids, grids_of_trace
from normgrowth.report.sentences.trace import sentences
from normgrowth.report.terminal.console import (
    layer_names,
    say,
    say_most_important,
    say_parameters,
    say_remarks,
    show_table,
)
from normgrowth.trace.result import Trace
from normgrowth.trace.sampling.finding import fault_messages

if TYPE_CHECKING:
    from rich.console import Console


def show(trace: Trace, console: "Console", *, remarks: bool = True) -> None:
    """Print the table of layers, then sentences. remarks: also print notes, problems and the first faults."""
    if not len(trace.records):
        say(console, f"{trace.source or 'trace'}: no steps measured yet", "bold")
        return
    grids = grids_of_trace(trace)
    first, last = grids.steps[0], grids.steps[-1]
    count = f"{len(grids.steps)} {'measured steps' if trace.tracked else 'checkpoints'}"
    span = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}, {count}"
    say(console, f"{trace.source or 'trace'}: {span}", "bold")
    say_parameters(console, trace.selection, trace.counted)
    if first != last:
        say(console, _spans(grids), "dim")
    rows = [(grids, *thing) for thing in grids.things()]
    names = layer_names(grids.things())
    show_table(console, [names, *layer_columns(rows)], last_bold=True)
    if first != last and len(grids.model("share_grown", "first")[0]):
        say(console, f"Single weights at step {last:,}, compared with step {first:,}", "bold")
        show_table(console, [names, *scalar_columns(rows)], last_bold=True)
    say_most_important(console, sentences(grids, most=None))
    if remarks:
        say_remarks(console, trace)
        for fault in fault_messages(trace.findings or ()):
            say(console, f"fault: {fault}", "bold red")


def _spans(grids: Grids) -> str:
    """Over which steps the table measures changes, in one line."""
    before, last = grids.steps[-2:]
    over = f"training step {last:,}" if grids.tracked else f"steps {before:,} to {last:,}"
    return f"Columns with “last” or “previous” cover {over}; the others cover steps {grids.steps[0]:,} to {last:,}."
