"""Which stages there are, and what they run at each scale.

demo    what is embedded: the Python documentation, MiniLM, random weights; minutes on two cores. With a folder of
        corpora Penn Treebank, or WikiText-2, takes the documentation's place
paper   the paper's sizes: WikiText-2 and Penn Treebank, 12 layers of 768, a grid of 20 × 20; a GPU or a cluster
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from normgrowth.engine import Engine
from normgrowth.errors import InputError
from normgrowth.paper.stages.cost import Cost, in_words, lab_cost, sweep_cost
from normgrowth.records import SIDECAR, Records

Scale = Literal["demo", "paper"]
Progress = Callable[[int, int, str], None]
KINDS = {
    "paper_pre_norm": {"kind": "paper_pre_norm"},
    "usual_pre_norm": {"kind": "usual_pre_norm", "final_norm": True},
    "post_norm": {"kind": "post_norm"},
}
PRETRAINED = ("bert-base-cased", "roberta-base", "t5-base", "xlnet-base-cased")  # Figure 2's
# Seconds of the demo's stages on two cores.
THEORY, LAB, SWEEP = 8, 250, 80
POINT = 2.5  # for each point and seed of the six curves of Figure 4
SENTENCE = (
    0.1  # for each sentence and model of Figure 2; BERT takes no longer (docs/records/levels_cost.json)
)


@dataclass(frozen=True)
class Work:
    """What a stage is given to work with."""

    folder: Path  # its own, kept from one call to the next
    engine: Engine
    data: Path | None = None
    progress: Progress | None = None


@dataclass(frozen=True)
class Stage:
    """parts: files and folders of this package whose code its records depend on. settings: whatever else does."""

    name: str
    title: str
    parts: tuple[str, ...]
    settings: Mapping[str, Any]
    cost: Cost
    run: Callable[[Work], Records] = field(compare=False)


def stages(scale: Scale, data: Path | None = None) -> list[Stage]:
    corpus = _demo_corpus(data if scale == "demo" else None)
    return [_theory(), _scaling(scale), _pretrained(scale), _lab(scale, corpus), _sweep(scale, corpus)]


def _demo_corpus(data: Path | None) -> tuple[str, int]:
    """Which corpus small models are trained on, and how often a word must come: so that words are some thousand."""
    if data is None:
        return "pydoc", 3
    there = [name for name in ("penn", "wikitext-2") if (data / name).is_dir()]
    if not there:
        raise InputError(f"{data}: holds neither penn nor wikitext-2")
    return there[0], 20


def _part(work: Work, number: int, make: Callable[[], Records]) -> Records:
    """A part of a stage, kept as soon as it is known: a stage that was stopped goes on behind it."""
    folder = work.folder / f"part-{number}"
    if (folder / SIDECAR).is_file():  # the last that is written
        with suppress(InputError):
            return Records.read(folder)
    records = make()
    records.write(folder)
    return records


def _theory() -> Stage:
    def run(work: Work) -> Records:
        from normgrowth.paper.stages.theory import theory

        return theory(work.progress)

    title = "degrees, limits and constructed networks"
    parts = ("limit", "network", "paper/stages/theory.py")
    return Stage("theory", title, parts, {}, Cost("nothing", THEORY), run)


def _scaling(scale: Scale) -> Stage:
    seeds, points = ([0], 10) if scale == "demo" else ([0, 1, 2], 49)
    settings = {"seeds": seeds, "points": points}

    def run(work: Work) -> Records:
        import numpy as np

        from normgrowth.network.scaling import joined, paper_configs, scaling

        configs = paper_configs()
        parts = []
        for i, config in enumerate(configs):
            scales = np.geomspace(1, 10, points).tolist()
            parts.append(_part(work, i, partial(scaling, config, scales=scales, seeds=seeds)))
            if work.progress:
                work.progress(i + 1, len(configs), config.kind)
        return joined(parts)

    cost = Cost("nothing", POINT * points * len(seeds))
    return Stage("scaling", "Figure 4: 12 layers of 768 against c", ("limit", "network"), settings, cost, run)


def _pretrained(scale: Scale) -> Stage:
    models, sentences = (("minilm",), 50) if scale == "demo" else (("minilm", *PRETRAINED), 100)
    settings = {"models": models, "sentences": sentences}

    def run(work: Work) -> Records:
        from normgrowth.network.models.load import load_model
        from normgrowth.network.saturation import saturation

        parts = []
        for i, name in enumerate(models):

            def measured(name: str = name) -> Records:
                return saturation(load_model(name), sentences=sentences, random_init=1, run=name)

            parts.append(_part(work, i, measured))
            if work.progress:
                work.progress(i + 1, len(models), name)
        return Records.joined(parts, parts[0].made_by)

    cost = Cost("nothing", SENTENCE * sentences * len(models))
    return Stage(
        "pretrained", "Figure 2: trained and random networks", ("limit", "network"), settings, cost, run
    )


def _lab(scale: Scale, demo: tuple[str, int]) -> Stage:
    from normgrowth.lab.settings import TrainSettings, preset

    models: dict[str, TrainSettings] = {}
    shape: dict[str, Any] = {"layers": 4, "width": 64, "heads": 4, "feedforward": 128, "min_count": demo[1]}
    small: dict[str, Any] = {**shape, "steps": 300, "evaluate": "powers", "dev_sentences": 100}
    corpora = demo[:1] if scale == "demo" else ("wikitext-2", "penn")
    for corpus in corpora:
        for optimizer in ("adamw", "sgd"):
            for kind, own in KINDS.items():
                for leaking in (
                    (False, True) if optimizer == "adamw" and kind != "usual_pre_norm" else (False,)
                ):
                    options: dict[str, Any] = {**own, "optimizer": optimizer, "leaking": leaking}
                    options |= _rates(kind, optimizer)
                    name = f"{corpus}-{kind}-{optimizer}{'-leaking' if leaking else ''}"
                    base = small if scale == "demo" else {"evaluate": "powers"}
                    models[name] = preset("paper", corpus, **{**base, **options})

    def run(work: Work) -> Records:
        from normgrowth.paper.stages.language_models import lab

        return lab(work.folder, models, data=work.data, on=work.engine, progress=work.progress)

    settings = {name: asdict(one) for name, one in models.items()}
    parts = (
        "lab",
        "tracking",
        "network",
        "limit",
        "weights",
        "checkpoints",
        "moments",
        "schedules.py",
        "paper/stages/language_models.py",
    )
    every = list(models.values())
    cost = Cost(in_words(every), LAB) if scale == "demo" else lab_cost(every)
    return Stage("lab", "language models, their saturation and heads", parts, settings, cost, run)


def _rates(kind: str, optimizer: str) -> dict[str, Any]:
    """Rates at which each learns: post-norm needs a warm-up, and plain SGD clipped gradients."""
    if optimizer == "sgd":
        return {"lr": 0.3, "clip": 1.0, "warmup": 100}
    return {"lr": 5e-4, "warmup": 100} if kind == "post_norm" else {"lr": 1e-3}


def _sweep(scale: Scale, demo: tuple[str, int]) -> Stage:
    from normgrowth.lab.cells.axis import Axis
    from normgrowth.lab.settings import preset

    if scale == "demo":
        base = preset("tiny", demo[0], min_count=demo[1])
        x, y = Axis.spaced("lr", 1e-4, 1e-2, 5), Axis.spaced("weight_decay", 1e-4, 1, 13)
    else:
        base = preset("paper", "wikitext-2", epochs=1)
        x, y = Axis.spaced("lr", 1e-5, 1e-1, 20), Axis.spaced("weight_decay", 1e-5, 1e-1, 20)
    settings = {"settings": asdict(base), "x": asdict(x), "y": asdict(y)}

    def run(work: Work) -> Records:
        from normgrowth.lab.sweep import sweep

        result = sweep(
            base,
            work.folder,
            x=x,
            y=y,
            refine=scale == "demo",
            data=work.data,
            engine=work.engine,
            progress=work.progress,
        )
        return result.records

    parts = ("lab", "tracking", "network", "limit", "weights", "checkpoints", "moments", "schedules.py")
    cells = [base] * (len(x.values) * len(y.values))
    cost = Cost(f"the edge of {in_words(cells)}", SWEEP) if scale == "demo" else sweep_cost(cells)
    return Stage("sweep", "Figure 6: learning rate × weight decay", parts, settings, cost, run)
