"""The results of the stages, by which claims are judged.

    evidence.theory.table1["paper's encoder"].measured
    evidence.language_models.where(leaking=False, optimizer="adamw")[0].first_and_last("norm")

Reading a stage that was not run, or failed, raises MissingEvidence.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import InputError
from normgrowth.lab.run import Run
from normgrowth.lab.sweep_result import Sweep
from normgrowth.network.behavior.result import Behavior, NetworkBehavior
from normgrowth.network.heads.result import Heads
from normgrowth.network.saturation.result import Saturation
from normgrowth.paper.t5_series import PublishedT5, T5Series
from normgrowth.records import Block, Records
from normgrowth.results import Result, load
from normgrowth.schedules import Schedule
from normgrowth.serialization.json_types import read_json
from normgrowth.serialization.record_schema import SCHEMA
from normgrowth.stored_result import StoredResult, has_records
from normgrowth.trace.result import Trace
from normgrowth.workspace import write_json

if TYPE_CHECKING:
    from normgrowth.network.scaling.result import Scaling

Floats = NDArray[np.float64]
R = TypeVar("R")
THEORY = "theory"
TRAINED = "models.json"  # the names of the trained models, in their order
MODELS = "models"  # folder of the trained models, each in a folder of its name
PARTS = ("trace", "heads", "behavior")  # subfolders of a model, which has its run


class MissingEvidence(InputError):
    """A stage has no records, or its records lack the requested numbers."""

    def __init__(self, stage: str, reason: str) -> None:
        self.stage, self.reason = stage, reason
        super().__init__(f"the stage {stage} has no results for it: {reason}")


@dataclass(frozen=True)
class Evidence:
    """The results that claims are judged by.

    results: the result of each stage. failed: why a stage has no result. t5: the series of Figures 1 and 5.
    """

    results: "Mapping[str, StageResult]" = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    t5: T5Series = field(default_factory=PublishedT5)

    def has(self, *stages: str) -> bool:
        return all(stage in self.results for stage in stages)

    def described(self, stage: str) -> str:
        """A short description of what a stage measured: the data of a verdict."""
        if stage not in self.results:
            return f"{stage}: {self.failed.get(stage, 'not run')}"
        if stage == THEORY:
            return "small networks with known answers, run here in float64"
        if stage == "scaling":
            return f"{len(self.scaling.networks)} random networks, scaled here"
        if stage == "pretrained":
            return f"weights of {', '.join(self.pretrained)}; sentences of {self.sentences_read}"
        if stage == "figure2_forms":
            return "random T5 and XLNet with 12 layers, run here"
        if stage == "decay":
            return f"a grid with {len(self.decay.learning_rates)} learning rates, trained here"
        return self.language_models.described()

    def of_stage(self, stage: str, kind: type[R]) -> R:
        """The result of a stage, which is of this type."""
        if stage not in self.results:
            raise MissingEvidence(stage, self.failed.get(stage, "it was not run"))
        found = self.results[stage]
        if not isinstance(found, kind):
            raise MissingEvidence(stage, f"expected {kind.__name__}, got {type(found).__name__}")
        return found

    @cached_property
    def theory(self) -> "Theory":
        return self.of_stage(THEORY, Theory)

    @cached_property
    def scaling(self) -> "Scaling":
        from normgrowth.network.scaling.result import Scaling

        return self.of_stage("scaling", Scaling)

    def curve(self, kind: str, bias: bool) -> "Curve":
        """The mean curve of one kind of network in the stage `scaling`."""
        curves = mean_curves(self.scaling)
        if (kind, bias) not in curves:
            raise MissingEvidence("scaling", f"it has no curve of {kind}")
        return curves[kind, bias]

    @cached_property
    def saturation(self) -> Saturation:
        return self.of_stage("pretrained", Saturation)

    @cached_property
    def pretrained(self) -> "dict[str, Levels]":
        return _levels(self.saturation.records)

    @cached_property
    def sentences_read(self) -> str:
        """The name of the text in the stage `pretrained`."""
        known = self.saturation.models.values()
        return ", ".join(dict.fromkeys(Path(one.text.source.partition(",")[0]).name for one in known))

    @cached_property
    def figure2_forms(self) -> "FormLevels":
        return FormLevels.read(self.of_stage("figure2_forms", Saturation).records)

    @cached_property
    def language_models(self) -> "TrainedModels":
        return self.of_stage("language_models", TrainedModels)

    @cached_property
    def decay(self) -> "DecayEdges":
        return DecayEdges.read(self.of_stage("decay", Sweep).records)


# theory ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ComponentDegree:
    """The degree of a component. printed: in the paper. measured: the slope of log‖f(cθ)‖. gradient: the slope of its
    gradient. euler: θ·∇f / (k·f) − 1. NaN: undefined.
    """

    printed: float
    computed: float
    measured: float
    gradient: float = nan
    euler: float = nan


@dataclass(frozen=True)
class DistanceFromLimit:
    """The distance of a network from its limit at c = 10⁴. away: ‖f(cθ)/cᵏ − limit‖ / ‖limit‖. cosine: the mean over
    tokens.
    """

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
    """Numbers of strings. wrong: misjudged by the saturated network; wrong_soft: by the network with scale times its
    weights.
    """

    strings: float
    wrong: float
    wrong_soft: float
    scale: float


# Fields of Theory with a value per name, and those with one value.
GROUPS = {"components": ComponentDegree, "limits": DistanceFromLimit, "constructions": ConstructionErrors}
SINGLE = {"tie": TieWeights, "vanishing": Vanishing}


class Table1(dict[str, ComponentDegree]):
    """By component."""

    def __missing__(self, component: str) -> ComponentDegree:
        raise MissingEvidence(THEORY, f"its records lack {component!r}")


@dataclass(frozen=True)
class Theory:
    """The numbers of the stage `theory`: components of Table 1, networks and languages by name.

    They are stored as the records of a part of a reproduction: a row per number, with the group as its level.
    """

    components: dict[str, ComponentDegree]
    limits: dict[str, DistanceFromLimit]
    tie: TieWeights
    vanishing: Vanishing
    constructions: dict[str, ConstructionErrors]

    @property
    def table1(self) -> Table1:
        return Table1(self.components)

    @property
    def records(self) -> Records:
        groups = {name: getattr(self, name) for name in GROUPS}
        groups |= {name: {name: getattr(self, name)} for name in SINGLE}
        return Records.from_blocks(
            THEORY,
            [
                Block(
                    level,
                    [name],
                    [None],
                    [None],
                    [0],
                    {quantity: np.array([[value]]) for quantity, value in asdict(one).items()},
                )
                for level, known in groups.items()
                for name, one in known.items()
            ],
        )

    def write(self, folder: Path) -> None:
        fields = {"kind": "reproduction", "schema": SCHEMA, "stage": THEORY}
        StoredResult(self.records, fields).write(folder)

    @staticmethod
    def read(folder: Path) -> "Theory":
        values: dict[str, dict[str, dict[str, float]]] = {}
        for row in StoredResult.read(folder).records.table.to_pylist():
            values.setdefault(row["level"], {}).setdefault(row["name"], {})[row["quantity"]] = row["value"]
        try:
            found: dict[str, Any] = {
                level: {name: kind(**own) for name, own in values[level].items()}
                for level, kind in {**GROUPS, **SINGLE}.items()
            }
        except (KeyError, TypeError) as error:
            raise MissingEvidence(THEORY, f"its records lack {error}") from error
        return Theory(**found | {level: found[level][level] for level in SINGLE})


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


# figure2_forms -----------------------------------------------------------------------------------------


class FormLevels(dict[str, Floats]):
    """The levels of the blocks of a random network at c = 1000 by form of measurement, mean over seeds."""

    def __missing__(self, form: str) -> Floats:
        raise MissingEvidence("figure2_forms", f"its records lack {form!r}")

    @staticmethod
    def read(records: Records) -> "FormLevels":
        seeds: dict[str, list[Floats]] = {}
        for run in records.distinct("run"):
            levels = records.where(run=run).matrix("saturation", scale=1000)
            blocks = [place for place, layer in enumerate(levels.layers) if layer is not None]
            seeds.setdefault(run.partition(", seed ")[0], []).append(levels.values[-1, blocks])
        return FormLevels((form, np.mean(found, axis=0)) for form, found in seeds.items())


# language_models ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainedModel:
    """One language model. run: its evaluations and what its tracker measured. trace, heads: of its checkpoints.
    behavior: of its last checkpoint; None: not measured.
    """

    name: str
    run: Run
    trace: Trace
    heads: Heads
    behavior: Behavior | None = None

    def write(self, folder: Path) -> None:
        """Write the run into the folder, and the other results into subfolders."""
        self.run.write(folder)
        for name in PARTS:
            if (part := getattr(self, name)) is not None:
                part.write(folder / name)

    @staticmethod
    def read(folder: Path) -> "TrainedModel":
        parts: dict[str, Any] = {name: load(folder / name) for name in PARTS if has_records(folder / name)}
        return TrainedModel(folder.name, Run.from_stored(StoredResult.read(folder)), **parts)

    @property
    def kind(self) -> str:
        return self.run.settings.kind

    @property
    def optimizer(self) -> str:
        return self.run.settings.optimizer

    @property
    def leaking(self) -> bool:
        return self.run.settings.leaking

    @property
    def corpus(self) -> str:
        return self.run.settings.corpus

    @property
    def seed(self) -> int:
        return self.run.settings.seed

    @property
    def schedule(self) -> str:
        return self.run.settings.schedule

    @property
    def layers(self) -> int:
        return self.run.settings.layers

    @property
    def rate(self) -> Schedule:
        return self.run.settings.rate(self.run.steps)

    @property
    def weight_decay(self) -> float:
        return self.run.settings.decay

    @property
    def frequency_loss(self) -> float:
        """The loss of word frequencies on its development part; NaN if unknown."""
        return self.run.corpus.frequency_loss

    @property
    def epochs(self) -> float:
        """Passes over the training part."""
        return self.run.steps * self.run.settings.batch / self.run.corpus.sentences["train"]

    @property
    def measured(self) -> Records:
        return self.run.records

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
        known = self.behavior.networks if self.behavior else []
        found = [one for one in known if one.network == network]
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

    def __iter__(self) -> Iterator[TrainedModel]:
        return iter(self.models)

    def described(self) -> str:
        """The number of models, their sizes and their training, in words."""
        corpora = ", ".join(dict.fromkeys(one.corpus for one in self.models))
        sizes = dict.fromkeys((one.layers, one.run.settings.width) for one in self.models)
        shapes = " or ".join(f"{layers} layers of {width}" for layers, width in sizes)
        epochs = sorted(one.epochs for one in self.models)
        times = dict.fromkeys(f"{one:.2g}" for one in (epochs[0], epochs[-1]))
        trained = f"{' to '.join(times)} {'epoch' if [*times] == ['1'] else 'epochs'}"
        return f"{len(self.models)} language models with {shapes} trained here on {corpora} ({trained})"

    def where(self, **choices: Any) -> list[TrainedModel]:
        """The models with these values: leaking=False, optimizer="adamw", kind, corpus, seed."""
        found = [
            one for one in self.models if all(getattr(one, key) == value for key, value in choices.items())
        ]
        if not found:
            raise MissingEvidence("language_models", f"no model was trained with {choices}")
        return found

    def write(self, folder: Path) -> None:
        for model in self.models:
            model.write(folder / MODELS / model.name)
        write_json(folder / TRAINED, {"models": [model.name for model in self.models]})

    @staticmethod
    def read(folder: Path) -> "TrainedModels":
        names = read_json(folder / TRAINED, dict[str, list[str]])["models"]
        return TrainedModels(tuple(TrainedModel.read(folder / MODELS / name) for name in names))


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


StageResult: TypeAlias = Result | Theory | TrainedModels
