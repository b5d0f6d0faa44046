"""`Trace`: what `normgrowth.trace` returns, and what a tracker measures of a running training."""

import warnings
from dataclasses import dataclass
from typing import ClassVar, Self

from normgrowth.checkpoints.selection import CountedParameters, Selection, parameters_text
from normgrowth.checksums import JsonObject
from normgrowth.errors import SeriesWarning
from normgrowth.lint.finding import Finding, fault_messages
from normgrowth.records import Records
from normgrowth.results import Result
from normgrowth.schedules import OptimizerGroup, Schedule
from normgrowth.stored_result import StoredResult

# Of records that another command wrote, what describes their norms.
SHARED = ("source", "selection", "counted", "notes", "problems")


@dataclass(frozen=True, kw_only=True)
class Trace(Result):
    """Norms, steps, directions and the growth budget of every tensor, layer, role and the model.

    steps, step_origins, checkpoints: one entry per measured checkpoint: its training step, where the step comes from
    ("name", "stored", ...), and the file or revision. lags: cosines to checkpoints that many places back are in the
    records. findings: of the integrity checks; None if they were skipped. tracked: single optimizer steps of a
    running training rather than checkpoints; model, optimizer, every, ranks: of such a training, the classes of its
    model and optimizer, which steps were measured ("powers": 1, 2, 4, ...) and the number of processes.
    published: numbers of a paper rather than measured ones. optimizer_groups: of a tracked training; schedule: the
    learning rates that a Trainer left beside its checkpoints; a tracked training has them in its records.
    """

    kind: ClassVar[str] = "trace"

    source: str = ""
    run: str = ""
    steps: tuple[int, ...] = ()
    step_origins: tuple[str, ...] = ()
    checkpoints: tuple[str, ...] = ()
    selection: Selection | None = None  # None: unknown
    counted: CountedParameters | None = None
    lags: tuple[int, ...] = ()
    tokens_per_step: float | None = None
    findings: tuple[Finding, ...] | None = None
    tracked: bool = False
    model: str = ""
    optimizer: str = ""
    every: int | str | None = None
    ranks: int = 1
    published: bool = False
    optimizer_groups: tuple[OptimizerGroup, ...] = ()
    schedule: Schedule | None = None

    @property
    def parameters(self) -> str:
        """Which parameters count, "blocks (144 of 148 tensors, 85.1M of 124.4M values)"; "" where it is unknown."""
        return parameters_text(self.selection, self.counted) if self.selection else ""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Notes, problems and the first faults of the integrity checks, a line each."""
        return (*self.notes, *self.problems, *fault_messages(self.findings or ()))

    def to_json(self, *, tensors: bool = False) -> JsonObject:
        """All fields and the rows of the model, layers and roles; with `tensors` also those of single tensors."""
        return super().to_json(tensors=tensors)

    def warn(self, stacklevel: int = 2) -> None:
        """Issue each remark as a `SeriesWarning`."""
        for remark in self.remarks:
            warnings.warn(remark, SeriesWarning, stacklevel=stacklevel + 1)

    @classmethod
    def from_records(cls, records: Records) -> Self:
        """A trace of a table that holds norms, whose other fields are unknown."""
        return cls.from_stored(StoredResult(records))

    @classmethod
    def from_stored(cls, stored: StoredResult) -> Self:
        """Also from folders of earlier versions, and from those of other commands that measured norms."""
        records = stored.records
        known: JsonObject = {"run": (records.distinct("run") or [""])[0], **stored.fields}
        command = known.get("command")
        if known.get("kind", command) not in ("trace", "tracker", None):
            known = {key: known[key] for key in ("run", *SHARED) if key in known}
        norms = records.where(quantity="norm")
        known.setdefault("steps", sorted((norms.where(level="model") or norms).distinct("step")))
        known.setdefault("tracked", command in ("tracker", "train", "run"))
        return super().from_stored(StoredResult(records, known))
