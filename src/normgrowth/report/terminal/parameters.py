"""The table of parameters: layer and role of each tensor, and whether it is counted or why not."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from normgrowth.checkpoints.parameters.parameter_list import Parameter, Parameters
from normgrowth.report.sentences.parameters import role, sentences
from normgrowth.report.terminal.console import Cells, say, say_parameters, say_remarks
from normgrowth.report.terminal.console import show as show_table

if TYPE_CHECKING:
    from rich.console import Console


def show(listed: Parameters, console: "Console", *, remarks: bool = True) -> None:
    """Print the table of parameters. remarks: also print notes and problems."""

    def column(title: str, write: Callable[[Parameter], str], rank: int = 0, **look: Any) -> Cells:
        return Cells(title, [write(parameter) for parameter in listed], rank, right=False, **look)

    at = "" if listed.step is None else f"step {listed.step:,}"
    facts = ", ".join(filter(None, (listed.checkpoint.removeprefix(listed.source).lstrip("/"), at)))
    say(console, f"{listed.source}{f': {facts}' if facts else ''}", "bold")
    say_parameters(console, listed.selection)
    columns = [
        column("counted", lambda p: "✓" if p.counted else ""),
        column("tensor", lambda p: p.name),
        column("shape", lambda p: "×".join(map(str, p.shape)) or "scalar", rank=1),
        column("dtype", lambda p: p.dtype, rank=2),
        column("layer", lambda p: p.layer_name),
        column("role", role, widest=0.25),
    ]
    show_table(console, columns)
    for sentence in sentences(listed):
        say(console, sentence)
    if remarks:
        say_remarks(console, listed)
