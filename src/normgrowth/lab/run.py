"""Run: the result of `train`."""

from dataclasses import dataclass, field
from math import nan
from typing import ClassVar

from normgrowth.lab.settings import TrainSettings
from normgrowth.results import Result


@dataclass(frozen=True)
class CorpusSummary:
    """A corpus as its readers know it. sentences, tokens: of the parts train, valid and test."""

    name: str
    fingerprint: str = ""  # the same for the same rows and words
    vocabulary: int = 0
    positions: int = 0
    sentences: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    frequency_loss: float = nan  # nats per token of a model that knows word frequencies only


@dataclass(frozen=True)
class Evaluation:
    """The scores of a model on held-out sentences after a step: loss, perplexity, accuracy and others by name."""

    step: int
    scores: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Run(Result):
    """A training run: its settings, evaluations, and the norms, steps and angles of the model and its layers."""

    kind: ClassVar[str] = "run"

    settings: TrainSettings
    corpus: CorpusSummary
    steps: int = 0
    best_step: int | None = None  # with the lowest development loss
    parameters: int = 0
    selection: dict[str, str | None] = field(default_factory=dict)  # the parameters that norms count
    counted: dict[str, int] = field(default_factory=dict)
    threads: int = 0
    ranks: int = 1

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """One for each evaluation on the development part, in the order of steps."""
        model = self.records.where(level="model")
        steps = model.where(quantity="dev_loss").table["step"].to_pylist()
        return tuple(Evaluation(step, self._scores(step)) for step in sorted(steps))

    @property
    def test(self) -> Evaluation | None:
        """The best model on the test part; None of a run that goes on."""
        if self.best_step is None:
            return None
        scores = {
            name.removeprefix("test_"): value
            for name, value in self._scores(self.best_step).items()
            if name.startswith("test_")
        }
        return Evaluation(self.best_step, scores) if scores else None

    def _scores(self, step: int) -> dict[str, float]:
        rows = self.records.where(level="model", step=step, reference=None).to_rows()
        return {row["quantity"]: row["value"] for row in rows}
