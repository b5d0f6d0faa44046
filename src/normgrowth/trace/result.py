"""`Trace`: the result of `normgrowth.trace` and of a tracker during training."""

import warnings
from dataclasses import dataclass
from typing import ClassVar, Self

from normgrowth.checkpoints.parameters.selection import CountedParameters, Selection, parameters_text
from normgrowth.errors import SeriesWarning
from normgrowth.moments.levels import DOMINANT as DOMINANT
from normgrowth.moments.levels import LAYER_MATRICES as LAYER_MATRICES
from normgrowth.moments.levels import MATRICES as MATRICES  # re-exported for the report
from normgrowth.moments.levels import VECTORS as VECTORS
from normgrowth.records import Records
from normgrowth.results import Result
from normgrowth.schedules import OptimizerGroup, Schedule
from normgrowth.serialization.checksums import JsonObject
from normgrowth.stored_result import StoredResult
from normgrowth.text import visible
from normgrowth.trace.sampling.finding import Finding, fault_messages

# Fields that also describe the norms in results of other commands.
SHARED = ("source", "selection", "counted", "notes", "problems", "provenance")


@dataclass(frozen=True, kw_only=True)
class Trace(Result):
    """Norms, steps, directions and the growth budget of every tensor, layer, role and the model.

    steps, step_origins, checkpoints: one entry per measured checkpoint: its training step, where the step comes from
    ("name", "stored", ...), and the file or revision.
    lags: the records contain cosines to the checkpoints this many places back.
    findings: results of the integrity checks; None if they were skipped.
    tracked: the trace consists of single optimizer steps, measured during training, not of checkpoints.
    model, optimizer, every, ranks: for a tracked run, the classes of its model and optimizer, which steps were
    measured ("powers": 1, 2, 4, ...) and the number of processes.
    compute_dtypes: dtypes in which the forward passes of a tracked run compute, other than those of its weights, as
    with autocast.
    published: the numbers come from a paper and were not measured.
    optimizer_groups: parameter groups of a tracked run, or those that a Trainer saved next to its checkpoints.
    optimizer_changes: changes of these groups during a tracked run; optimizer_groups has the last settings.
    schedule: learning rates that a Trainer saved next to its checkpoints; a tracked run has them in its records.
    """

    kind: ClassVar[str] = "trace"
    many_tensors: ClassVar[bool] = True

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
    compute_dtypes: tuple[str, ...] = ()
    published: bool = False
    optimizer_groups: tuple[OptimizerGroup, ...] = ()
    optimizer_changes: tuple[str, ...] = ()
    schedule: Schedule | None = None

    @property
    def parameters(self) -> str:
        """Return the counted parameters: "blocks (144 of 148 tensors, 85.1M of 124.4M values)"; "" if unknown."""
        return parameters_text(self.selection, self.counted) if self.selection else ""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return notes, problems and the first faults of the integrity checks, one line each."""
        return (*self.notes, *self.problems, *fault_messages(self.findings or ()))

    def __repr__(self) -> str:
        """Return one line: the source, the steps, and the norm at the first and the last of them."""
        steps = self.steps
        if not steps:
            return f"Trace({visible(self.source or self.run)}, no steps)"
        rows = self.records.where(level="model", quantity="norm", scale=None)
        norms = dict(zip(*(rows.table[name].to_pylist() for name in ("step", "value")), strict=True))
        first, last = steps[0], steps[-1]
        ends = [norms[step] for step in (first, last) if step in norms]
        grew = f"; norm {' to '.join(f'{norm:.6g}' for norm in dict.fromkeys(ends))}" if ends else ""
        which = f"steps {first:,} to {last:,}" if last > first else f"step {first:,}"
        return f"Trace({visible(self.source or self.run)}, {len(steps):,} checkpoints, {which}{grew})"

    def warn(self, stacklevel: int = 2) -> None:
        """Issue each remark as a `SeriesWarning`."""
        for remark in self.remarks:
            warnings.warn(remark, SeriesWarning, stacklevel=stacklevel + 1)

    @classmethod
    def from_records(cls, records: Records) -> Self:
        """Return a trace of a table of norms; its other fields are unknown."""
        return cls.from_stored(StoredResult(records))

    @classmethod
    def from_stored(cls, stored: StoredResult) -> Self:
        """Return the stored trace; also accepts results of other commands that measure norms."""
        records = stored.records
        known: JsonObject = {"run": ", ".join(map(str, records.distinct("run"))), **stored.fields}
        if stored.kind not in (cls.kind, None):
            known = {key: known[key] for key in ("run", *SHARED) if key in known}
            known["tracked"] = stored.kind == "run"
        norms = records.where(quantity="norm")
        known.setdefault("steps", sorted((norms.where(level="model") or norms).distinct("step")))
        return super().from_stored(StoredResult(records, known))
