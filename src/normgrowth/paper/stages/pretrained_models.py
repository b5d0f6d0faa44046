"""The stage `pretrained`: saturation of pretrained networks and of the same networks with random weights.

Each network has a run with its name, and an encoder-decoder network a second one, "NAME, decoder". With `as_published`
there is a third one, "NAME, as published": the stack, the layers and the mode of the authors' script.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from normgrowth.errors import InputError
from normgrowth.network.saturation.result import Saturation
from normgrowth.paper.stages.stage import Stage, StageContext, StageSettings
from normgrowth.records import Records

FIGURE_2 = ("bert-base-cased", "roberta-base", "t5-base", "xlnet-base-cased")
DECODER, AS_PUBLISHED = ", decoder", ", as published"  # endings of runs


@dataclass(frozen=True)
class Pretrained(StageSettings):
    """The measured networks. text: the checksum of the file of sentences; None: Python's documentation."""

    models: tuple[str, ...]
    sentences: int
    as_published: bool = False
    text: str | None = None

    def with_text(self, text: Path) -> Self:
        try:
            content = text.read_bytes()
        except OSError as error:
            raise InputError(f"{text}: {error.strerror or error}") from error
        return replace(self, text=hashlib.sha256(content).hexdigest())


def pretrained_models(context: StageContext, settings: Pretrained) -> Saturation:
    parts = []
    for i, name in enumerate(settings.models):
        parts.append(context.cached(f"part-{i}", Saturation, partial(_levels, name, settings, context.text)))
        context.done(i + 1, len(settings.models), name)
    return _joined(parts)


def _levels(name: str, settings: Pretrained, text: Path | None) -> Saturation:
    from normgrowth.network.models.load import load_model
    from normgrowth.saturation import saturation

    loaded = load_model(name)
    forms: dict[str, dict[str, Any]] = {"": {}}
    if getattr(loaded.model.config, "is_encoder_decoder", False):
        forms[DECODER] = {"stack": "decoder"}
    if settings.as_published:
        forms[AS_PUBLISHED] = {"as_published": True}
    own = {"sentences": settings.sentences, "random_init": 1}
    return _joined(
        [saturation(loaded, text, run=f"{name}{ending}", **own, **form) for ending, form in forms.items()]
    )


def _joined(parts: Sequence[Saturation]) -> Saturation:
    models = {run: known for one in parts for run, known in one.models.items()}
    return replace(parts[0], records=Records.joined([one.records for one in parts]), models=models)


PRETRAINED = Stage(
    name="pretrained",
    title="Figure 2: saturation of trained and random networks",
    version=2,
    settings={
        "demo": Pretrained(models=("minilm",), sentences=50),
        "paper": Pretrained(models=("minilm", *FIGURE_2), sentences=100, as_published=True),
    },
    takes={"demo": "5 seconds", "paper": "6 minutes, and the weights of four models (2 GB)"},
    run=pretrained_models,
)
