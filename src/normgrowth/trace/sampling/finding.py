"""One finding of an integrity check.

A fault is something that training does not do. A remark is something that normal training can explain (frozen
layers, a first step with learning rate 0) but that a user should know.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal[
    "mixed",  # files of another series in the same place
    "data",  # a file that is not a checkpoint (a remark)
    "partial",  # cannot be read
    "nonfinite",  # NaN or infinite values
    "missing",  # a tensor that other steps have
    "new",  # a tensor that other steps do not have
    "renamed",  # the same values under another name
    "reshaped",
    "dtype",  # stored in a different dtype than in other steps (a remark), or in an unsupported one
    "identical",  # bit-identical to another step
    "stale",  # a tensor that did not change while its layer did
    "frozen",  # a tensor or a whole module that was temporarily or never trained (a remark)
    "order",  # belongs to another step
    "run",  # belongs to another run, or was re-initialized
    "initial",  # looks freshly initialized
    "buffer",  # a buffer that is counted as a parameter
]
Severity = Literal["fault", "remark"]
KINDS: tuple[str, ...] = get_args(Kind)
SHOWN = 5  # number of faults that a trace reports individually


@dataclass(frozen=True)
class Finding:
    """A fault or a remark at one step."""

    step: int | None  # None: the step of a damaged file is unknown
    name: str  # the tensor; "" for the whole checkpoint
    kind: Kind
    why: str
    label: str  # the file or revision
    severity: Severity = "fault"


def fault_messages(findings: Iterable[Finding]) -> list[str]:
    """Return one line per fault, except NaN and infinite values, which a trace reports itself."""
    faults = [f for f in findings if f.severity == "fault" and f.kind != "nonfinite"]
    lines = [f"{f.label}: {f.name and f.name + ' '}{f.why} ({f.kind})" for f in faults[:SHOWN]]
    if len(faults) > SHOWN:
        lines.append(f"{len(faults) - SHOWN} more faults; run `normgrowth lint` to see all of them")
    return lines
