"""What one integrity check found.

A fault is what no training does; a remark is what honest training does too (frozen layers, a first step
with learning rate 0), but what a reader should know.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal[
    "mixed",  # files of another series in the same place
    "data",  # a file that is no checkpoint (a remark)
    "partial",  # cannot be read
    "nonfinite",  # NaN or infinite values
    "missing",  # a tensor that other steps have
    "new",  # a tensor that other steps do not have
    "renamed",  # the same values under another name
    "reshaped",
    "dtype",  # stored in another precision than in other steps (a remark), or in one that cannot be read
    "identical",  # equal to another step to the bit
    "stale",  # a tensor that did not change while its layer did
    "frozen",  # a tensor, or a whole module, that was not trained for a while (a remark)
    "order",  # belongs to another step
    "run",  # belongs to another run, or was re-initialized
    "initial",  # as if freshly initialized
    "buffer",  # counts as a parameter, but is a buffer
]
Severity = Literal["fault", "remark"]
KINDS: tuple[str, ...] = get_args(Kind)
SHOWN = 5  # faults that a trace warns of one by one


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth knowing, at one step."""

    step: int | None  # None where the step of a damaged file is unknown
    name: str  # the tensor; "" for the whole checkpoint
    kind: Kind
    why: str
    label: str  # the file or revision
    severity: Severity = "fault"


def fault_messages(findings: Iterable[Finding]) -> list[str]:
    """Faults in a line each, except NaN, which a trace reports itself."""
    faults = [f for f in findings if f.severity == "fault" and f.kind != "nonfinite"]
    lines = [f"{f.label}: {f.name and f.name + ' '}{f.why} ({f.kind})" for f in faults[:SHOWN]]
    if len(faults) > SHOWN:
        lines.append(f"{len(faults) - SHOWN} more faults; `normgrowth lint` shows them all")
    return lines
