"""The stage `pretrained`: saturation of pretrained networks and of the same networks with random weights."""

from dataclasses import dataclass
from functools import partial

from normgrowth.paper.stages.stage import Stage, StageContext, StageSettings
from normgrowth.records import Records

FIGURE_2 = ("bert-base-cased", "roberta-base", "t5-base", "xlnet-base-cased")


@dataclass(frozen=True)
class Pretrained(StageSettings):
    models: tuple[str, ...]
    sentences: int


def pretrained_models(context: StageContext, settings: Pretrained) -> Records:
    parts = []
    for i, name in enumerate(settings.models):
        parts.append(context.cached(f"part-{i}", partial(_levels, name, settings.sentences)))
        context.done(i + 1, len(settings.models), name)
    models = {run: known for part in parts for run, known in part.made_by["models"].items()}
    return Records.joined(parts, {**parts[0].made_by, "models": models})


def _levels(name: str, sentences: int) -> Records:
    from normgrowth.network.models.load import load_model
    from normgrowth.network.saturation.saturation import saturation

    return saturation(load_model(name), sentences=sentences, random_init=1, run=name).records


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
