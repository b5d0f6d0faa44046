"""The stage `pretrained`: saturation of pretrained networks and of the same networks with random weights."""

from dataclasses import dataclass, replace
from functools import partial

from normgrowth.paper.stages.stage import Stage, StageContext, StageSettings
from normgrowth.records import Records
from normgrowth.stored_result import StoredResult

FIGURE_2 = ("bert-base-cased", "roberta-base", "t5-base", "xlnet-base-cased")


@dataclass(frozen=True)
class Pretrained(StageSettings):
    models: tuple[str, ...]
    sentences: int


def pretrained_models(context: StageContext, settings: Pretrained) -> StoredResult:
    from normgrowth.network.saturation.result import Saturation

    parts = []
    for i, name in enumerate(settings.models):
        part = context.cached(f"part-{i}", partial(_levels, name, settings.sentences))
        parts.append(Saturation.from_stored(part))
        context.done(i + 1, len(settings.models), name)
    models = {run: known for part in parts for run, known in part.models.items()}
    return replace(parts[0], records=Records.joined([part.records for part in parts]), models=models).stored


def _levels(name: str, sentences: int) -> StoredResult:
    from normgrowth.network.models.load import load_model
    from normgrowth.saturation import saturation

    return saturation(load_model(name), sentences=sentences, random_init=1, run=name).stored


PRETRAINED = Stage(
    name="pretrained",
    title="Figure 2: saturation of trained and random networks",
    version=1,
    settings={
        "demo": Pretrained(models=("minilm",), sentences=50),
        "paper": Pretrained(models=("minilm", *FIGURE_2), sentences=100),
    },
    takes={"demo": "5 seconds", "paper": "1 minute"},
    run=pretrained_models,
)
