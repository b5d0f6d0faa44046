"""`Findings`: the result of `normgrowth.lint`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, overload

from normgrowth.checkpoints.parameters.selection import Selection
from normgrowth.errors import installed
from normgrowth.records import Records
from normgrowth.results import Result
from normgrowth.trace.sampling.finding import Finding


@dataclass(frozen=True, kw_only=True)
class Findings(Result, Sequence[Finding]):
    """A sequence of findings in the order of steps, with a description of what was checked.

    steps: steps of the checkpoints that could be read. tensors, of_tensors: number of checked and of all parameters.
    """

    kind: ClassVar[str] = "findings"

    records: Records = field(
        default_factory=lambda: Records.from_blocks("", [])
    )  # empty: findings are not numeric
    source: str
    steps: tuple[int, ...] = ()
    selection: Selection = field(default_factory=lambda: Selection("all"))
    tensors: int = 0
    of_tensors: int = 0
    findings: tuple[Finding, ...] = ()

    @overload
    def __getitem__(self, index: int) -> Finding: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Finding, ...]: ...
    def __getitem__(self, index: int | slice) -> Finding | tuple[Finding, ...]:
        return self.findings[index]

    def __len__(self) -> int:
        return len(self.findings)

    @property
    def faults(self) -> tuple[Finding, ...]:
        """Return the findings that training cannot explain."""
        return tuple(finding for finding in self.findings if finding.severity == "fault")

    @property
    def remarks(self) -> tuple[Finding, ...]:
        """Return the findings that normal training can explain."""
        return tuple(finding for finding in self.findings if finding.severity == "remark")

    @property
    def checked(self) -> str:
        """Return which parameters were checked: "all 148 parameters", "96 of 148 parameters (include blocks)"."""
        if self.tensors == self.of_tensors:
            return f"all {self.of_tensors:,} parameters"
        given = {"select": self.selection.select, "exclude": self.selection.exclude}
        said = [f"{option} {value!r}" for option, value in given.items() if value is not None]
        if self.selection.select is None and self.selection.include != "all":
            said.insert(0, f"include {self.selection.include}")
        counts = f"{self.tensors:,} of {self.of_tensors:,} parameters"
        return f"{counts} ({', '.join(said)})" if said else counts

    def to_pandas(self) -> Any:
        """Return a DataFrame with one row per finding."""
        return installed("pandas").DataFrame(map(asdict, self.findings))

    def to_polars(self) -> Any:
        """Return a DataFrame with one row per finding."""
        return installed("polars").DataFrame(list(map(asdict, self.findings)))
