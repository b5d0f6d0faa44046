"""The stage `language_models`: which models are trained, and with which settings. `trained_models` trains them."""

from dataclasses import dataclass, replace
from typing import Self

from normgrowth.lab.settings import Kind, Optimizers, TrainSettings, preset
from normgrowth.paper.evidence import TrainedModels
from normgrowth.paper.stages.stage import Stage, StageContext, StageSettings

KINDS: tuple[Kind, ...] = ("paper_pre_norm", "usual_pre_norm", "post_norm")
SMALL_STEPS, SMALL_EPOCHS = 1500, 1000  # of small models; the steps end before the epochs
SMALL_EVERY = "100"  # evaluate and keep a checkpoint after as many steps
OPTIMIZERS: tuple[Optimizers, ...] = ("adamw", "sgd")


@dataclass(frozen=True)
class LanguageModels(StageSettings):
    """Which models are trained: of the paper's size for 5 epochs, or small ones with high learning rates.

    small: 4 layers of width 32 and 1,500 steps. At these rates the norm of the matrices at least doubles, except for
    post-norm with SGD (×1.9), which stops to learn at higher rates, and for post-norm with a leaking mask (×1.9).
    """

    corpora: tuple[str, ...]
    small: bool
    min_count: int | None = None

    def with_corpus(self, corpus: str, min_count: int) -> Self:
        return replace(self, corpora=(corpus,), min_count=min_count)

    def models(self) -> dict[str, TrainSettings]:
        """Settings by name: each kind of network with AdamW and SGD, and two models with the authors' leaking mask.

        Small models include one whose learning rate falls as 1/√t, as in the training of T5.
        """
        found = {}
        for corpus in self.corpora:
            base = preset("paper", corpus, evaluate="powers")
            if self.small:
                shape = replace(base, layers=4, width=32, heads=4, feedforward=64, positions=32)
                base = replace(
                    shape,
                    min_count=self.min_count,
                    epochs=SMALL_EPOCHS,
                    steps=SMALL_STEPS,
                    evaluate=SMALL_EVERY,
                    dev_sentences=100,
                )
            for optimizer in OPTIMIZERS:
                for kind in KINDS:
                    rates = _small_rates if self.small else _with_rates
                    own = replace(rates(base, kind, optimizer), final_norm=kind == "usual_pre_norm")
                    leaks = optimizer == "adamw" and kind != "usual_pre_norm"
                    for leaking in (False, True) if leaks else (False,):
                        name = f"{corpus}-{kind}-{optimizer}{'-leaking' if leaking else ''}"
                        found[name] = replace(own, leaking=leaking)
            if self.small:
                constant = found[f"{corpus}-paper_pre_norm-adamw"]
                falling = replace(constant, schedule="inverse_sqrt", lr=0.03, hold=100)
                found[f"{corpus}-paper_pre_norm-adamw-inverse_sqrt"] = falling
        return found


def _with_rates(base: TrainSettings, kind: Kind, optimizer: Optimizers) -> TrainSettings:
    """The settings with learning rates at which each model learns: post-norm needs warm-up, SGD clipped gradients."""
    own = replace(base, kind=kind, optimizer=optimizer)
    if optimizer == "sgd":
        return replace(own, lr=0.3, clip=1.0, warmup=100)
    return replace(own, lr=5e-4, warmup=100) if kind == "post_norm" else replace(own, lr=1e-3)


def _small_rates(base: TrainSettings, kind: Kind, optimizer: Optimizers) -> TrainSettings:
    """The same for small models, which also learn at rates that make their weights grow within 1,500 steps."""
    own = replace(base, kind=kind, optimizer=optimizer)
    if optimizer == "sgd":
        lr, warmup = {"paper_pre_norm": (2.0, 100), "usual_pre_norm": (3.0, 100), "post_norm": (2.5, 300)}[
            kind
        ]
        return replace(own, lr=lr, clip=1.0, warmup=warmup)
    # At 0.01 post-norm ends above the loss of word frequencies.
    return replace(own, lr=0.007, warmup=100) if kind == "post_norm" else replace(own, lr=0.01)


def language_models(context: StageContext, settings: LanguageModels) -> TrainedModels:
    from normgrowth.paper.stages.model_training import train_models

    return train_models(context, settings.models())


LANGUAGE_MODELS = Stage(
    name="language_models",
    title="language models, their growth, saturation, heads and predictions",
    version=6,
    settings={
        "demo": LanguageModels(corpora=("pydoc",), small=True, min_count=3),
        "paper": LanguageModels(corpora=("wikitext-2", "penn"), small=False),
    },
    takes={
        "demo": "2 minutes",
        "paper": "16 models of 12 layers of 768, 5 epochs each: about 23 core-hours per model, 185 hours on two cores",
    },
    run=language_models,
    read=TrainedModels.read,
)
