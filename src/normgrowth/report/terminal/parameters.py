"""The table of parameters: layer and role of each tensor, and whether it is counted or why not."""

from typing import TYPE_CHECKING

from normgrowth.checkpoints.parameters.parameter_list import Parameters
from normgrowth.report.columns.parameters import columns
from normgrowth.report.sentences.parameters import sentences
from normgrowth.report.terminal.console import say, say_each, say_parameters, say_remarks, show_table

if TYPE_CHECKING:
    from rich.console import Console


def show(listed: Parameters, console: "Console", *, remarks: bool = True) -> None:
    """Print the table of parameters. remarks: also print notes and problems."""

    at = "" if listed.step is None else f"step {listed.step:,}"
    facts = ", ".join(filter(None, (listed.checkpoint.removeprefix(listed.source).lstrip("/"), at)))
    say(console, f"{listed.source}{f': {facts}' if facts else ''}", "bold")
    say_parameters(console, listed.selection)
    show_table(console, columns(listed))
    say_each(console, sentences(listed))
    if remarks:
        say_remarks(console, listed)
