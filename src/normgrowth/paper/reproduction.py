"""What a reproduction of the paper found. Needs no torch: a saved one can be read and shown in the base install."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class StageOutcome:
    """How a stage ended. seconds: how long it ran. reason: why it failed, in a line."""

    name: str
    title: str = ""
    status: Literal["ran", "kept", "failed"] = "ran"
    seconds: float | None = None
    reason: str = ""

    @property
    def failed(self) -> bool:
        return self.status == "failed"

    def __str__(self) -> str:
        if self.failed:
            return f"failed: {self.reason}"
        return "kept" if self.seconds is None else f"{self.seconds:.0f} s"
