"""The stage `scaling`: the paper's encoders at its size, and their cosine to the saturated network as weights grow."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from normgrowth.network.scaling.result import Scaling, joined_scalings
from normgrowth.paper.stages.stage import Stage, StageContext, StageSettings


@dataclass(frozen=True)
class Curves(StageSettings):
    """The settings of the curves. points: number of scales c from 1 to 10."""

    seeds: tuple[int, ...]
    points: int


def scaling_curves(context: StageContext, settings: Curves) -> Scaling:
    from normgrowth.network.scaling.curves import paper_configs
    from normgrowth.scaling import scaling

    configs, parts = paper_configs(), []
    c = np.geomspace(1, 10, settings.points).tolist()
    for i, config in enumerate(configs):
        measured = partial(scaling, config, c=c, seeds=list(settings.seeds))
        parts.append(context.cached(f"part-{i}", Scaling, measured))
        context.done(i + 1, len(configs), config.kind)
    return joined_scalings(parts)


SCALING = Stage(
    name="scaling",
    title="Figure 4: cosine of 12 layers of 768 to the saturated network, against c",
    version=1,
    settings={"demo": Curves(seeds=(0,), points=10), "paper": Curves(seeds=(0, 1, 2), points=49)},
    takes={"demo": "25 seconds", "paper": "6 minutes"},
    run=scaling_curves,
)
