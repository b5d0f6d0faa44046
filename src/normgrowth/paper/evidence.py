"""The results of the stages as typed values. Only this module knows the layout of their records.

    evidence.theory.table1["paper's encoder"].measured
    evidence.language_models.where(leaking=False, optimizer="adamw")[0].first_and_last("norm")

Reading a stage that was not run, or failed, raises MissingEvidence.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.checkpoints.parameters.selection import Selection
from normgrowth.errors import InputError
from normgrowth.lab.run import CorpusSummary
from normgrowth.lab.settings import DECAY
from normgrowth.network.behavior.result import Behavior, NetworkBehavior
from normgrowth.network.heads.result import Heads
from normgrowth.paper.t5_series import PublishedT5, T5Series
from normgrowth.records import Records
from normgrowth.schedules import Schedule
from normgrowth.serialization.json_types import converted
from normgrowth.stored_result import StoredResult
from normgrowth.trace.result import Trace

if TYPE_CHECKING:
    from normgrowth.network.scaling.result import Scaling

Floats = NDArray[np.float64]


class MissingEvidence(InputError):
    """A stage has no records, or its records lack the requested numbers."""

    def __init__(self, stage: str, reason: str) -> None:
        self.stage, self.reason = stage, reason
        super().__init__(f"the stage {stage} has no results for it: {reason}")


@dataclass(frozen=True)
class Evidence:
    """The results that claims are judged by.

    stored: the result of each stage. failed: why a stage has no result. t5: the series of Figures 1 and 5.
    """

    stored: Mapping[str, StoredResult] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    t5: T5Series = field(default_factory=PublishedT5)

    def has(self, *stages: str) -> bool:
        return all(stage in self.stored for stage in stages)

    def described(self, stage: str) -> str:
        """A short description of what a stage measured: the data of a verdict."""
        if stage not in self.stored:
            return f"{stage}: {self.failed.get(stage, 'not run')}"
        if stage == "theory":
            return "small networks with known answers, run here in float64"
        if stage == "scaling":
            return f"{len(self.scaling.networks)} random networks, scaled here"
        if stage == "pretrained":
            return f"weights of {', '.join(self.pretrained)}; sentences of {self.sentences_read}"
        if stage == "decay":
            return f"a grid with {len(self.decay.learning_rates)} learning rates, trained here"
        return self.language_models.described()

    def stored_of(self, stage: str) -> StoredResult:
        if stage not in self.stored:
            raise MissingEvidence(stage, self.failed.get(stage, "it was not run"))
        return self.stored[stage]

    @cached_property
    def theory(self) -> "Theory":
        return Theory.read(self.stored_of("theory").records)

    @cached_property
    def scaling(self) -> "Scaling":
        from normgrowth.network.scaling.result import Scaling

        return Scaling.from_stored(self.stored_of("scaling"))

    def curve(self, kind: str, bias: bool) -> "Curve":
        """The mean curve of one kind of network in the stage `scaling`."""
        curves = mean_curves(self.scaling)
        if (kind, bias) not in curves:
            raise MissingEvidence("scaling", f"it has no curve of {kind}")
        return curves[kind, bias]

    @cached_property
    def pretrained(self) -> "dict[str, Levels]":
        return _levels(self.stored_of("pretrained").records)

    @cached_property
    def sentences_read(self) -> str:
        """The name of the text in the stage `pretrained`."""
        from normgrowth.network.saturation.result import Saturation

        known = Saturation.from_stored(self.stored_of("pretrained")).models.values()
        return ", ".join(dict.fromkeys(Path(one.text.source.partition(",")[0]).name for one in known))

    @cached_property
    def language_models(self) -> "TrainedModels":
        return TrainedModels.read(self.stored_of("language_models"))

    @cached_property
    def decay(self) -> "DecayEdges":
        return DecayEdges.read(self.stored_of("decay").records)


# theory ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ComponentDegree:
    """The degree of a component. printed: in the paper, or NaN. measured: the slope of log‖f(cθ)‖. gradient: the slope
    of its gradient, or NaN.
    """

    printed: float
    computed: float
    measured: float
    gradient: float


@dataclass(frozen=True)
class DistanceFromLimit:
    """The distance of a network from its limit. away: ‖f(cθ)/cᵏ − limit‖ / ‖limit‖ at c = 10⁴."""

    degree: float
    away: float
    cosine: float


@dataclass(frozen=True)
class TieWeights:
    """The larger attention weight in the saturated network, and in the limit of growth that is uniform up to o(t)."""

    saturated: float
    moved: float


@dataclass(frozen=True)
class Vanishing:
    """1 − cosine of the states with and without the attention of all layers but the first, at c = 1 and c = 1000."""

    turned: float
    turned_scaled: float


@dataclass(frozen=True)
class ConstructionErrors:
    """Numbers of strings. wrong: misjudged by the saturated network; wrong_soft: by the network with large weights."""

    strings: float
    wrong: float
    wrong_soft: float


class Table1(dict[str, ComponentDegree]):
    """By component."""

    def __missing__(self, component: str) -> ComponentDegree:
        raise MissingEvidence("theory", f"its records lack {component!r}")


@dataclass(frozen=True)
class Theory:
    table1: Table1
    limits: dict[str, DistanceFromLimit]
    tie: TieWeights
    vanishing: Vanishing
    constructions: dict[str, ConstructionErrors]

    @staticmethod
    def read(records: Records) -> "Theory":
        runs: dict[str, dict[str, float]] = {}
        for row in records.where(level="model").table.to_pylist():
            runs.setdefault(row["run"], {})[row["quantity"]] = row["value"]

        def of(prefix: str) -> dict[str, dict[str, float]]:
            return {run.removeprefix(prefix): known for run, known in runs.items() if run.startswith(prefix)}

        try:
            return Theory(
                table1=Table1(
                    (
                        name,
                        ComponentDegree(
                            one.get("printed", nan),
                            one.get("degree", nan),
                            one.get("degree_measured", nan),
                            one.get("gradient_degree", nan),
                        ),
                    )
                    for name, one in of("table1: ").items()
                ),
                limits={
                    name: DistanceFromLimit(one["degree"], one["away"], one["cosine"])
                    for name, one in of("limit: ").items()
                },
                tie=TieWeights(**runs["tie"]),
                vanishing=Vanishing(**runs["vanishing"]),
                constructions={
                    name: ConstructionErrors(one["strings"], one["wrong"], one["wrong_soft"])
                    for name, one in of("construction: ").items()
                },
            )
        except (KeyError, TypeError) as error:
            raise MissingEvidence("theory", f"its records lack {error}") from error


# scaling -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """The cosine to the saturated network, all tokens as one vector, at each scale; mean over seeds."""

    scales: Floats
    cosines: Floats

    def at(self, c: float) -> float:
        return float(np.interp(np.log(c), np.log(self.scales), self.cosines))


def mean_curves(scaling: "Scaling") -> dict[tuple[str, bool], Curve]:
    """The mean curves by kind of network, and whether it has biases."""
    return {
        (one.kind, bool(one.bias)): Curve(one.scales, one.mean("cosine_flattened")) for one in scaling.curves
    }


# pretrained --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Levels:
    """Saturation at c = 1000, mean over layers, with trained and with random weights."""

    trained: float
    random: float


def _levels(records: Records) -> dict[str, Levels]:
    found = {}
    for run in records.distinct("run"):
        rows = records.where(run=run, level="model", scale=1000).table.to_pylist()
        values = {row["quantity"]: row["value"] for row in rows}
        found[run] = Levels(values.get("saturation", nan), values.get("saturation_random", nan))
    return found


# language_models ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelSettings:
    """The settings by which claims distinguish language models; include: which parameters norms count."""

    kind: str
    optimizer: str
    leaking: bool
    corpus: str
    seed: int
    schedule: str = "constant"
    lr: float | None = None
    warmup: int = 0
    hold: int = 0
    weight_decay: float | None = None
    include: str | None = None
    layers: int | None = None
    width: int | None = None
    batch: int | None = None
    epochs_trained: float | None = None  # passes over the training part, computed from the number of steps

    @property
    def rate(self) -> Schedule | None:
        """The learning rates; None if they are unknown, or depend on the number of steps."""
        if self.lr is None or self.schedule not in ("constant", "inverse_sqrt"):
            return None
        return Schedule(self.schedule, self.lr, warmup=self.warmup, hold=self.hold)

    @property
    def decay(self) -> float:
        return DECAY.get(self.optimizer, 0.0) if self.weight_decay is None else self.weight_decay


@dataclass(frozen=True)
class HeadFields:
    """What the stage keeps of the heads of a model in addition to their records."""

    window: int | None = None
    tolerance: float | None = None
    thresholds: dict[str, dict[str, float]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    saturated_kinds: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelFields:
    """The fields of the result of one model."""

    settings: ModelSettings
    corpus: CorpusSummary
    heads: HeadFields = HeadFields()
    steps: int | None = None


@dataclass(frozen=True)
class LanguageModelFields:
    """The fields of the stage's result: models and heads by name of the model, corpora by name of the corpus."""

    models: dict[str, ModelSettings]
    heads: dict[str, HeadFields] = field(default_factory=dict)
    corpora: dict[str, CorpusSummary] = field(default_factory=dict)
    selection: Selection | None = None


@dataclass(frozen=True)
class TrainedModel:
    """One language model. frequency_loss: the loss of word frequencies on its development part, NaN if unknown.

    layers, width, epochs: its size and the length of its training; None in records of earlier versions. rate: its
    learning rates, None if they are unknown.
    """

    name: str
    kind: str
    optimizer: str
    leaking: bool
    corpus: str
    seed: int
    schedule: str
    frequency_loss: float
    layers: int | None
    width: int | None
    epochs: float | None
    rate: Schedule | None
    weight_decay: float
    measured: Records  # evaluations and tracker
    trace: Trace  # of its checkpoints
    heads: Heads  # of its checkpoints
    behavior: Behavior  # of its last checkpoint; without records in results of earlier versions

    def first_and_last(self, quantity: str) -> tuple[float, float]:
        try:
            _, values = self.measured.series(quantity)
        except InputError as error:
            raise MissingEvidence("language_models", f"{self.name} has no {quantity}") from error
        return float(values[0]), float(values[-1])

    def over_later_half(self, quantity: str) -> tuple[float, float]:
        """A quantity at the first checkpoint of the later half of training, and at the last one."""
        try:
            steps, values = self.measured.series(quantity)
        except InputError as error:
            raise MissingEvidence("language_models", f"{self.name} has no {quantity}") from error
        first = min(int(np.searchsorted(steps, steps[-1] / 2)), len(steps) - 2)
        return float(values[first]), float(values[-1])

    def last(self, quantity: str) -> float:
        return self.first_and_last(quantity)[1]

    def against_first(self, quantity: str) -> float:
        """A quantity of the model at its last checkpoint, compared with the first."""
        rows = self.trace.records.where(level="model", quantity=quantity)
        if not len(rows):
            raise MissingEvidence("language_models", f"{self.name} has no {quantity}")
        return float(rows.series(quantity, reference="first")[1][-1])

    @property
    def learned(self) -> bool:
        """Whether its development loss ends below that of word frequencies, or the latter is unknown."""
        return not self.last("dev_loss") >= self.frequency_loss

    def level_of_layers(self) -> Floats:
        """The saturation of each layer at the last evaluation."""
        levels = self.measured.where(level="layer").matrix("saturation")
        kept = [place for place, layer in enumerate(levels.layers) if layer is not None]
        return levels.values[-1, kept]

    def predictions(self, network: str) -> NetworkBehavior:
        """The predictions of the last checkpoint as a "soft" or "saturated" network."""
        found = [one for one in self.behavior.networks if one.network == network]
        if not found:
            raise MissingEvidence(
                "language_models", f"{self.name} has no predictions of the {network} network"
            )
        return found[0]

    def of_heads(self, quantity: str, *, first: bool = False) -> Floats:
        """A value per head, at the last step or at the first."""
        rows = self.heads.records.where(level="head", quantity=quantity).table
        if not len(rows):
            raise MissingEvidence("language_models", f"{self.name} has no {quantity} of heads")
        steps = rows["step"].to_numpy()
        return rows["value"].to_numpy()[steps == (steps.min() if first else steps.max())]


@dataclass(frozen=True)
class TrainedModels:
    models: tuple[TrainedModel, ...]
    selection: Selection | None = None  # the parameters that norms count

    def __iter__(self) -> Iterator[TrainedModel]:
        return iter(self.models)

    def described(self) -> str:
        """The number of models, their sizes and their training, in words."""
        corpora = " and ".join(dict.fromkeys(one.corpus for one in self.models))
        sizes = dict.fromkeys((one.layers, one.width) for one in self.models if one.layers is not None)
        shapes = (
            f" with {' or '.join(f'{layers} layers of {width}' for layers, width in sizes)}" if sizes else ""
        )
        epochs = sorted(one.epochs for one in self.models if one.epochs is not None)
        times = dict.fromkeys(f"{one:.2g}" for one in (*epochs[:1], *epochs[-1:]))
        trained = f" ({' to '.join(times)} {'epoch' if [*times] == ['1'] else 'epochs'})" if epochs else ""
        return f"{len(self.models)} language models{shapes} trained here on {corpora}{trained}"

    def where(self, **choices: Any) -> list[TrainedModel]:
        """The models with these values: leaking=False, optimizer="adamw", kind, corpus, seed."""
        found = [
            one for one in self.models if all(getattr(one, key) == value for key, value in choices.items())
        ]
        if not found:
            raise MissingEvidence("language_models", f"no model was trained with {choices}")
        return found

    @staticmethod
    def read(stored: StoredResult) -> "TrainedModels":
        records = stored.records
        given = stored.fields.get("selection")
        known = {
            **stored.fields,
            "selection": given if isinstance(given, dict) and given.get("include") else None,
        }
        fields = converted(known, LanguageModelFields, "the stage language_models")
        found = []
        for name, settings in fields.models.items():
            run = f"{name}, heads"
            heads = {"command": "heads", "runs": {run: asdict(fields.heads.get(name, HeadFields()))}}
            corpus = fields.corpora.get(settings.corpus)
            found.append(
                TrainedModel(
                    name=name,
                    **{
                        key: getattr(settings, key)
                        for key in ("kind", "optimizer", "leaking", "corpus", "seed", "schedule")
                    },
                    layers=settings.layers,
                    width=settings.width,
                    epochs=settings.epochs_trained,
                    rate=settings.rate,
                    weight_decay=settings.decay,
                    frequency_loss=corpus.frequency_loss if corpus else nan,
                    measured=records.where(run=name),
                    trace=Trace(records=records.where(run=f"{name}, checkpoints"), source=name),
                    heads=Heads.from_stored(StoredResult(records.where(run=run), heads)),
                    behavior=Behavior(records=records.where(run=f"{name}, behavior"), source=name),
                )
            )
        return TrainedModels(tuple(found), fields.selection)


# decay -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DecayEdges:
    """The weight decay at which growth ends for each learning rate, NaN if not within the grid; predicted: λ*."""

    learning_rates: Floats
    edges: Floats
    predicted: Floats

    @staticmethod
    def read(records: Records) -> "DecayEdges":
        def column(quantity: str) -> Floats:
            return records.where(level="column", quantity=quantity).table["value"].to_numpy()

        return DecayEdges(column("lr"), column("edge"), column("edge_predicted"))
