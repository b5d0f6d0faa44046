"""The stage `pretrained`: saturation of pretrained networks and of the same networks with random weights.

Each network has a run with its name, and an encoder-decoder network a second one, "NAME, decoder". With `as_published`
there is a third one, "NAME, as published": the stack, the layers and the mode of the authors' script. A model that
cannot be loaded, such as one of the hub without internet access, is left out; the stage fails if none is left.
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
SMALL = "t5-small"  # for footnote 7
SENTENCES = 100  # in Figure 2
DECODER, AS_PUBLISHED = ", decoder", ", as published"  # endings of runs


@dataclass(frozen=True)
class Pretrained(StageSettings):
    """The measured networks. text: the checksum of the file of sentences; None: Python's documentation. files: the
    names, sizes and times of the files of local models.
    """

    models: tuple[str, ...]
    sentences: int
    as_published: bool = False
    text: str | None = None
    files: tuple[tuple[str, int, int], ...] = ()

    def with_text(self, text: Path) -> Self:
        try:
            content = text.read_bytes()
        except OSError as error:
            raise InputError(f"{text}: {error.strerror or error}") from error
        return replace(self, text=hashlib.sha256(content).hexdigest())

    def with_models(self, models: Sequence[str]) -> Self:
        paths = [
            path for name in models for path in (Path(name), *sorted(Path(name).glob("*"))) if path.is_file()
        ]
        known = [(path, path.stat()) for path in paths]
        files = tuple((str(path), found.st_size, found.st_mtime_ns) for path, found in known)
        return replace(self, models=tuple(models), sentences=SENTENCES, as_published=True, files=files)


def pretrained_models(context: StageContext, settings: Pretrained) -> Saturation:
    parts: list[Saturation] = []
    errors: list[Exception] = []
    for i, name in enumerate(settings.models):
        measure = partial(_levels, name, settings, context.text)
        try:
            parts.append(context.cached(f"part-{i}", Saturation, measure))
        except (InputError, OSError, ImportError) as error:
            errors.append(error)
            context.leave_out(name, error)
        context.done(i + 1, len(settings.models), name)
    if not parts:
        raise errors[0]
    return joined_levels(parts)


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
    return joined_levels(
        [saturation(loaded, text, run=f"{name}{ending}", **own, **form) for ending, form in forms.items()]
    )


def joined_levels(parts: Sequence[Saturation]) -> Saturation:
    models = {run: known for one in parts for run, known in one.models.items()}
    return replace(parts[0], records=Records.joined([one.records for one in parts]), models=models)


PRETRAINED = Stage(
    name="pretrained",
    title="Figure 2: saturation of trained and random networks",
    version=2,
    settings={
        "demo": Pretrained(models=("minilm",), sentences=50),
        "paper": Pretrained(models=("minilm", *FIGURE_2, SMALL), sentences=SENTENCES, as_published=True),
    },
    takes={"demo": "5 seconds", "paper": "7 minutes, and the weights of five models (2 GB)"},
    run=pretrained_models,
)
