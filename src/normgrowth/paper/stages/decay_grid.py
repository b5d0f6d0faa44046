"""The stage `decay`: where the norm grows, over learning rate and weight decay."""

from dataclasses import dataclass, replace
from typing import Self

from normgrowth.lab.sweep_result import Sweep
from normgrowth.paper.stages.stage import Stage, StageContext, StageSettings

Span = tuple[float, float, int]  # first, last and number of values, on a logarithmic scale


@dataclass(frozen=True)
class DecayGrid(StageSettings):
    """The settings of the grid. preset: of the model. refine: train only the cells that decide where growth ends."""

    preset: str
    corpus: str
    min_count: int | None
    epochs: int | None
    lr: Span
    weight_decay: Span
    refine: bool

    def with_corpus(self, corpus: str, min_count: int) -> Self:
        return replace(self, corpus=corpus, min_count=min_count)


def decay_grid(context: StageContext, settings: DecayGrid) -> Sweep:
    from normgrowth.lab.cells.grid import Axis
    from normgrowth.lab.settings import preset
    from normgrowth.sweep import sweep

    options = {"min_count": settings.min_count, "epochs": settings.epochs}
    base = preset(
        settings.preset,
        settings.corpus,
        **{name: value for name, value in options.items() if value is not None},
    )
    return sweep(
        base,
        context.folder,
        x=Axis.spaced("lr", *settings.lr),
        y=Axis.spaced("weight_decay", *settings.weight_decay),
        refine=settings.refine,
        data=context.data,
        engine=context.engine,
        progress=context.progress,
    )


DECAY = Stage(
    name="decay",
    title="Figure 6: growth over learning rate × weight decay",
    version=1,
    settings={
        "demo": DecayGrid(
            preset="tiny",
            corpus="pydoc",
            min_count=3,
            epochs=None,
            lr=(1e-4, 1e-2, 5),
            weight_decay=(1e-4, 1, 13),
            refine=True,
        ),
        "paper": DecayGrid(
            preset="paper",
            corpus="wikitext-2",
            min_count=None,
            epochs=1,
            lr=(1e-5, 1e-1, 20),
            weight_decay=(1e-5, 1e-1, 20),
            refine=False,
        ),
    },
    takes={
        "demo": "40 seconds",
        "paper": "400 models of 12 layers of 768, 1 epoch each: about 8 core-hours per model, 1,600 hours on two cores",
    },
    run=decay_grid,
)
