"""A trace in the terminal: a row for each layer and one for the model, then sentences."""

from collections.abc import Callable
from math import exp
from typing import TYPE_CHECKING

from normgrowth.report.grids import Grids, grids_of_trace
from normgrowth.report.numbers import cosine, number, percent, signed, small, times
from normgrowth.report.sentences.trace import sentences as trace_sentences
from normgrowth.report.terminal.console import (
    Cells,
    layer_cells,
    say,
    say_most_important,
    say_parameters,
    say_remarks,
)
from normgrowth.report.terminal.console import show as show_table
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
    if first == last:
        span, columns = f"step {first:,}", _one_checkpoint(grids)
    else:
        count = f"{len(grids.steps)} {'measured steps' if trace.tracked else 'checkpoints'}"
        span, columns = f"steps {first:,} to {last:,}, {count}", _growth(grids)
    say(console, f"{trace.source or 'trace'}: {span}", "bold")
    say_parameters(console, trace.selection, trace.counted)
    if first != last:
        say(console, _spans(grids), "dim")
    show_table(console, [layer_cells(grids.things()), *columns], last_bold=True)
    if first != last and (scalars := _scalars(grids, last)):
        say(console, f"Single weights at step {last:,}, compared with step {first:,}", "bold")
        show_table(console, [layer_cells(grids.things()), *scalars], last_bold=True)
    say_most_important(console, trace_sentences(grids, most=None))
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
        *_on_request(grids, step),
    ]


def _spans(grids: Grids) -> str:
    """Over which steps the table measures changes, in one line."""
    before, last = grids.steps[-2:]
    over = f"training step {last:,}" if grids.tracked else f"steps {before:,} to {last:,}"
    return f"Columns with “last” or “previous” cover {over}; the others cover steps {grids.steps[0]:,} to {last:,}."


def _growth(grids: Grids) -> list[Cells]:
    first, last = grids.steps[0], grids.steps[-1]
    factors = [times(grids.factor(*thing, last)) for thing in grids.things()]
    return [
        _column(grids, "norm\nat first", "norm", number, first),
        _column(grids, "norm\nat last", "norm", number, last),
        Cells("factor", factors),
        _column(grids, "rms", "rms", _rough, last, rank=6),
        _column(grids, "last\nstep size", "step_size", _rough, last, rank=4),
        _column(grids, "last\nrelative step", "relative_step", _rough, last, rank=5),
        _column(grids, "cosine to\nprevious", "cosine", cosine, last, rank=1),
        _column(grids, "cosine\nto first", "cosine", cosine, last, rank=3, reference="first"),
        _column(grids, "last\nalignment", "alignment", small, last, rank=2),
        *_budget(grids, last),
        *_on_request(grids, last),
    ]


def _on_request(grids: Grids, step: int) -> list[Cells]:
    """Columns of quantities that only some traces have: LoRA updates, the gradient and the state of the optimizer."""
    columns = {
        "lora_update_norm": ("LoRA\nupdate", _rough, 1),
        "gradient_alignment": ("gradient\nalignment", small, 2),
        "first_moment_norm": ("first\nmoment", _rough, 5),
        "second_moment_norm": ("second\nmoment", _rough, 5),
        "moment_ratio": ("moment\nratio", _rough, 3),
    }
    return [
        _column(grids, title, quantity, write, step, rank=rank)
        for quantity, (title, write, rank) in columns.items()
        if len(grids.model(quantity)[0])
    ]


def _scalars(grids: Grids, last: int) -> list[Cells]:
    """Columns of a table of their own: single weights compared with the first checkpoint, if the trace has them."""
    if not len(grids.model("share_grown", "first")[0]):
        return []
    columns = {
        "share_grown": ("grew in\nmagnitude", percent),
        "share_sign_changed": ("changed\nsign", percent),
        "log_ratio_q05": ("|θ/θ₀|\n5%", _ratio),
        "log_ratio_q50": ("|θ/θ₀|\nmedian", _ratio),
        "log_ratio_q95": ("|θ/θ₀|\n95%", _ratio),
    }
    return [
        _column(grids, title, quantity, write, last, reference="first")
        for quantity, (title, write) in columns.items()
    ]


def _budget(grids: Grids, last: int) -> list[Cells]:
    """The share of the steps in the growth of ‖θ‖², or the terms themselves if one of them is negative."""
    if grids.additive_terms():
        return [_column(grids, "growth\nby steps", "total_share_steps", percent, last, rank=1)]
    terms = {"": "growth\nof ‖θ‖²", "_steps": "by\nsteps", "_alignment": "by\nalignment"}
    return [
        _column(grids, title, f"total_growth{term}", signed, last, rank=1) for term, title in terms.items()
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


def _ratio(log: float) -> str:
    return number(exp(log), 3)
