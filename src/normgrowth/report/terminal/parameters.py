"""How each tensor is read: its layer and role, whether it counts, and if not, why."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from normgrowth.checkpoints.parameter_list import Kind, Parameter, Parameters
from normgrowth.report.terminal.console import Cells, say, say_remarks
from normgrowth.report.terminal.console import show as show_table

if TYPE_CHECKING:
    from rich.console import Console

NOT_PARAMETERS: dict[Kind, str] = {
    "optimizer": "tensors of optimizer or training state",
    "buffer": "buffers",
    "tied": "further names of tied parameters",
}


def show(listed: Parameters, console: "Console", *, remarks: bool = True) -> None:
    """remarks: also print notes and problems."""

    def column(title: str, write: Callable[[Parameter], str], rank: int = 0, **look: Any) -> Cells:
        return Cells(title, [write(parameter) for parameter in listed], rank, right=False, **look)

    columns = [
        column("", lambda p: "✓" if p.counted else ""),
        column("tensor", lambda p: p.name),
        column("shape", lambda p: "×".join(map(str, p.shape)) or "scalar", rank=1),
        column("dtype", lambda p: p.dtype, rank=2),
        column("layer", lambda p: p.layer_name),
        column("role", _role, widest=0.25),
    ]
    show_table(console, columns)
    own = listed.of_kind("parameter")
    counted = [parameter for parameter in own if parameter.counted]
    tensors = f"{len(counted):,} of {len(own):,} tensors"
    say(console, f"{tensors} are counted, with {_values(counted):,} of {_values(own):,} parameters.")
    for kind, called in NOT_PARAMETERS.items():
        if apart := listed.of_kind(kind):
            say(console, f"Not parameters: {len(apart):,} {called}, {_values(apart):,} values.")
    if remarks:
        say_remarks(console, listed)


def _values(parameters: Iterable[Parameter]) -> int:
    return sum(parameter.numel for parameter in parameters)


def _role(parameter: Parameter) -> str:
    role, reason = parameter.role, parameter.reason
    if parameter.counted:
        return role
    left_out = "left out" if not reason or reason == role else f"left out: {reason}"
    says_role = not role or (reason and reason != role and reason.startswith(role))
    return left_out if says_role else f"{role}, {left_out}"
