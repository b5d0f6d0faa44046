"""Run: the result of `train`."""

from dataclasses import dataclass, field
from math import nan
from typing import ClassVar

import numpy as np

from normgrowth.checkpoints.parameters.selection import CountedParameters, Selection
from normgrowth.errors import InputError
from normgrowth.lab.settings import TrainSettings, every
from normgrowth.records import Records
from normgrowth.results import Result
from normgrowth.serialization.record_schema import AXES
from normgrowth.trace.result import Trace

# Quantities that evaluations add to the records; the tracker measures all others.
SCORES = ("loss", "perplexity", "accuracy", "legal_share", "legal_mass", "member_share")
EVALUATED = ("epoch", "train_loss", "dev_loss", *SCORES, *(f"test_{name}" for name in SCORES))


@dataclass(frozen=True)
class CorpusSummary:
    """A description of a corpus. sentences, tokens: counts for the parts train, valid and test."""

    name: str
    fingerprint: str = ""  # hash of the rows and words
    vocabulary: int = 0
    positions: int = 0
    sentences: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    frequency_loss: float = nan  # nats per token of a model that predicts only word frequencies


@dataclass(frozen=True)
class Evaluation:
    """The scores of a model on held-out sentences after a step: loss, perplexity, accuracy and others by name."""

    step: int
    scores: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Run(Result):
    """A training run: settings, evaluations, and norms, steps and angles of the model and its layers."""

    kind: ClassVar[str] = "run"

    settings: TrainSettings
    corpus: CorpusSummary
    steps: int = 0
    best_step: int | None = None  # with the lowest development loss
    parameters: int = 0
    selection: Selection | None = None  # the counted parameters
    counted: CountedParameters | None = None
    threads: int = 0
    ranks: int = 1

    @property
    def trace(self) -> Trace:
        """Return norms, steps and angles of the model and its layers as a trace, for `fit`, `dynamics` and others.

        The rows of tensors and roles are in the folder `tracker` of the run, which is updated during the run.
        """
        table = self.records.table
        evaluated = [name for name in self.records.distinct("quantity") if _is_evaluated(name)]
        own = np.isin(table["quantity"].to_pylist(), evaluated)
        tracked = table.filter(~own)
        columns = [name for name in AXES if name in tracked.column_names]
        unused = [name for name in columns if tracked[name].null_count == len(tracked)]
        rows = Records(tracked.drop_columns(unused))
        if not len(rows):
            raise InputError("the run is not finished; its norms so far are in its folder `tracker`")
        run = rows.single_run()
        return Trace(
            records=rows,
            source=run,
            run=run,
            steps=tuple(rows.where(level="model", quantity="norm").distinct("step")),
            selection=self.selection,
            counted=self.counted,
            tracked=True,
            model=self.settings.kind,
            optimizer=self.settings.optimizer,
            every=every(self.settings.track),
            ranks=self.ranks,
            notes=self.notes,
            problems=self.problems,
            provenance=self.provenance,
        )

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """Return all evaluations on the development part, in the order of steps."""
        model = self.records.where(level="model")
        steps = model.where(quantity="dev_loss").table["step"].to_pylist()
        return tuple(Evaluation(step, self._scores(step)) for step in sorted(steps))

    @property
    def test(self) -> Evaluation | None:
        """Return the evaluation of the best model on the test part; None if the run is not finished."""
        if self.best_step is None:
            return None
        scores = {
            name.removeprefix("test_"): value
            for name, value in self._scores(self.best_step).items()
            if name.startswith("test_")
        }
        return Evaluation(self.best_step, scores) if scores else None

    def _scores(self, step: int) -> dict[str, float]:
        rows = self.records.where(level="model", step=step, reference=None, scale=None).to_rows()
        return {row["quantity"]: row["value"] for row in rows}


def _is_evaluated(quantity: str) -> bool:
    return quantity in EVALUATED or quantity.startswith("saturation")
